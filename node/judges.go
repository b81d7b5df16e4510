package node

import (
	"context"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/syncloop/admit"
)

// judges provides the node against which the sync loop admits pods.
type judges struct{ node *Node }

func (j *judges) current() admit.Node { return j.of(j.node.node.Current()) }

func (j *judges) reread(ctx context.Context) (admit.Node, error) {
	node, err := j.node.node.Reread(ctx)
	if err != nil {
		return admit.Node{}, err
	}
	return j.of(node), nil
}

func (j *judges) of(node *v1.Node) admit.Node {
	s := j.node.seen.load()
	return admit.Node{
		Name: node.Name, Labels: node.Labels, Taints: node.Spec.Taints, Allocatable: node.Status.Allocatable,
		OS: s.facts.OS, AppArmor: s.facts.AppArmor, StrictGroups: s.status.GetFeatures().GetSupplementalGroupsPolicy(), Sysctls: s.sysctls, Features: declaredFeatures,
		Pressure: j.node.parts.eviction.Conditions(), GoingDown: j.node.parts.shutdown.Going(),
	}
}

// features returns the runtime's features beside its handlers; nil if it does not report any.
func features(st *runtimeapi.StatusResponse) *v1.NodeFeatures {
	if st.GetFeatures() == nil {
		return nil
	}
	groups := st.GetFeatures().GetSupplementalGroupsPolicy()
	return &v1.NodeFeatures{SupplementalGroupsPolicy: &groups}
}
