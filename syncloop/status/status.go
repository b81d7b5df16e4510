// Package status makes the v1.PodStatus for the API server from an observation of the pod, with the
// kubelet's meaning of every field. The package is pure: equal Inputs give equal statuses, and a
// status that is passed back as Old gives itself.
//
// Generate creates the status from this node's view. Merge applies it to the pod's status at the API
// server, and keeps the fields of other components.
package status

import (
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// Input is everything that a status depends on.
type Input struct {
	Now time.Time
	// Pod is the pod as the API server (or a source of static pods) last showed it. Its Status
	// carries the conditions of other components, such as readiness gates.
	Pod *v1.Pod
	// Phase is the phase of the pod's worker. No terminal v1 phase is reported before Terminated,
	// nor while HoldsSandbox, because the API server deletes a pod in such a phase at once.
	Phase        pod.Phase
	HoldsSandbox bool
	Observed     pod.Observed
	// Old is the last status that was generated for this UID. It is zero after a restart of this
	// process; then Pod.Status takes its place.
	Old v1.PodStatus
	// Waiting says, by container name, why a container is not started: back-offs and failures from
	// the worker's ledger.
	Waiting map[string]Waiting
	// Awaits has, by container name, the step that a container waits for before its creation, if
	// that takes long.
	Awaits map[string]string
	// Again holds the IDs (without a scheme) of containers that were stopped to be started again,
	// whatever their exit code.
	Again map[string]bool
	// Verdicts by container ID (without a scheme).
	Verdicts map[string]pod.Verdicts
	// HostIPs are the node's addresses, primary first. At most two are used.
	HostIPs []string
	// Terminate is nil unless something other than a deletion ends the pod.
	Terminate *Termination
	// RuntimeName is the scheme of container IDs, "containerd" if empty
	// (VersionResponse.RuntimeName).
	RuntimeName string
	// RecursiveReadOnly says that the pod's runtime handler supports recursive read-only mounts.
	RecursiveReadOnly bool
	// StopSignals says that the node shows the stop signals of containers.
	StopSignals bool
	// Resize are the conditions of resizes, with their times. Pod carries its allocated resources.
	Resize []v1.PodCondition
	// Actuated is the allocation that the pod's cgroup was last sized for; nil if that is unknown
	// or equal to Pod's.
	Actuated *pod.Allocation
}

// Waiting is the content of a container's waiting state.
type Waiting struct {
	Reason  string // "ErrImagePull", "CrashLoopBackOff", ...
	Message string
}

// Termination is why the node ends the pod.
type Termination struct {
	Reason  string // status.reason: "Evicted", "DeadlineExceeded"; empty on deletion
	Message string
	// Disruption, if not empty, is the message of a condition DisruptionTarget with reason
	// TerminationByKubelet (eviction under node pressure, preemption, node shutdown).
	Disruption string
	// Rejected says that the node never admitted the pod, so no container has a status.
	Rejected bool
}

// Generate returns the status. A stale or missing observation says nothing about what runs now, so
// then it returns the old status unchanged.
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
		s.QOSClass = pod.ComputeQOSClass(&v1.Pod{Spec: *g.spec})
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
	// As in a kubelet, the conditions are computed before finish changes the container statuses.
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

// generator holds the input while one status is generated.
type generator struct {
	in   Input
	old  *v1.PodStatus
	spec *v1.PodSpec
}

// reason never leaves a terminal phase, and keeps the reason and message of an unchanged phase. If
// the phase is not terminal yet, the node's own termination sets all three.
func (g *generator) reason(s *v1.PodStatus) {
	api := &g.in.Pod.Status
	// A terminal phase never changes, not even into the other terminal phase.
	for _, p := range []v1.PodPhase{g.old.Phase, api.Phase} {
		if pod.Terminal(p) {
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
	if t := g.in.Terminate; t != nil && t.Reason != "" && !pod.Terminal(g.old.Phase) && !pod.Terminal(api.Phase) {
		s.Phase, s.Reason, s.Message = v1.PodFailed, t.Reason, t.Message
	}
}

// rejected reports whether the node rejected the pod: now, or in an earlier process, which left the
// pod Failed without any container status.
func (g *generator) rejected() bool {
	if len(g.in.Observed.Containers) > 0 {
		return false
	}
	if g.in.Terminate != nil && g.in.Terminate.Rejected {
		return true
	}
	return g.old.Phase == v1.PodFailed && len(g.old.InitContainerStatuses)+len(g.old.ContainerStatuses)+len(g.old.EphemeralContainerStatuses) == 0
}

// holdTerminal keeps the old phase until the worker has seen nothing running, and no sandbox:
// anyone who waits for a terminal phase may reuse what the pod holds.
func (g *generator) holdTerminal(s *v1.PodStatus) {
	if !g.held(s) {
		return
	}
	s.Phase, s.Reason, s.Message = g.old.Phase, g.old.Reason, g.old.Message
	if s.Phase == "" {
		s.Phase = v1.PodPending
	}
}

// held reports whether s.Phase is terminal and may not be reported yet.
func (g *generator) held(s *v1.PodStatus) bool {
	return pod.Terminal(s.Phase) && !pod.Terminal(g.old.Phase) && !pod.Terminal(g.in.Pod.Status.Phase) && (g.in.Phase < pod.Terminated || g.in.HoldsSandbox)
}

// keepUnowned copies the fields that other components write.
func keepUnowned(s, from *v1.PodStatus) {
	s.ResourceClaimStatuses = from.ResourceClaimStatuses
	s.ExtendedResourceClaimStatus = from.ExtendedResourceClaimStatus
	s.NodeAllocatableResourceClaimStatuses = from.NodeAllocatableResourceClaimStatuses
	if len(s.VolumeHealth) == 0 {
		s.VolumeHealth = from.VolumeHealth
	}
}

// ephemeral converts ephemeral containers to the type of the others.
func ephemeral(spec *v1.PodSpec) []v1.Container {
	var cs []v1.Container
	for i := range spec.EphemeralContainers {
		cs = append(cs, v1.Container(spec.EphemeralContainers[i].EphemeralContainerCommon))
	}
	return cs
}

// maxMessages is the maximum size in bytes of a pod's termination messages together.
const maxMessages = 12 << 10

// normalize truncates times to seconds, which is the API's resolution, and termination messages to
// each container's share of maxMessages, so that statuses compare as they are stored.
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
	for c := range pod.AllStatuses(s) {
		state(&c.State)
		state(&c.LastTerminationState)
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
