package admit

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	helper "k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/bowline-k8s/bowline/pod"
)

// Node has the facts of the node that the kubelet's checks need.
type Node struct {
	Name        string
	Labels      map[string]string
	Taints      []v1.Taint
	Allocatable v1.ResourceList
	OS          string // "linux"
	// AppArmor says that the host's kernel enforces AppArmor profiles.
	AppArmor bool
	// StrictGroups says that the runtime honours supplementalGroupsPolicy Strict
	// (node.status.features).
	StrictGroups bool
	// Pressure lists the pressure conditions that are True.
	Pressure []v1.NodeConditionType
	// Features lists the features that the node declares, which the scheduler uses too. nil skips
	// the check.
	Features []string
	// NoPodResources says that the node has no pod-level resources.
	NoPodResources bool
	// GoingDown says that the host is about to shut down.
	GoingDown bool
	// Sysctls that pods may set. nil skips the check.
	Sysctls *Sysctls
}

// The reasons of a Rejection by the node, as a kubelet spells them.
const (
	ReasonEvicted      = "Evicted"
	ReasonSysctl       = "SysctlForbidden"
	ReasonOSLabel      = "PodOSSelectorNodeLabelDoesNotMatch"
	ReasonOS           = "PodOSNotSupported"
	ReasonGroupsPolicy = "SupplementalGroupsPolicyNotSupported"
	ReasonNodeAffinity = "NodeAffinity"
	ReasonNodeName     = "NodeName"
	ReasonNodePorts    = "NodePorts"
	ReasonTaints       = "TaintToleration"
	ReasonAppArmor     = "AppArmor"
	ReasonPodResources = "PodLevelResourcesNotSupported"
	ReasonFeature      = "PodFeatureUnsupported"
	ReasonUnexpected   = "UnexpectedAdmissionError"
	ReasonShutdown     = "NodeShutdown"
	reasonOutOf        = "OutOf" // followed by the resource's name
)

// Verdict is the result of OnNode. If all fields are zero, the pod is admitted.
type Verdict struct {
	Rejection *Rejection
	// Preempt lists pods to end first so that this one, which is critical, fits. The pod is
	// admitted. Lacking is the first resource that it lacks.
	Preempt []*v1.Pod
	Lacking v1.ResourceName
}

// OnNode decides as a kubelet does whether the node admits the pod. others are the pods that it has
// admitted and that have not ended. The first failing check gives the reason; their order is the
// kubelet's.
func OnNode(p *v1.Pod, others []*v1.Pod, n Node) Verdict {
	for _, check := range []func(*v1.Pod, Node) *Rejection{underPressure, sysctls, osLabel, osField, groupsPolicy} {
		if r := check(p, n); r != nil {
			return Verdict{Rejection: r}
		}
	}
	lacking, r := general(p, others, n)
	var out Verdict
	switch {
	case len(lacking) > 0 && Critical(p) && r == nil:
		if out = Victims(p, others, n.Allocatable); out.Rejection != nil {
			return out
		}
	case len(lacking) > 0 && !Critical(p):
		return Verdict{Rejection: lacking[0].rejection()}
	case r != nil:
		return Verdict{Rejection: r}
	}
	for _, check := range []func(*v1.Pod, Node) *Rejection{appArmor, podResources, declaredFeatures} {
		if r := check(p, n); r != nil {
			return Verdict{Rejection: r}
		}
	}
	if n.GoingDown {
		return Verdict{Rejection: &Rejection{ReasonShutdown, "Pod was rejected as the node is shutting down."}}
	}
	return out
}

// general returns the resources that the pod lacks on the node, and the first other reason not to
// admit it.
func general(p *v1.Pod, others []*v1.Pod, n Node) (lacking []shortage, other *Rejection) {
	lacking = shortages(p, others, n.Allocatable)
	predicate := func(reason, why string) *Rejection {
		return &Rejection{reason, fmt.Sprintf("Predicate %s failed: %s", reason, why)}
	}
	switch {
	case !matchesAffinity(p, n):
		other = predicate(ReasonNodeAffinity, "node(s) didn't match Pod's node affinity/selector")
	case p.Spec.NodeName != "" && p.Spec.NodeName != n.Name:
		other = predicate(ReasonNodeName, "node(s) didn't match the requested node name")
	case portTaken(p, others):
		other = predicate(ReasonNodePorts, "node(s) didn't have free ports for the requested pod ports")
	case !pod.IsStatic(p) && !toleratesAll(p, n.Taints):
		other = predicate(ReasonTaints, "node(s) had taints that the pod didn't tolerate")
	}
	return lacking, other
}

func matchesAffinity(p *v1.Pod, n Node) bool {
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels}}
	ok, err := nodeaffinity.GetRequiredNodeAffinity(p).Match(node)
	return ok && err == nil
}

// toleratesAll checks NoExecute taints only. The others concern only the scheduler.
func toleratesAll(p *v1.Pod, taints []v1.Taint) bool {
	for i := range taints {
		if taints[i].Effect == v1.TaintEffectNoExecute && !tolerates(p, &taints[i]) {
			return false
		}
	}
	return true
}

func tolerates(p *v1.Pod, taint *v1.Taint) bool {
	return slices.ContainsFunc(p.Spec.Tolerations, func(t v1.Toleration) bool {
		if t.Effect != "" && t.Effect != taint.Effect || t.Key != "" && t.Key != taint.Key {
			return false
		}
		switch t.Operator {
		case "", v1.TolerationOpEqual:
			return t.Value == taint.Value
		}
		return t.Operator == v1.TolerationOpExists
	})
}

// underPressure rejects pods on a node under pressure, except critical ones. If memory is the only
// pressure, it admits pods that are not BestEffort, or that tolerate its taint.
func underPressure(p *v1.Pod, n Node) *Rejection {
	if len(n.Pressure) == 0 || Critical(p) {
		return nil
	}
	if len(n.Pressure) == 1 && n.Pressure[0] == v1.NodeMemoryPressure {
		taint := &v1.Taint{Key: v1.TaintNodeMemoryPressure, Effect: v1.TaintEffectNoSchedule}
		if !bestEffort(p) || tolerates(p, taint) {
			return nil
		}
	}
	return &Rejection{ReasonEvicted, fmt.Sprintf("The node had condition: %v. ", n.Pressure)}
}

func osLabel(p *v1.Pod, n Node) *Rejection {
	if asks, ok := p.Labels[v1.LabelOSStable]; ok && asks != n.OS {
		return &Rejection{ReasonOSLabel, "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"}
	}
	return nil
}

func osField(p *v1.Pod, n Node) *Rejection {
	if p.Spec.OS != nil && string(p.Spec.OS.Name) != n.OS {
		return &Rejection{ReasonOS, "Failed to admit pod as the OS field doesn't match node OS"}
	}
	return nil
}

func groupsPolicy(p *v1.Pod, n Node) *Rejection {
	sc := p.Spec.SecurityContext
	if sc == nil || sc.SupplementalGroupsPolicy == nil || *sc.SupplementalGroupsPolicy != v1.SupplementalGroupsPolicyStrict || n.StrictGroups {
		return nil
	}
	return &Rejection{ReasonGroupsPolicy, "SupplementalGroupsPolicy=Strict is not supported in this node"}
}

// appArmor checks that the host has AppArmor if the pod names a profile other than Unconfined.
func appArmor(p *v1.Pod, n Node) *Rejection {
	cannot := func(why string) *Rejection { return &Rejection{ReasonAppArmor, "Cannot enforce AppArmor: " + why} }
	profiles := appArmorProfiles(p)
	if !slices.ContainsFunc(profiles, func(a *v1.AppArmorProfile) bool { return a.Type != v1.AppArmorProfileTypeUnconfined }) {
		return nil
	}
	if !n.AppArmor {
		return cannot("AppArmor is not enabled on the host")
	}
	for _, a := range profiles {
		if a.Type == v1.AppArmorProfileTypeLocalhost && (a.LocalhostProfile == nil || strings.TrimSpace(*a.LocalhostProfile) == "") {
			return cannot(fmt.Sprintf("invalid empty AppArmor profile name: %q", a))
		}
	}
	return nil
}

// appArmorProfiles lists the profiles of the pod and its containers.
func appArmorProfiles(p *v1.Pod) []*v1.AppArmorProfile {
	var out []*v1.AppArmorProfile
	if sc := p.Spec.SecurityContext; sc != nil && sc.AppArmorProfile != nil {
		out = append(out, sc.AppArmorProfile)
	}
	for c := range pod.Containers(&p.Spec) {
		if sc := c.SecurityContext; sc != nil && sc.AppArmorProfile != nil {
			out = append(out, sc.AppArmorProfile)
			continue
		}
		switch of := p.Annotations[v1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix+c.Name]; {
		case of == v1.DeprecatedAppArmorBetaProfileRuntimeDefault:
			out = append(out, &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeRuntimeDefault})
		case strings.HasPrefix(of, v1.DeprecatedAppArmorBetaProfileNamePrefix):
			name := strings.TrimPrefix(of, v1.DeprecatedAppArmorBetaProfileNamePrefix)
			out = append(out, &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeLocalhost, LocalhostProfile: &name})
		}
	}
	return out
}

// podResources checks that the node has pod-level resources if the pod has them.
func podResources(p *v1.Pod, n Node) *Rejection {
	if !n.NoPodResources || !helper.IsPodLevelResourcesSet(p) {
		return nil
	}
	return &Rejection{ReasonPodResources, "PodLevelResources feature gate is disabled"}
}

// systemCritical is the lowest priority of system-critical pods.
const systemCritical = 2_000_000_000

// Critical reports whether a pod is critical, as a kubelet defines it: a static pod, a mirror pod,
// or one of system-critical priority. The node preempts other pods for it, and admits it under
// pressure.
func Critical(p *v1.Pod) bool {
	return pod.IsStatic(p) || pod.IsMirror(p) || p.Spec.Priority != nil && *p.Spec.Priority >= systemCritical
}
