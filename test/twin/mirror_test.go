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
