package oracle

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/test/labtest"
)

// NoStatusBackwards: the status of a pod, in versions of one life, never falls behind an earlier
// one: a phase after a later one, another start time, a missing container, fewer restarts, a
// container that runs after its end or waits under the same restart count after it ran. lost
// says that the pod lost its sandbox: it may be Pending after Running, as with a kubelet.
func NoStatusBackwards(versions []*v1.Pod, lost bool) []string {
	var bad []string
	for i := 1; i < len(versions); i++ {
		for _, what := range backwards(versions[i-1], versions[i], lost) {
			bad = append(bad, fmt.Sprintf("%s at version %s: %s", versions[i].Name, versions[i].ResourceVersion, what))
		}
	}
	return bad
}

// NoPodBackwards fails the test for each pod of a history that breaks NoStatusBackwards.
func NoPodBackwards(t *testing.T, h *labtest.History) {
	t.Helper()
	for _, uid := range h.Pods() {
		for _, what := range NoStatusBackwards(h.Of(uid), false) {
			t.Error(what)
		}
	}
}

var phaseRank = map[v1.PodPhase]int{"": 0, v1.PodPending: 1, v1.PodRunning: 2, v1.PodSucceeded: 3, v1.PodFailed: 3}

func backwards(a, b *v1.Pod, lost bool) []string {
	var bad []string
	if was, is := a.Status.Phase, b.Status.Phase; phaseRank[is] < phaseRank[was] && !(lost && was == v1.PodRunning && is == v1.PodPending) {
		bad = append(bad, fmt.Sprintf("phase %s after %s", is, was))
	}
	if a.Status.StartTime != nil && !a.Status.StartTime.Equal(b.Status.StartTime) {
		bad = append(bad, fmt.Sprintf("start time %v after %v", b.Status.StartTime, a.Status.StartTime))
	}
	for _, before := range Statuses(a) {
		after := labtest.Container(b, before.Name)
		if after == nil {
			bad = append(bad, "container "+before.Name+" has no status any more")
			continue
		}
		bad = append(bad, containerBackwards(&before, after)...)
	}
	return bad
}

// Statuses returns the statuses of a pod's init and regular containers.
func Statuses(p *v1.Pod) []v1.ContainerStatus {
	return append(append([]v1.ContainerStatus(nil), p.Status.InitContainerStatuses...), p.Status.ContainerStatuses...)
}

func containerBackwards(a, b *v1.ContainerStatus) []string {
	var bad []string
	if b.RestartCount < a.RestartCount {
		bad = append(bad, fmt.Sprintf("container %s: %d restarts after %d", a.Name, b.RestartCount, a.RestartCount))
	}
	if a.ContainerID == b.ContainerID && a.ContainerID != "" && a.State.Terminated != nil && b.State.Running != nil {
		bad = append(bad, "container "+a.Name+" runs after it ended")
	}
	if a.RestartCount == b.RestartCount && a.State.Running != nil && b.State.Waiting != nil && b.LastTerminationState.Terminated == nil {
		bad = append(bad, "container "+a.Name+" waits after it ran: "+b.State.Waiting.Reason)
	}
	return bad
}
