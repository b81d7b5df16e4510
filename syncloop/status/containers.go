package status

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// Reasons and messages of container states that do not come from a runtime.
const (
	reasonCreating       = "ContainerCreating"
	reasonInitializing   = "PodInitializing"
	reasonUnknown        = "ContainerStatusUnknown"
	reasonCompleted      = "Completed"
	reasonError          = "Error"
	exitUnknown          = 137
	messageGoneRunning   = "The container could not be located when the pod was deleted.  The container used to be Running"
	messageGoneFinished  = "The container could not be located when the pod was terminated"
	reasonRestartingAll  = "RestartingAllContainers"
	messageRemovedForAll = "The container is removed because RestartAllContainers in place"
	messageInitInferred  = "Unable to get init container status from container runtime and pod has been initialized, treat it as exited normally"
)

// kind is the list that a container belongs to.
type kind int

const (
	mainKind kind = iota
	initKind
	ephemeralKind
)

// containers returns the statuses of one list of containers: init containers in the order of the
// spec, the others by name, as in a kubelet.
func (g *generator) containers(specs []v1.Container, previous []v1.ContainerStatus, k kind) []v1.ContainerStatus {
	var out []v1.ContainerStatus
	for i := range specs {
		c := &specs[i]
		old := find(previous, c.Name)
		s := g.container(c, old, k)
		if old != nil && g.mayNotLeave(c, old, k) && s.State.Terminated == nil {
			s = *old
		}
		if wait := s.State.Waiting; wait != nil && (wait.Reason == reasonCreating || wait.Reason == reasonInitializing) && wait.Message == "" {
			s.State.Waiting = &v1.ContainerStateWaiting{Reason: wait.Reason, Message: g.in.Awaits[c.Name]}
		}
		g.readiness(c, &s, old, k)
		out = append(out, s)
	}
	if k != initKind {
		slices.SortFunc(out, func(a, b v1.ContainerStatus) int { return strings.Compare(a.Name, b.Name) })
	}
	return out
}

// container makes one container's status from its newest instance, the one before, the old status,
// and the reason it waits.
func (g *generator) container(c *v1.Container, old *v1.ContainerStatus, k kind) v1.ContainerStatus {
	newest, previous := g.instances(c.Name)
	var s v1.ContainerStatus
	if newest == nil {
		s = g.absent(c, old, k)
	} else {
		s = g.present(c, newest, old)
		if previous != nil {
			if last := g.state(previous, nil, &v1.ContainerStatus{}); last.Terminated != nil {
				s.LastTerminationState = last
			}
		}
	}
	if k == initKind && s.State.Terminated != nil && s.State.Terminated.ExitCode == 0 && !pod.Sidecar(c) {
		return s
	}
	w, waits := g.in.Waiting[c.Name]
	// The API server rejects a container that leaves a termination which its restart policy makes
	// final. So the exit of a container that was stopped to be started again never becomes its
	// State.
	between := newest != nil && newest.State == pod.StateExited && g.again(newest.ID) && !pod.Restarts(g.spec, c, newest.ExitCode)
	if !g.willStart(c, newest, k) || !waits && !between {
		return s
	}
	if s.State.Terminated != nil {
		s.LastTerminationState = s.State
	}
	s.State = g.waiting()
	if waits {
		s.State.Waiting = &v1.ContainerStateWaiting{Reason: w.Reason, Message: w.Message}
	}
	return s
}

// instances returns the newest instance of a container and the one before.
func (g *generator) instances(name string) (newest, previous *pod.Container) {
	cs := g.in.Observed.Containers
	for i := range cs {
		switch {
		case cs[i].Name != name:
		case newest == nil:
			newest = &cs[i]
		default:
			return newest, &cs[i]
		}
	}
	return newest, nil
}

// willStart reports whether the worker will start the container, so that its waiting reason is more
// useful than its last termination.
func (g *generator) willStart(c *v1.Container, newest *pod.Container, k kind) bool {
	if g.in.Pod.DeletionTimestamp != nil || g.in.Phase != pod.Syncing {
		return false
	}
	switch {
	case newest == nil || newest.State == pod.StateUnknown || newest.State == pod.StateCreated:
		return true
	case newest.State == pod.StateRunning || k == ephemeralKind:
		return false
	}
	return pod.Restarts(g.spec, c, newest.ExitCode) || g.again(newest.ID)
}

// again reports whether the worker stopped the container to start it again.
func (g *generator) again(id string) bool { return g.in.Again[id] }

// absent is the status of a container that has no instance in the runtime.
func (g *generator) absent(c *v1.Container, old *v1.ContainerStatus, k kind) v1.ContainerStatus {
	s := v1.ContainerStatus{Name: c.Name, Image: c.Image, State: g.waiting(), VolumeMounts: g.volumeMounts(c)}
	// A main container exists, so the init containers before it have succeeded.
	succeeded := k == initKind && !pod.Sidecar(c) && g.mainCreated(false)
	if old != nil {
		if w := old.State.Waiting; k != ephemeralKind && (w == nil || w.Reason == reasonRestartingAll) && g.restartingAll() {
			return g.removedForAll(s, old)
		}
		if old.State.Terminated != nil && (old.State.Terminated.ExitCode == 0 || !succeeded) {
			return *old
		}
		if last := old.LastTerminationState.Terminated; last != nil && last.ContainerID != "" && last.ContainerID == old.ContainerID {
			s = *old // the status of the instance that ended last stays until there is a next one
			s.State = g.waiting()
		}
		s.RestartCount = old.RestartCount
		s.LastTerminationState = old.LastTerminationState
		// It ran at the last observation, so it has ended with an unknown result. Without a
		// termination, a pod that must run once could run twice.
		if old.State.Running != nil {
			if s.LastTerminationState.Terminated == nil {
				s.LastTerminationState.Terminated = &v1.ContainerStateTerminated{
					Reason: reasonUnknown, Message: messageGoneRunning, ExitCode: exitUnknown, ContainerID: old.ContainerID,
				}
			}
			if g.in.Pod.DeletionTimestamp == nil {
				s.RestartCount++
			}
		}
	}
	if succeeded {
		s.State = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{Reason: reasonCompleted, Message: messageInitInferred}}
	}
	return s
}

// removedForAll is the status of a container whose instance was removed because all containers
// restart. Its last termination stays readable, with that reason.
func (g *generator) removedForAll(s v1.ContainerStatus, old *v1.ContainerStatus) v1.ContainerStatus {
	s.State = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reasonRestartingAll, Message: messageRemovedForAll}}
	s.RestartCount, s.LastTerminationState = old.RestartCount, old.LastTerminationState
	if old.State.Waiting != nil {
		return s
	}
	ended := v1.ContainerStateTerminated{ExitCode: exitUnknown, ContainerID: old.ContainerID}
	if old.State.Terminated != nil {
		ended = *old.State.Terminated
	}
	ended.Reason, ended.Message = reasonRestartingAll, messageRemovedForAll
	s.LastTerminationState = v1.ContainerState{Terminated: &ended}
	return s
}

// present is the status of a container from its newest instance.
func (g *generator) present(c *v1.Container, n *pod.Container, old *v1.ContainerStatus) v1.ContainerStatus {
	s := v1.ContainerStatus{
		Name:               c.Name,
		RestartCount:       int32(n.Attempt),
		Image:              n.Image,
		ImageID:            n.ImageRef,
		ContainerID:        g.id(n.ID),
		VolumeMounts:       g.volumeMounts(c),
		AllocatedResources: c.Resources.Requests.DeepCopy(),
		Resources:          containerResources(c, n, old, g.id(n.ID)),
	}
	if s.Image == "" {
		s.Image = c.Image
	}
	if n.User != nil {
		s.User = &v1.ContainerUser{Linux: &v1.LinuxContainerUser{
			UID: n.User.UID, GID: n.User.GID, SupplementalGroups: slices.Clone(n.User.SupplementalGroups),
		}}
	}
	if g.in.StopSignals && n.StopSignal != "" {
		signal := v1.Signal(n.StopSignal)
		s.StopSignal = &signal
	}
	if old != nil {
		if old.VolumeMounts != nil {
			s.VolumeMounts = old.VolumeMounts // immutable once reported
		}
		s.AllocatedResourcesStatus = old.AllocatedResourcesStatus
		s.RestartCount = max(s.RestartCount, old.RestartCount)
		if old.ContainerID != s.ContainerID && old.State.Terminated != nil {
			s.LastTerminationState.Terminated = old.State.Terminated
		} else if old.LastTerminationState.Terminated != nil {
			s.LastTerminationState.Terminated = old.LastTerminationState.Terminated
		}
	}
	s.State = g.state(n, old, &s)
	if last := s.LastTerminationState.Terminated; s.State.Terminated != nil && last != nil && last.ContainerID == s.ContainerID {
		s.LastTerminationState.Terminated = nil // reported as the last one while the next instance was awaited
	}
	if s.State.Running != nil && old != nil && old.State.Terminated != nil && !countedAtEnd(old) &&
		old.ContainerID != s.ContainerID && old.RestartCount >= int32(n.Attempt) {
		// The runtime forgot the earlier instances, and with them the attempt number.
		s.RestartCount = old.RestartCount + 1
	}
	return s
}

// countedAtEnd reports whether the restart count in old already includes the restart after its
// termination, as it does for a termination with unknown exit code.
func countedAtEnd(old *v1.ContainerStatus) bool {
	t := old.State.Terminated
	return t.Reason == reasonUnknown && t.Message == messageGoneFinished && t.ContainerID == old.ContainerID
}

// state is the State of one instance. old may be nil. s gets the restart count for a termination
// that only old implies.
func (g *generator) state(n *pod.Container, old *v1.ContainerStatus, s *v1.ContainerStatus) v1.ContainerState {
	switch n.State {
	case pod.StateRunning:
		return v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: metav1.NewTime(n.StartedAt)}}
	case pod.StateExited:
		t := &v1.ContainerStateTerminated{
			ExitCode: n.ExitCode, Reason: n.Reason, Message: n.Message,
			StartedAt: metav1.NewTime(n.StartedAt), FinishedAt: metav1.NewTime(n.FinishedAt),
			ContainerID: g.id(n.ID),
		}
		if t.Reason == "" {
			t.Reason = reasonCompleted
			if t.ExitCode != 0 {
				t.Reason = reasonError
			}
		}
		return v1.ContainerState{Terminated: t}
	case pod.StateUnknown, pod.StateCreated:
		if old == nil {
			break
		}
		if old.State.Terminated != nil && old.ContainerID == g.id(n.ID) {
			return old.State
		}
		if last := old.LastTerminationState.Terminated; last != nil && last.ContainerID == g.id(n.ID) {
			return v1.ContainerState{Terminated: last}
		}
		if old.State.Running != nil && n.State == pod.StateUnknown {
			if old.ContainerID == g.id(n.ID) {
				s.RestartCount = old.RestartCount + 1 // as in a kubelet: its restart is counted at its end
			}
			return v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
				Reason: reasonUnknown, Message: messageGoneFinished, ExitCode: exitUnknown, ContainerID: g.id(n.ID),
			}}
		}
	}
	return g.waiting()
}

// mayNotLeave reports whether a terminated container must stay terminated.
func (g *generator) mayNotLeave(c *v1.Container, old *v1.ContainerStatus, k kind) bool {
	if old.State.Terminated == nil || k == ephemeralKind || pod.Sidecar(c) {
		return false
	}
	if g.spec.RestartPolicy == v1.RestartPolicyAlways || pod.CanRestartAll(g.spec) {
		return false
	}
	code := old.State.Terminated.ExitCode
	return !(code != 0 && g.spec.RestartPolicy == v1.RestartPolicyOnFailure) && !pod.Restarts(g.spec, c, code)
}

// readiness sets Started and Ready from the probes' verdicts. Without a verdict, both stay as they
// were for the same instance: a restart of our process changes nothing.
func (g *generator) readiness(c *v1.Container, s *v1.ContainerStatus, old *v1.ContainerStatus, k kind) {
	s.Ready, s.Started = false, nil
	if k == ephemeralKind {
		return
	}
	started := false
	defer func() { s.Started = &started }()
	if s.State.Running == nil {
		s.Ready = k == initKind && !pod.Sidecar(c) && s.State.Terminated != nil && s.State.Terminated.ExitCode == 0
		return
	}
	same := old != nil && old.ContainerID == s.ContainerID && old.State.Running != nil
	v := g.in.Verdicts[strings.TrimPrefix(s.ContainerID, g.scheme())]
	regularInit := k == initKind && !pod.Sidecar(c)
	started = c.StartupProbe == nil || regularInit ||
		v.Startup == pod.VerdictSuccess ||
		v.Startup == pod.VerdictUnknown && same && old.Started != nil && *old.Started
	if regularInit || !started {
		return
	}
	s.Ready = c.ReadinessProbe == nil ||
		v.Readiness == pod.VerdictSuccess ||
		v.Readiness == pod.VerdictUnknown && same && old.Ready
}

// mainCreated reports whether the runtime shows any main container: in the newest sandbox only, or
// in any.
func (g *generator) mainCreated(newestSandbox bool) bool {
	o := &g.in.Observed
	for i := range o.Containers {
		if newestSandbox && (len(o.Sandboxes) == 0 || o.Containers[i].SandboxID != o.Sandboxes[0].ID) {
			continue
		}
		for j := range g.spec.Containers {
			if g.spec.Containers[j].Name == o.Containers[i].Name {
				return true
			}
		}
	}
	return false
}

// volumeMounts reports the mounts of the spec, because the runtime knows no volume names.
func (g *generator) volumeMounts(c *v1.Container) []v1.VolumeMountStatus {
	var out []v1.VolumeMountStatus
	for _, m := range c.VolumeMounts {
		vs := v1.VolumeMountStatus{Name: m.Name, MountPath: m.MountPath, ReadOnly: m.ReadOnly}
		if m.ReadOnly {
			mode := v1.RecursiveReadOnlyDisabled
			if r := m.RecursiveReadOnly; r != nil && (*r == v1.RecursiveReadOnlyEnabled ||
				*r == v1.RecursiveReadOnlyIfPossible && g.in.RecursiveReadOnly) {
				mode = v1.RecursiveReadOnlyEnabled
			}
			vs.RecursiveReadOnly = &mode
		}
		out = append(out, vs)
	}
	return out
}

func (g *generator) waiting() v1.ContainerState {
	r := reasonCreating
	if len(g.spec.InitContainers) > 0 {
		r = reasonInitializing
	}
	return v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: r}}
}

func (g *generator) scheme() string {
	if g.in.RuntimeName == "" {
		return "containerd://"
	}
	return g.in.RuntimeName + "://"
}

func (g *generator) id(runtimeID string) string { return g.scheme() + runtimeID }

func find(list []v1.ContainerStatus, name string) *v1.ContainerStatus {
	for i := range list {
		if list[i].Name == name {
			return &list[i]
		}
	}
	return nil
}
