package status

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
)

// drawPod draws a pod of at most two containers of each kind.
func drawPod(t *rapid.T, s *script) {
	p := s.in.Pod
	p.Spec.RestartPolicy = rapid.SampledFrom([]v1.RestartPolicy{v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever}).Draw(t, "policy")
	always := v1.ContainerRestartPolicyAlways
	draw := func(prefix string, n int) (cs []v1.Container) {
		for i := range n {
			c := v1.Container{Name: fmt.Sprint(prefix, i), Image: "img"}
			if rapid.Bool().Draw(t, "probes") {
				c.ReadinessProbe, c.StartupProbe = &v1.Probe{}, &v1.Probe{}
			}
			if prefix == "s" {
				c.RestartPolicy = &always
			}
			cs = append(cs, c)
		}
		return cs
	}
	p.Spec.InitContainers = append(draw("i", rapid.IntRange(0, 2).Draw(t, "inits")), draw("s", rapid.IntRange(0, 1).Draw(t, "sidecars"))...)
	p.Spec.Containers = draw("c", rapid.IntRange(1, 2).Draw(t, "mains"))
	if rapid.Bool().Draw(t, "gate") {
		p.Spec.ReadinessGates = []v1.PodReadinessGate{{ConditionType: "g"}}
	}
}

// drawObserved draws arbitrary observations: runtimes lose, forget and repeat instances.
func drawObserved(t *rapid.T, s *script) {
	o := pod.Observed{Seq: s.in.Observed.Seq + 1}
	if rapid.IntRange(0, 9).Draw(t, "stale") == 0 {
		o.Stale = "link down"
	}
	for i := range rapid.IntRange(0, 2).Draw(t, "sandboxes") {
		o.Sandboxes = append(o.Sandboxes, pod.Sandbox{ID: fmt.Sprint("sb", i), Ready: rapid.Bool().Draw(t, "ready"), IPs: []string{"10.0.0.5"}})
	}
	s.in.Verdicts, s.in.Waiting = map[string]pod.Verdicts{}, map[string]Waiting{}
	verdict := rapid.SampledFrom([]pod.Verdict{pod.VerdictUnknown, pod.VerdictSuccess, pod.VerdictFailure})
	for c := range pod.Containers(&s.in.Pod.Spec) {
		top := rapid.IntRange(0, 3).Draw(t, "top")
		for n := range rapid.IntRange(0, 2).Draw(t, "instances") {
			id := fmt.Sprint(c.Name, "#", top-n)
			// One instance goes through created, running and exited, or is unknown.
			state := rapid.SampledFrom([]pod.ContainerState{pod.StateUnknown, pod.StateCreated, pod.StateRunning, pod.StateExited}).Draw(t, "state")
			for _, was := range s.in.Observed.Containers {
				if was.ID == id && state != pod.StateUnknown {
					state = max(state, was.State)
				}
			}
			if s.in.Phase == pod.Terminated && state == pod.StateRunning {
				state = pod.StateExited // the worker saw nothing running
			}
			o.Containers = append(o.Containers, pod.Container{
				ID: id, Name: c.Name, SandboxID: "sb0", Attempt: uint32(max(0, top-n)),
				State:    state,
				ExitCode: int32(rapid.IntRange(0, 1).Draw(t, "code")),
			})
			s.in.Verdicts[id] = pod.Verdicts{Startup: verdict.Draw(t, "startup"), Readiness: verdict.Draw(t, "readiness")}
		}
		if rapid.Bool().Draw(t, "waits") {
			s.in.Waiting[c.Name] = Waiting{Reason: "CrashLoopBackOff"}
		}
	}
	s.in.Observed = o
}

// check returns the first property that is violated between one status and the next.
func check(before, after v1.PodStatus) error {
	if pod.Terminal(before.Phase) && after.Phase != before.Phase {
		return fmt.Errorf("phase left %s for %s", before.Phase, after.Phase)
	}
	counts := map[string]int32{}
	for c := range pod.Statuses(&before) {
		counts[c.Name] = c.RestartCount
	}
	for c := range pod.Statuses(&after) {
		if c.RestartCount < counts[c.Name] {
			return fmt.Errorf("restartCount of %s fell from %d to %d", c.Name, counts[c.Name], c.RestartCount)
		}
		if n := states(c.State); n != 1 {
			return fmt.Errorf("%s has %d states", c.Name, n)
		}
	}
	ready := condition(after.Conditions, v1.PodReady)
	if ready == nil || ready.Status != v1.ConditionTrue {
		return nil
	}
	if pod.Terminal(after.Phase) {
		return fmt.Errorf("Ready in phase %s", after.Phase)
	}
	for _, c := range after.ContainerStatuses {
		if c.State.Running == nil || !c.Ready {
			return fmt.Errorf("Ready with %s not running and ready", c.Name)
		}
	}
	return nil
}

func states(s v1.ContainerState) (n int) {
	for _, is := range []bool{s.Running != nil, s.Waiting != nil, s.Terminated != nil} {
		if is {
			n++
		}
	}
	return n
}

func TestProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newScript()
		drawPod(t, s)
		for step := range rapid.IntRange(1, 5).Draw(t, "steps") {
			s.in.Now = epoch.Add(time.Duration(step) * time.Minute)
			s.in.Phase = max(s.in.Phase, rapid.SampledFrom([]pod.Phase{pod.Syncing, pod.Syncing, pod.Terminating, pod.Terminated}).Draw(t, "phase"))
			drawObserved(t, s)
			if rapid.IntRange(0, 9).Draw(t, "terminate") == 0 {
				s.in.Terminate = &Termination{Reason: "Evicted", Disruption: "pressure"}
			}
			st := Generate(s.in)
			if s.in.Observed.Stale == "" {
				testutil.Must(t, check(s.in.Old, st))
				if s.in.Phase >= pod.Terminated && !pod.Terminal(st.Phase) {
					t.Fatalf("Terminated worker, phase %s", st.Phase)
				}
				if s.in.Phase < pod.Terminated && pod.Terminal(st.Phase) && !pod.Terminal(s.in.Old.Phase) {
					t.Fatalf("%s worker, new terminal phase %s", s.in.Phase, st.Phase)
				}
			} else if s.in.Old.Phase != "" {
				if d := cmp.Diff(s.in.Old, st); d != "" {
					t.Fatalf("a stale observation changed the status:\n%s", d)
				}
			}
			again := s.in
			again.Old, again.Now = st, again.Now.Add(time.Hour)
			if d := cmp.Diff(st, Generate(again)); d != "" {
				t.Fatalf("not idempotent:\n%s", d)
			}
			merged := Merge(s.in.Pod.Status, st)
			if d := cmp.Diff(merged, Merge(merged, st)); d != "" {
				t.Fatalf("merge is not idempotent:\n%s", d)
			}
			s.in.Old = st
			s.in.Pod = s.in.Pod.DeepCopy()
			s.in.Pod.Status = merged
		}
	})
}

// TestChecksSeeBrokenStatuses violates each property on purpose.
func TestChecksSeeBrokenStatuses(t *testing.T) {
	running := v1.ContainerState{Running: &v1.ContainerStateRunning{}}
	waiting := v1.ContainerState{Waiting: &v1.ContainerStateWaiting{}}
	isReady := []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}
	for name, c := range map[string]struct{ before, after v1.PodStatus }{
		"left terminal": {v1.PodStatus{Phase: v1.PodFailed}, v1.PodStatus{Phase: v1.PodRunning}},
		"count fell": {
			v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{{Name: "c", RestartCount: 2, State: running}}},
			v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{{Name: "c", RestartCount: 1, State: running}}}},
		"ready while waiting": {v1.PodStatus{}, v1.PodStatus{Conditions: isReady, ContainerStatuses: []v1.ContainerStatus{{Ready: true, State: waiting}}}},
		"ready when failed":   {v1.PodStatus{}, v1.PodStatus{Conditions: isReady, Phase: v1.PodFailed}},
		"no state":            {v1.PodStatus{}, v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{{Name: "c"}}}},
	} {
		if check(c.before, c.after) == nil {
			t.Errorf("%s: not seen", name)
		}
	}
}
