package twin

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// TestLastStatusOfAStaticPod: if both kubelets left the status of a running pod, only that of the other node
// is not compared after its containers have ended; what it showed before still is.
func TestLastStatusOfAStaticPod(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	version := func(after time.Duration, ready bool, state v1.ContainerState) Entry {
		return Entry{At: at.Add(after), Pod: &v1.Pod{Status: v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{{Name: "main", Ready: ready, State: state}}}}}
	}
	waits := v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ContainerCreating"}}
	going := v1.ContainerState{Running: &v1.ContainerStateRunning{}}
	ended := v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: 143, Reason: "Error"}}
	recording := func(node string, entries ...Entry) Recording {
		return Recording{Scenario: "static", Node: node, Entries: entries}
	}
	left := recording("host1", version(0, false, waits), version(time.Second, true, going), version(9*time.Second, true, going))
	for name, c := range map[string]struct {
		other Recording
		alike bool
	}{
		"the same, with a last status": {recording("host3", version(0, false, waits), version(time.Second, true, going), version(9*time.Second, false, ended)), true},
		"never ready":                  {recording("host3", version(0, false, waits), version(time.Second, false, going), version(9*time.Second, false, ended)), false},
		"restarted": {recording("host3", version(0, false, waits), version(time.Second, true, going), version(4*time.Second, false, ended),
			version(7*time.Second, true, going), version(9*time.Second, false, ended)), false},
		"never running": {recording("host3", version(0, false, waits), version(9*time.Second, false, ended)), false},
	} {
		found := Compare(Normalise(left), Normalise(AsLeft(c.other)))
		if (len(found) == 0) != c.alike {
			t.Errorf("%s: %v", name, found)
		}
		if LeftRunning(c.other) {
			t.Errorf("%s: the last status counts as that of a running pod", name)
		}
	}
	if !LeftRunning(left) || LeftRunning(Recording{}) {
		t.Error("a status that was left, or none, is not recognized")
	}
}

// TestLostContainers: if both kubelets lost the containers of a pod, only how these ended is not compared;
// the phase, the conditions and what came before still are.
func TestLostContainers(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	version := func(after time.Duration, phase v1.PodPhase, restarts int32, state, last v1.ContainerState) Entry {
		return Entry{At: at.Add(after), Pod: &v1.Pod{Status: v1.PodStatus{Phase: phase, ContainerStatuses: []v1.ContainerStatus{
			{Name: "main", State: state, LastTerminationState: last, RestartCount: restarts}}}}}
	}
	var none v1.ContainerState
	going := v1.ContainerState{Running: &v1.ContainerStateRunning{}}
	waits := v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ContainerCreating"}}
	unknown := v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: 137, Reason: "ContainerStatusUnknown"}}
	ended := v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: 143, Reason: "Error"}}
	recording := func(entries ...Entry) Recording {
		return Recording{Scenario: "evicted", Node: "host1", Entries: entries}
	}
	lost := recording(version(0, v1.PodRunning, 0, going, none), version(time.Second, v1.PodFailed, 1, waits, unknown),
		version(2*time.Second, v1.PodFailed, 1, unknown, unknown))
	if !LostContainer(lost) {
		t.Error("a lost container is not recognized")
	}
	for name, c := range map[string]struct {
		other Recording
		alike bool
	}{
		"known":         {recording(version(0, v1.PodRunning, 0, going, none), version(time.Second, v1.PodFailed, 0, ended, none)), true},
		"another phase": {recording(version(0, v1.PodRunning, 0, going, none), version(time.Second, v1.PodSucceeded, 0, ended, none)), false},
		"restarted before": {recording(version(0, v1.PodRunning, 0, going, none), version(time.Second, v1.PodRunning, 1, going, ended),
			version(2*time.Second, v1.PodFailed, 1, ended, none)), false},
	} {
		if LostContainer(c.other) {
			t.Errorf("%s: an end that is known counts as lost", name)
		}
		if found := Compare(Normalise(WithoutEnds(lost)), Normalise(WithoutEnds(c.other))); (len(found) == 0) != c.alike {
			t.Errorf("%s: %v", name, found)
		}
	}
}
