package syncloop

import (
	"errors"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helper "k8s.io/component-helpers/resource"
	crierrors "k8s.io/cri-api/pkg/errors"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

// containerType is a kubelet's name for the kind of a pod's container.
func containerType(p *v1.Pod, name string) string {
	switch {
	case pod.IsInit(&p.Spec, name):
		return "init_container"
	case pod.Find(pod.Containers(&p.Spec), name) == nil:
		return "ephemeral_container"
	}
	return "container"
}

// operation counts an operation that has ended with this outcome. What a lost link has cut off is not an
// error of the pod.
func (m Metrics) operation(p *v1.Pod, out plan.Outcome, err error) {
	if m.off() {
		return
	}
	failed := err != nil && !errors.Is(err, host.ErrUnreachable) && !out.Transport
	switch out.Operation.Kind {
	case plan.OpSandbox:
		m.startedPods.Inc()
		if failed {
			m.startedPodsFailed.Inc()
		}
	case plan.OpStart:
		kind := containerType(p, out.Operation.Container)
		m.started.WithLabelValues(kind).Inc()
		if failed {
			m.startedFailed.WithLabelValues(kind, out.Reason).Inc()
		}
	}
	if !pod.HasUserNamespace(p) {
		return
	}
	if out.Operation.Kind == plan.OpSandbox {
		m.userNamespaces.Inc()
	}
	if failed && (out.Operation.Kind == plan.OpSandbox || out.Operation.Kind == plan.OpStart) {
		m.userNamespacesFailed.Inc()
	}
}

// statuses counts the containers that have terminated between two statuses of a pod that this process
// generated.
func (m Metrics) statuses(p *v1.Pod, before, after *v1.PodStatus) {
	if m.off() || before.Phase == "" {
		return
	}
	for s := range pod.AllStatuses(after) {
		t := s.State.Terminated
		if t == nil {
			t = s.LastTerminationState.Terminated
		}
		if t == nil || t.ContainerID == "" || knewTermination(before, s.Name, t.ContainerID) {
			continue
		}
		m.terminated.WithLabelValues(containerType(p, s.Name), strconv.Itoa(int(t.ExitCode)), t.Reason).Inc()
	}
}

func knewTermination(before *v1.PodStatus, name, id string) bool {
	s := pod.FindStatus(before, name)
	if s == nil {
		return false
	}
	for _, t := range []*v1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated} {
		if t != nil && t.ContainerID == id {
			return true
		}
	}
	return false
}

func (m Metrics) reject(reason string) {
	if !m.off() {
		m.rejected.WithLabelValues(reason).Inc()
	}
}

// admit counts a pod that the node has admitted.
func (m Metrics) admit(p *v1.Pod) {
	if m.off() {
		return
	}
	some := func(containers []v1.Container) bool {
		for i := range containers {
			if r := containers[i].Resources; len(r.Requests) > 0 || len(r.Limits) > 0 {
				return true
			}
		}
		return false
	}
	ofPod, ofContainers, mode := helper.IsPodLevelResourcesSet(p), some(p.Spec.Containers) || some(p.Spec.InitContainers), ""
	switch {
	case ofPod && ofContainers:
		mode = "pod_and_container_level"
	case ofPod:
		mode = "pod_level"
	case ofContainers:
		mode = "container_level"
	}
	m.admitted.WithLabelValues(mode, strings.ToLower(string(pod.QOSClass(p)))).Inc()
}

// orphaned counts a pod that runs and that no source has. restart counts a pod that is back with the
// UID of a pod that has just ended.
func (m Metrics) orphaned() {
	if !m.off() {
		m.orphans.Inc()
	}
}

func (m Metrics) restart(static bool) {
	if m.off() {
		return
	}
	label := ""
	if static {
		label = "true"
	}
	m.restarted.WithLabelValues(label).Inc()
}

func (m Metrics) preempt(lacking v1.ResourceName) {
	if !m.off() {
		m.preempted.WithLabelValues(string(lacking)).Inc()
	}
}

// ranSandbox counts a call of RunPodSandbox. One that the link cut off has no duration: it says nothing
// about the runtime.
func (m Metrics) ranSandbox(handler string, took time.Duration, err error) {
	if m.off() {
		return
	}
	if err != nil {
		m.sandboxFailed.WithLabelValues(handler).Inc()
	}
	if !errors.Is(err, host.ErrUnreachable) {
		m.sandbox.WithLabelValues(handler).Observe(took.Seconds())
	}
}

// mountedImages counts the image volumes of a container that was created, or that the runtime refused
// to create.
func (m Metrics) mountedImages(n int, err error) {
	if m.off() || n == 0 {
		return
	}
	m.imageVolumes.Add(float64(n))
	message, _, _ := cri.ErrorText(err)
	switch {
	case err == nil:
		m.imageVolumesMade.Add(float64(n))
	case strings.HasPrefix(message, crierrors.ErrImageVolumeMountFailed.Error()):
		m.imageVolumesFailed.Add(float64(n))
	}
}

// resized counts an attempt to resize a pod on the host.
func (m Metrics) resized(took time.Duration, err error) {
	if !m.off() {
		m.resize.WithLabelValues(strconv.FormatBool(err == nil)).Observe(float64(took.Milliseconds()))
	}
}

// resolved counts a deferred resize that waits no longer; see allocation.Config.
func (m Metrics) resolved(p *v1.Pod, how, trigger string, waited time.Duration, accepted bool) {
	if m.off() {
		return
	}
	m.deferred.WithLabelValues(how, PriorityBucket(p)).Observe(waited.Seconds())
	if accepted {
		m.resizesDeferred.WithLabelValues(trigger).Inc()
	}
}

// neverResized counts a resize that the node never makes, by the kubelet's word for the cause.
func (m Metrics) neverResized(cause string) {
	if !m.off() {
		m.resizesNever.WithLabelValues(cause).Inc()
	}
}

// PriorityBucket is a kubelet's name for the range that the pod's priority is in.
func PriorityBucket(p *v1.Pod) string {
	const systemCritical = 2_000_000_000
	if p.Spec.Priority == nil {
		return "normal"
	}
	switch n := *p.Spec.Priority; {
	case n >= systemCritical:
		return "system-critical"
	case n >= 100_000:
		return "high"
	case n > 0:
		return "medium"
	case n == 0:
		return "normal"
	case n > -1000:
		return "low"
	}
	return "very-low"
}

// wanted counts the resizes that a new version of a pod asks for.
func (m Metrics) wanted(before, after *v1.Pod) {
	if m.off() || before.UID != after.UID {
		return
	}
	for c := range pod.Containers(&before.Spec) {
		next := pod.Find(pod.Containers(&after.Spec), c.Name)
		if next == nil || pod.IsInit(&before.Spec, c.Name) && !pod.Sidecar(c) {
			continue
		}
		for requirement, of := range map[string]func(v1.ResourceRequirements) v1.ResourceList{
			"requests": func(r v1.ResourceRequirements) v1.ResourceList { return r.Requests },
			"limits":   func(r v1.ResourceRequirements) v1.ResourceList { return r.Limits },
		} {
			old, now := of(c.Resources), of(next.Resources)
			for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
				if operation := change(old[name], now[name]); operation != "" {
					m.resizesWanted.WithLabelValues(string(name), requirement, operation).Inc()
				}
			}
		}
	}
}

// change is a kubelet's word for the difference of two amounts; "" if they are equal.
func change(before, after resource.Quantity) string {
	switch {
	case before.Cmp(after) == 0:
		return ""
	case after.IsZero():
		return "remove"
	case before.IsZero():
		return "add"
	case after.Cmp(before) < 0:
		return "decrease"
	}
	return "increase"
}
