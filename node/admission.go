package node

import (
	"context"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/features"
	"github.com/bowline-k8s/bowline/syncloop/admit"
)

// admissionNode is the node against which the sync loop admits pods; object is its Node.
func (n *Node) admissionNode(object *v1.Node) admit.Node {
	s := n.seen.load()
	return admit.Node{
		Name: object.Name, Labels: object.Labels, Taints: object.Spec.Taints, Allocatable: object.Status.Allocatable,
		OS: s.facts.OS, AppArmor: s.facts.AppArmor, StrictGroups: s.status.GetFeatures().GetSupplementalGroupsPolicy(), Sysctls: s.sysctls, Features: n.features.Declared(),
		NoPodResources: !n.features.Enabled(features.PodLevelResources),
		Pressure:       n.parts.eviction.Conditions(), GoingDown: n.parts.shutdown.Going(),
	}
}

// reread is admissionNode with labels and taints as the API server has them now.
func (n *Node) reread(ctx context.Context) (admit.Node, error) {
	object, err := n.node.Reread(ctx)
	if err != nil {
		return admit.Node{}, err
	}
	return n.admissionNode(object), nil
}

// runtimeFeatures returns the runtime's features beside its handlers; nil if it does not report any.
func runtimeFeatures(st *runtimeapi.StatusResponse) *v1.NodeFeatures {
	if st.GetFeatures() == nil {
		return nil
	}
	groups := st.GetFeatures().GetSupplementalGroupsPolicy()
	return &v1.NodeFeatures{SupplementalGroupsPolicy: &groups}
}
