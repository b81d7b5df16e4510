package plan

import (
	"fmt"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
)

// TestInstancesAreBounded: a pod has only so many instances and sandboxes at a time, since each is in
// every list of the runtime. The oldest instance that has a successor is removed first; the last one
// of a container never is.
func TestInstancesAreBounded(t *testing.T) {
	p, err := parsePod("inits=setup main=app")
	testutil.Must(t, err)
	most := spec.Instances(2)
	input := func(instances int) Input {
		o := pod.Observed{Seq: 1, Sandboxes: []pod.Sandbox{{ID: "b", Ready: true, Attempt: 1}}}
		for i := instances - 1; i > 0; i-- {
			o.Containers = append(o.Containers, pod.Container{ID: fmt.Sprint("app-", i), Name: "app", SandboxID: "b", Attempt: uint32(i), State: pod.StateExited,
				ExitCode: 1, CreatedAt: epoch.Add(time.Duration(i) * time.Minute), FinishedAt: epoch.Add(time.Duration(i) * time.Minute)})
		}
		o.Containers = append(o.Containers, pod.Container{ID: "setup", Name: "setup", SandboxID: "b", State: pod.StateExited, CreatedAt: epoch})
		return Input{Now: epoch.Add(24 * time.Hour), Pod: p, Volumes: VolumesReady, Observed: o,
			Ledger: Ledger{Names: map[string]NameRecord{"app": {Pulled: true}}}}
	}
	if got := Decide(input(most - 1)).Start; len(got) != 1 || got[0].Kind != OpStart {
		t.Errorf("%d instances: %+v", most-1, got)
	}
	in := input(most)
	first := Decide(in)
	if got := first.Start; len(got) != 1 || got[0].Kind != OpRemoveContainer || got[0].ID != "app-1" {
		t.Fatalf("%d instances: %+v", most, got)
	}
	in.InFlight = first.Start
	if got := Decide(in).Start; len(got) != 0 {
		t.Errorf("while one is being removed: %+v", got)
	}
	in.InFlight = nil
	in.Ledger = Record(first.Ledger, Outcome{Operation: first.Start[0], Err: "busy", At: in.Now}, p, 0)
	if got := Decide(in).Start; len(got) != 1 || got[0].Kind != OpRemoveContainer || got[0].ID != "app-2" {
		t.Errorf("one that cannot be removed: %+v", got)
	}

	for boxes, want := range map[int]bool{most - 1: true, most: false} {
		in := Input{Now: epoch.Add(24 * time.Hour), Pod: p, Volumes: VolumesReady, Observed: pod.Observed{Seq: 1}, Ledger: Ledger{Sandboxes: map[string]SandboxRecord{"b0": {Stopped: true}}}}
		for i := range boxes {
			in.Observed.Sandboxes = append(in.Observed.Sandboxes, pod.Sandbox{ID: fmt.Sprint("b", i), Attempt: uint32(boxes - i), CreatedAt: epoch})
		}
		made := false
		for _, op := range Decide(in).Start {
			made = made || op.Kind == OpSandbox
		}
		if made != want {
			t.Errorf("%d sandboxes: another one %v", boxes, made)
		}
	}
}
