package admit

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-helpers/nodedeclaredfeatures"
)

// ofLibrary is the Kubernetes release of the nodedeclaredfeatures library, which drops a feature in
// the release from which on nodes need not declare it.
var ofLibrary = version.MustParseGeneric("1.37")

// declaredFeatures checks that the node declares each feature that the pod uses and that nodes must
// declare.
func declaredFeatures(p *v1.Pod, n Node) *Rejection {
	if n.Features == nil {
		return nil
	}
	no := func(format string, args ...any) *Rejection {
		return &Rejection{ReasonFeature, fmt.Sprintf(format, args...)}
	}
	known := nodedeclaredfeatures.DefaultFramework
	needs, err := known.InferForPodScheduling(&nodedeclaredfeatures.PodInfo{Spec: &p.Spec, Status: &p.Status}, ofLibrary)
	if err != nil {
		return no("Failed to infer pod's feature requirements: %v", err)
	}
	match, err := known.MatchNodeFeatureSet(needs, known.TryMap(n.Features))
	switch {
	case err != nil:
		return no("Failed to match pod's feature requirements against the node: %v", err)
	case !match.IsMatch:
		return no("Pod requires node features that are not available: %s", strings.Join(match.UnsatisfiedRequirements, ", "))
	}
	return nil
}

// LackingForUpdate says which features that nodes must declare the update of a pod needs and the node does
// not declare; "" if it declares them all. A kubelet reports that, and rejects nothing: the pod runs.
func LackingForUpdate(from, to *v1.Pod, n Node) string {
	if n.Features == nil || len(from.Spec.InitContainers) != len(to.Spec.InitContainers) {
		return "" // the library compares init containers by position; only a static pod can have others
	}
	info := func(p *v1.Pod) *nodedeclaredfeatures.PodInfo {
		return &nodedeclaredfeatures.PodInfo{Spec: &p.Spec, Status: &p.Status}
	}
	known := nodedeclaredfeatures.DefaultFramework
	needs, err := known.InferForPodUpdate(info(from), info(to), ofLibrary)
	if err != nil || needs.IsEmpty() {
		return ""
	}
	match, err := known.MatchNodeFeatureSet(needs, known.TryMap(n.Features))
	if err != nil || match.IsMatch {
		return ""
	}
	return "Pod requires node features that are not available: " + strings.Join(match.UnsatisfiedRequirements, ", ")
}
