package plan

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// instance is one state in which a container can be found.
type instance struct {
	name  string
	there bool
	old   bool // in a sandbox that is not the newest
	state pod.ContainerState
	code  int32
	stray bool // an older instance runs as well
}

var instances = []instance{
	{name: "absent"},
	{name: "created", there: true, state: pod.StateCreated},
	{name: "running", there: true, state: pod.StateRunning},
	{name: "exit0", there: true, state: pod.StateExited},
	{name: "exit1", there: true, state: pod.StateExited, code: 1},
	{name: "unknown", there: true, state: pod.StateUnknown},
	{name: "old-exit0", there: true, old: true, state: pod.StateExited},
	{name: "old-running", there: true, old: true, state: pod.StateRunning},
	{name: "two", there: true, state: pod.StateRunning, stray: true},
}

// enumerate calls visit with every combination of phase, restart policy, states of an init, a
// sidecar and a main container, verdicts, sandboxes, volumes, request, operation in flight, and
// freshness.
func enumerate(visit func(name func() string, in Input)) {
	boxes := map[string][]pod.Sandbox{
		"none":     nil,
		"ready":    {{ID: "box-2", Attempt: 1, Ready: true, CreatedAt: epoch}, {ID: "box-1", CreatedAt: epoch}},
		"notready": {{ID: "box-2", Attempt: 1, CreatedAt: epoch}, {ID: "box-1", CreatedAt: epoch}},
		"nowhere":  {{ID: "box-2", Attempt: 1, Ready: true, NoAddress: true, CreatedAt: epoch}, {ID: "box-1", CreatedAt: epoch}},
		"two":      {{ID: "box-2", Attempt: 1, Ready: true, CreatedAt: epoch}, {ID: "box-1", Ready: true, CreatedAt: epoch}},
	}
	boxNames := []string{"none", "ready", "notready", "nowhere", "two"}
	verdicts := []pod.Verdicts{{}, {Startup: pod.VerdictSuccess, Liveness: pod.VerdictSuccess}, {Startup: pod.VerdictFailure},
		{Startup: pod.VerdictSuccess, Liveness: pod.VerdictFailure}}
	flights := [][]Operation{nil, {{Kind: OpStart, Container: "app", ID: "box-2", Attempt: 1}}, {{Kind: OpSandbox, Attempt: 2}},
		{{Kind: OpStop, Container: "proxy", ID: "proxy-new"}, {Kind: OpPull, Container: "app"}}}
	requests := []*Terminate{nil, {At: epoch.Add(time.Minute), Grace: 30 * time.Second, Cause: CauseDeleted}}
	now := epoch.Add(time.Minute + 5*time.Second)

	pods := map[v1.RestartPolicy]*v1.Pod{}
	for _, policy := range []v1.RestartPolicy{v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever} {
		p, err := parsePod("inits=setup,proxy* main=app prestop=app,proxy startup=proxy liveness=app,proxy restart=" + string(policy))
		if err != nil {
			panic(err)
		}
		pods[policy] = p
	}
	for _, setup := range instances {
		for _, proxy := range instances {
			for _, app := range instances {
				var cons []pod.Container
				for name, i := range map[string]instance{"setup": setup, "proxy": proxy, "app": app} {
					cons = append(cons, i.containers(name)...)
				}
				sortContainers(cons)
				for n, v := range verdicts {
					marks := map[string]pod.Verdicts{"proxy-new": v, "app-new": v}
					for _, box := range boxNames {
						for policy, p := range pods {
							for phase := pod.Syncing; phase <= pod.Terminated; phase++ {
								for r, request := range requests {
									for f, flight := range flights {
										in := Input{Now: now, Pod: p, Phase: phase, Terminate: request, Verdicts: marks, InFlight: flight,
											Volumes: VolumeState((n + f) % 3), Reported: r == 1 && f%2 == 0,
											Observed: pod.Observed{Seq: 5, Sandboxes: boxes[box], Containers: cons}, NeedSeq: 5,
											Ledger: Ledger{Names: map[string]NameRecord{"setup": {Pulled: true}, "proxy": {Pulled: true}, "app": {Pulled: true}}}}
										if n == 3 {
											in.Ledger.Names = nil
										}
										if r == 1 && n == 2 {
											in.Ledger.Sandboxes = map[string]SandboxRecord{"box-1": {Stopped: true}, "box-2": {Stopped: true}}
										}
										name := func() string {
											return fmt.Sprintf("setup %s, proxy %s, app %s, verdicts %d, sandbox %s, %s, %v, request %v, under way %v",
												setup.name, proxy.name, app.name, n, box, policy, phase, request != nil, flight)
										}
										visit(name, in)
										if n == 0 && f == 0 {
											in.NeedSeq = 6
											visit(name, in)
											in.NeedSeq, in.Observed.Stale = 5, "no connection"
											visit(name, in)
											in.Observed.Stale, in.Hold = "", "the network is not ready"
											visit(name, in)
										}
									}
								}
							}
						}
					}
				}
			}
		}
	}
}

func (i instance) containers(name string) []pod.Container {
	if !i.there {
		return nil
	}
	c := pod.Container{ID: name + "-new", Name: name, SandboxID: "box-2", Attempt: 1, State: i.state, ExitCode: i.code, CreatedAt: epoch}
	if i.old {
		c.SandboxID = "box-1"
	}
	if i.state != pod.StateCreated {
		c.StartedAt = epoch.Add(time.Second)
	}
	if i.state == pod.StateExited {
		c.FinishedAt = epoch.Add(50 * time.Second) // 15 s before now; the back-off of attempt 1 is 10 s
		if name == "app" && i.code == 1 {
			c.FinishedAt = epoch.Add(time.Minute) // 5 s before now
		}
	}
	list := []pod.Container{c}
	if i.stray {
		c.ID, c.SandboxID, c.Attempt, c.State = name+"-old", "box-1", 0, pod.StateRunning
		list = append(list, c)
	}
	return list
}

func TestEveryCombination(t *testing.T) {
	n, acts := 0, map[OpKind]int{}
	failures := 0
	enumerate(func(name func() string, in Input) {
		n++
		before := ""
		if n%1009 == 0 {
			before = fmt.Sprintf("%+v", in)
		}
		out := Decide(in)
		for _, op := range out.Start {
			acts[op.Kind]++
		}
		for _, s := range checkPlan(in, out) {
			if failures++; failures < 20 {
				t.Errorf("%s\n  in: %s\n  plan: %s", s, name(), out.Reason)
			}
		}
		if before != "" && before != fmt.Sprintf("%+v", in) {
			t.Fatalf("Decide changed its input: %s", name())
		}
	})
	t.Logf("%d combinations, operations %v", n, acts)
	if n < 50000 {
		t.Errorf("only %d combinations", n)
	}
	for kind := OpVolumes; kind <= OpRelease; kind++ {
		if acts[kind] == 0 {
			t.Errorf("no combination leads to %v", kind)
		}
	}
}
