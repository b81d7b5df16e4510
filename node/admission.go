package node

import (
	"context"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/syncloop/admit"
)

// admissionNode provides the node against which the sync loop admits pods.
type admissionNode struct{ node *Node }

func (a *admissionNode) current() admit.Node { return a.of(a.node.node.Current()) }

func (a *admissionNode) reread(ctx context.Context) (admit.Node, error) {
	node, err := a.node.node.Reread(ctx)
	if err != nil {
		return admit.Node{}, err
	}
	return a.of(node), nil
}

func (a *admissionNode) of(node *v1.Node) admit.Node {
	s := a.node.seen.load()
	return admit.Node{
		Name: node.Name, Labels: node.Labels, Taints: node.Spec.Taints, Allocatable: node.Status.Allocatable,
		OS: s.facts.OS, AppArmor: s.facts.AppArmor, StrictGroups: s.status.GetFeatures().GetSupplementalGroupsPolicy(), Sysctls: s.sysctls, Features: declaredFeatures,
		Pressure: a.node.parts.eviction.Conditions(), GoingDown: a.node.parts.shutdown.Going(),
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
