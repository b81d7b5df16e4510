// Package status turns what was observed of a pod into the v1.PodStatus that
// the API server shall see, with the kubelet's meaning of every field. It is
// pure: the same Input gives the same status, and a status fed back as Old
// gives itself.
//
// Generate makes the status of this node's view; Merge lays it over what the
// API server holds, keeping what belongs to others.
package status

import (
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// Input is all that a status depends on.
type Input struct {
	Now time.Time
	// Pod is the pod as the API server (or a static source) last showed it. Its
	// Status brings the conditions of others, readiness gates among them.
	Pod *v1.Pod
	// Phase of the pod's worker: a terminal v1 phase is not told before Terminated, nor
	// while HoldsSandbox, as the API server deletes a pod in such a phase at once.
	Phase        pod.Phase
	HoldsSandbox bool
	Observed     pod.Observed
	// Old is the status that was last generated for this UID; zero after a
	// restart of ours, when Pod.Status takes its place.
	Old v1.PodStatus
	// Waiting says, by container name, why a container is not started: back-offs
	// and failures of the worker's ledger.
	Waiting map[string]Waiting
	// Awaits says, by container name, what a container that is still to be made waits
	// for, where that takes long.
	Awaits map[string]string
	// Again holds the IDs (without a scheme) of the containers that were stopped in order
	// to start again, whatever they exit with.
	Again map[string]bool
	// Verdicts by container ID (without a scheme).
	Verdicts map[string]pod.Verdicts
	// HostIPs are the node's addresses, primary first; at most two are used.
	HostIPs []string
	// Terminate is nil unless something other than deletion ends the pod.
	Terminate *Termination
	// RuntimeName is the scheme of container IDs, "containerd" if empty
	// (VersionResponse.RuntimeName).
	RuntimeName string
	// RecursiveReadOnly: the pod's runtime handler supports recursive read-only mounts.
	RecursiveReadOnly bool
	// Resize are the conditions of resizes, with their times. Pod has the resources
	// that it was given.
	Resize []v1.PodCondition
	// Actuated is what the pod's own cgroup was made for last; nil where nobody knows,
	// or where it is what Pod has.
	Actuated *pod.Allocation
}

// Waiting is the content of a container's waiting state.
type Waiting struct {
	Reason  string // "ErrImagePull", "CrashLoopBackOff", ...
	Message string
}

// Termination is why the node itself ends the pod.
type Termination struct {
	Reason  string // status.reason: "Evicted", "DeadlineExceeded"; empty on deletion
	Message string
	// Disruption, if not empty, is the message of the condition DisruptionTarget with
	// reason TerminationByKubelet that the pod also gets (eviction under node pressure,
	// preemption, node shutdown).
	Disruption string
	// Rejected: the node has never taken the pod, so that no container has a status.
	Rejected bool
}

// Generate returns the status. A stale or missing observation says nothing of
// what runs now, so it returns the old status as it was.
func Generate(in Input) v1.PodStatus {
	old := in.Old
	if old.Phase == "" && old.ContainerStatuses == nil {
		old = in.Pod.Status
	}
	old = *old.DeepCopy()
	if in.Observed.Stale != "" || in.Observed.Seq == 0 {
		return old
	}
	g := generator{in: in, old: &old, spec: &in.Pod.Spec}
	var s v1.PodStatus
	s.ObservedGeneration = max(in.Pod.Generation, old.ObservedGeneration)
	s.QOSClass = old.QOSClass
	if s.QOSClass == "" {
		s.QOSClass = qosClass(g.spec)
	}
	s.StartTime = old.StartTime
	if s.StartTime.IsZero() {
		now := metav1.NewTime(in.Now)
		s.StartTime = &now
	}
	s.PodIPs, s.PodIP = g.podIPs()
	s.HostIPs, s.HostIP = g.hostIPs()
	g.resources(&s)

	if !g.rejected() {
		s.InitContainerStatuses = g.containers(g.spec.InitContainers, old.InitContainerStatuses, initKind)
		s.ContainerStatuses = g.containers(g.spec.Containers, old.ContainerStatuses, mainKind)
		s.EphemeralContainerStatuses = g.containers(ephemeral(g.spec), old.EphemeralContainerStatuses, ephemeralKind)
	}

	s.Phase = g.phase(&s)
	g.reason(&s)
	// As a kubelet has them: of what the containers said, before the last word on them.
	g.conditions(&s)
	if in.Phase >= pod.Terminated && !in.HoldsSandbox {
		g.finish(&s)
	}
	g.holdTerminal(&s)
	g.transitionTimes(&s)
	keepUnowned(&s, &old)
	normalize(in.Pod, &s)
	return s
}

// generator carries the input through the parts of one status.
type generator struct {
	in   Input
	old  *v1.PodStatus
	spec *v1.PodSpec
}

// reason keeps a terminal phase for ever, keeps the reason that belongs to an
// unchanged phase, and lets the node's own termination override both.
func (g *generator) reason(s *v1.PodStatus) {
	api := &g.in.Pod.Status
	// Out of a terminal phase there is no way, not even into the other one.
	for _, p := range []v1.PodPhase{g.old.Phase, api.Phase} {
		if Terminal(p) {
			s.Phase = p
		}
	}
	if s.Phase == g.old.Phase {
		s.Reason, s.Message = g.old.Reason, g.old.Message
		if s.Reason == "" {
			s.Reason = api.Reason
		}
		if s.Message == "" {
			s.Message = api.Message
		}
	}
	if t := g.in.Terminate; t != nil && t.Reason != "" && !Terminal(g.old.Phase) && !Terminal(api.Phase) {
		s.Phase, s.Reason, s.Message = v1.PodFailed, t.Reason, t.Message
	}
}

// rejected reports whether the node did not take the pod: now, or in a life of ours
// before this one, which left it failed without a word of any container.
func (g *generator) rejected() bool {
	if len(g.in.Observed.Containers) > 0 {
		return false
	}
	if g.in.Terminate != nil && g.in.Terminate.Rejected {
		return true
	}
	return g.old.Phase == v1.PodFailed && len(g.old.InitContainerStatuses)+len(g.old.ContainerStatuses)+len(g.old.EphemeralContainerStatuses) == 0
}

// holdTerminal keeps the old phase until the worker has seen nothing running, and no
// sandbox: whoever waits for a terminal phase may reuse what the pod holds.
func (g *generator) holdTerminal(s *v1.PodStatus) {
	if !g.held(s) {
		return
	}
	s.Phase, s.Reason, s.Message = g.old.Phase, g.old.Reason, g.old.Message
	if s.Phase == "" {
		s.Phase = v1.PodPending
	}
}

// held reports whether s.Phase is terminal and may not be told yet.
func (g *generator) held(s *v1.PodStatus) bool {
	return Terminal(s.Phase) && !Terminal(g.old.Phase) && !Terminal(g.in.Pod.Status.Phase) && (g.in.Phase < pod.Terminated || g.in.HoldsSandbox)
}

// Terminal reports whether no container of a pod in this phase runs again.
func Terminal(p v1.PodPhase) bool { return p == v1.PodFailed || p == v1.PodSucceeded }

// keepUnowned carries over the fields that other components write.
func keepUnowned(s, from *v1.PodStatus) {
	s.ResourceClaimStatuses = from.ResourceClaimStatuses
	s.ExtendedResourceClaimStatus = from.ExtendedResourceClaimStatus
	s.NodeAllocatableResourceClaimStatuses = from.NodeAllocatableResourceClaimStatuses
	if len(s.VolumeHealth) == 0 {
		s.VolumeHealth = from.VolumeHealth
	}
}

// ephemeral gives ephemeral containers the type of the others.
func ephemeral(spec *v1.PodSpec) []v1.Container {
	var cs []v1.Container
	for i := range spec.EphemeralContainers {
		cs = append(cs, v1.Container(spec.EphemeralContainers[i].EphemeralContainerCommon))
	}
	return cs
}

// maxMessages is how many bytes of termination messages one pod may report.
const maxMessages = 12 << 10

// normalize cuts times to the second, which is all that the API keeps, and
// termination messages to the pod's share, so that what is compared is what
// is stored.
func normalize(p *v1.Pod, s *v1.PodStatus) {
	share := maxMessages
	if n := len(p.Spec.InitContainers) + len(p.Spec.Containers) + len(p.Spec.EphemeralContainers); n > 0 {
		share /= n
	}
	state := func(c *v1.ContainerState) {
		if c.Running != nil {
			c.Running.StartedAt = c.Running.StartedAt.Rfc3339Copy()
		}
		if t := c.Terminated; t != nil {
			t.StartedAt, t.FinishedAt = t.StartedAt.Rfc3339Copy(), t.FinishedAt.Rfc3339Copy()
			if len(t.Message) > share {
				t.Message = t.Message[:share]
			}
		}
	}
	for _, list := range [][]v1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses} {
		for i := range list {
			state(&list[i].State)
			state(&list[i].LastTerminationState)
		}
	}
	if s.StartTime != nil {
		t := s.StartTime.Rfc3339Copy()
		s.StartTime = &t
	}
	for i := range s.Conditions {
		c := &s.Conditions[i]
		c.LastProbeTime, c.LastTransitionTime = c.LastProbeTime.Rfc3339Copy(), c.LastTransitionTime.Rfc3339Copy()
	}
}
