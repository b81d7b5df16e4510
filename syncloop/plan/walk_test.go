package plan

import (
	"math/rand"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/bowline-k8s/bowline/pod"
)

// chooser makes the choices of a walk: by rapid, which can shrink them, or from a seed.
type chooser func(n int) int

// walkPods are the pods that walks use.
var walkPods = []string{
	"main=app",
	"main=app,web restart=OnFailure",
	"main=app restart=Never",
	"inits=setup main=app",
	"inits=setup,proxy* main=app,web startup=proxy liveness=app,proxy",
	"inits=setup,load main=app restart=Never",
	"inits=proxy*,setup,log* main=app restart=OnFailure prestop=app,proxy poststart=app,log",
	"main=app,web rules=web:7:RestartAllContainers inits=setup",
	"inits=setup,proxy* main=app restart=Never rules=proxy:7:RestartAllContainers",
	"inits=setup,proxy* main=app,web resize-restarts=app,proxy",
}

// walk takes random steps: time, operations, exits, verdicts, faults, crashes.
func walk(choose chooser, decide func(Input) Plan, steps int) *world {
	p, err := parsePod(walkPods[choose(len(walkPods))])
	if err != nil {
		panic(err)
	}
	w := newWorld(p, decide)
	faults := choose(3) > 0
	for range steps {
		switch n := choose(21); {
		case n < 7:
			w.tick()
		case n < 12:
			if len(w.flights) > 0 {
				how := endOK
				if faults && choose(4) == 0 {
					how = ending(choose(int(endings)))
				}
				w.finish(choose(len(w.flights)), how, "Broken", "it broke")
			}
		case n < 14:
			w.now = w.now.Add([]time.Duration{time.Second, 11 * time.Second, 5 * time.Minute, 15 * time.Minute}[choose(4)])
		case n == 14:
			if c := w.pick(choose, pod.StateRunning); c != nil {
				w.exit(c, []int32{0, 1, 7}[choose(3)])
			}
		case n == 15:
			if c := w.pick(choose, pod.StateRunning); c != nil {
				w.verdicts[c.ID] = pod.Verdicts{Startup: pod.Verdict(choose(3)), Liveness: pod.Verdict(choose(3))}
			}
		case n == 16 && faults:
			w.stale = []string{"", "no connection"}[choose(2)]
		case n == 17 && faults:
			switch choose(4) {
			case 0:
				w.crash(func(Operation) ending { return ending(choose(int(endings))) })
			case 1:
				w.catchUp()
			case 2:
				if c := w.pick(choose, pod.StateRunning); c != nil {
					c.State = pod.StateUnknown
				}
			case 3:
				if len(w.boxes) > 0 {
					w.boxes[0].Ready = false
				}
			}
		case n == 18:
			if choose(6) == 0 {
				w.remove([]time.Duration{0, time.Second, 30 * time.Second}[choose(3)])
			}
		case n == 19:
			w.hold = []string{"", "", "the network is not ready"}[choose(3)]
		case n == 20:
			w.resizeTo([]string{"app", "proxy", "setup"}[choose(3)], []int64{100, 200}[choose(2)], []int64{1 << 20, 2 << 20}[choose(2)])
		}
	}
	return w
}

func (w *world) pick(choose chooser, s pod.ContainerState) *pod.Container {
	var list []*pod.Container
	for _, c := range w.cons {
		if c.State == s {
			list = append(list, c)
		}
	}
	if len(list) == 0 {
		return nil
	}
	return list[choose(len(list))]
}

// settle ends all faults and lets time pass until the pod rests. Then it must be running as its
// spec says, or be gone with nothing left running.
func (w *world) settle() {
	w.stale, w.hold = "", ""
	w.catchUp()
	quiet, orphans := 0, 0
	for range 400 {
		out := w.tick()
		if w.phase == pod.Gone && w.pod == nil && len(w.cons)+len(w.boxes) > 0 && orphans < 3 {
			orphans++ // housekeeping finds what a failed removal or a late call left
			w.crash(func(Operation) ending { return endBefore })
			continue
		}
		if w.phase == pod.Gone {
			break
		}
		for len(w.flights) > 0 {
			w.finish(0, endOK, "", "")
			quiet = 0
		}
		busy := false
		for _, c := range w.cons {
			if c.State == pod.StateRunning && w.pod != nil {
				spec := pod.Find(pod.AllContainers(&w.pod.Spec), c.Name)
				if spec.StartupProbe != nil || spec.LivenessProbe != nil {
					w.verdicts[c.ID] = pod.Verdicts{Startup: pod.VerdictSuccess, Liveness: pod.VerdictSuccess, Readiness: pod.VerdictSuccess}
				}
				if w.isInit(c.Name) {
					w.exit(c, 0)
					busy = true
				}
			}
		}
		if len(out.Start) == 0 && !busy {
			quiet++
		}
		if quiet > 3 && out.WakeAt.IsZero() {
			break
		}
		if !out.WakeAt.IsZero() {
			w.now = out.WakeAt
		} else {
			w.now = w.now.Add(time.Second)
		}
	}
	w.checkConverged()
}

func (w *world) isInit(name string) bool {
	for i := range w.pod.Spec.InitContainers {
		if c := &w.pod.Spec.InitContainers[i]; c.Name == name && c.RestartPolicy == nil {
			return true
		}
	}
	return false
}

// checkConverged checks that the pod has converged.
func (w *world) checkConverged() {
	running := map[string]int{}
	for _, c := range w.cons {
		if live(c) {
			running[c.Name]++
		}
	}
	ready := 0
	for _, b := range w.boxes {
		if b.Ready {
			ready++
		}
	}
	if w.phase != pod.Syncing {
		if w.phase != pod.Gone || len(running) > 0 || ready > 0 || w.volumes != VolumesReleased {
			w.wrong("converge", "rests in %v with %v running, %d sandboxes: %s", w.phase, running, ready, w.decide(w.input()).Reason)
		}
		if w.phase == pod.Gone && w.pod == nil && len(w.cons)+len(w.boxes) > 0 {
			w.wrong("converge", "a deleted pod leaves %d containers and %d sandboxes", len(w.cons), len(w.boxes))
		}
		return
	}
	if ready != 1 || len(w.flights) > 0 || w.volumes != VolumesReady {
		w.wrong("converge", "rests with %d ready sandboxes, %d operations under way: %s", ready, len(w.flights), w.decide(w.input()).Reason)
	}
	if w.cgroup != w.allocated() {
		w.wrong("resize", "rests with its cgroup made for %s: %s", w.cgroup, w.decide(w.input()).Reason)
	}
	for c := range pod.Containers(&w.pod.Spec) {
		if w.isInit(c.Name) {
			continue
		}
		newest := w.seen.Newest(c.Name)
		over := newest != nil && newest.State == pod.StateExited && newest.ExitCode == 0 && w.pod.Spec.RestartPolicy == v1.RestartPolicyOnFailure
		over = over || newest != nil && newest.State == pod.StateExited && w.pod.Spec.RestartPolicy == v1.RestartPolicyNever
		over = over || newest != nil && newest.State == pod.StateExited && newest.ExitCode != 7 && c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyNever
		if newest != nil && running[c.Name] == 1 && w.sizes[newest.ID] != pod.SizeOf(&w.pod.Spec, c) {
			w.wrong("resize", "%s rests with %v: %s", newest.ID, w.sizes[newest.ID], w.decide(w.input()).Reason)
		}
		if running[c.Name] != 1 && !over {
			w.wrong("converge", "%d instances of %s run at rest: %s", running[c.Name], c.Name, w.decide(w.input()).Reason)
		}
	}
}

func TestWalks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := walk(func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "choice") }, Decide, rapid.IntRange(1, 150).Draw(t, "steps"))
		w.settle()
		if len(w.bad) > 0 {
			t.Fatalf("%s", strings.Join(w.bad, "\n"))
		}
	})
}

// TestManyWalks takes more walks than rapid's hundred, with fixed seeds.
func TestManyWalks(t *testing.T) {
	n := 4000
	if testing.Short() {
		n = 400
	}
	ends := map[pod.Phase]int{}
	for seed := range n {
		w := walk(rand.New(rand.NewSource(int64(seed))).Intn, Decide, 200)
		w.settle()
		ends[w.phase]++
		if len(w.bad) > 0 {
			t.Fatalf("seed %d: %s", seed, strings.Join(w.bad, "\n"))
		}
	}
	if ends[pod.Syncing] < n/10 || ends[pod.Gone] < n/10 {
		t.Errorf("the walks end one-sidedly: %v", ends)
	}
}
