package plan

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
)

func TestPhaseEdges(t *testing.T) {
	legal := map[[2]pod.Phase]bool{
		{pod.Syncing, pod.Terminating}: true, {pod.Terminating, pod.Terminated}: true, {pod.Terminated, pod.Gone}: true,
	}
	for from := pod.Phase(-1); from <= pod.Gone+1; from++ {
		for to := pod.Phase(-1); to <= pod.Gone+1; to++ {
			valid := from >= pod.Syncing && from <= pod.Gone
			ok := legal[[2]pod.Phase{from, to}] || valid && from == to
			got, illegal := advance(from, to)
			if ok != (illegal == "") {
				t.Errorf("%d to %d: illegal %q", from, to, illegal)
			}
			if want := map[bool]pod.Phase{true: to, false: from}[ok]; got != want {
				t.Errorf("%d to %d arrives at %d", from, to, got)
			}
		}
	}
}

func TestRestarts(t *testing.T) {
	policy := func(p v1.ContainerRestartPolicy) *v1.ContainerRestartPolicy { return &p }
	rule := func(op v1.ContainerRestartRuleOnExitCodesOperator, codes ...int32) v1.ContainerRestartRule {
		return v1.ContainerRestartRule{Action: v1.ContainerRestartRuleActionRestart, ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: op, Values: codes}}
	}
	always, onFailure, never := v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever
	for _, tc := range []struct {
		pod  v1.RestartPolicy
		c    v1.Container
		code int32
		want bool
	}{
		{always, v1.Container{}, 0, true},
		{onFailure, v1.Container{}, 0, false},
		{onFailure, v1.Container{}, 1, true},
		{never, v1.Container{}, 1, false},
		{"", v1.Container{}, 0, true},
		{always, v1.Container{RestartPolicy: policy("Never")}, 1, false},
		{never, v1.Container{RestartPolicy: policy("OnFailure")}, 1, true},
		{never, v1.Container{RestartPolicy: policy("OnFailure")}, 0, false},
		{never, v1.Container{RestartPolicy: policy("Always")}, 0, true},
		{never, v1.Container{RestartPolicy: policy("Never"), RestartPolicyRules: []v1.ContainerRestartRule{rule("In", 3, 4)}}, 4, true},
		{never, v1.Container{RestartPolicy: policy("Never"), RestartPolicyRules: []v1.ContainerRestartRule{rule("In", 3, 4)}}, 5, false},
		{never, v1.Container{RestartPolicy: policy("Never"), RestartPolicyRules: []v1.ContainerRestartRule{rule("NotIn", 3)}}, 5, true},
		{never, v1.Container{RestartPolicy: policy("Never"), RestartPolicyRules: []v1.ContainerRestartRule{rule("NotIn", 3)}}, 3, false},
		{never, v1.Container{RestartPolicy: policy("Never"), RestartPolicyRules: []v1.ContainerRestartRule{rule("Else", 3), {}}}, 3, false},
		// Rules are ignored if the container has no restart policy of its own.
		{never, v1.Container{RestartPolicyRules: []v1.ContainerRestartRule{rule("In", 3)}}, 3, false},
	} {
		if got := pod.Restarts(&v1.PodSpec{RestartPolicy: tc.pod}, &tc.c, tc.code); got != tc.want {
			t.Errorf("pod %q, container %+v, exit %d: %v", tc.pod, tc.c, tc.code, got)
		}
	}
}

func TestDelays(t *testing.T) {
	for n, want := range []time.Duration{0, 10, 20, 40, 80, 160, 300, 300, 300} {
		if got := crashDelay(uint32(n), 0, 0); got != want*time.Second {
			t.Errorf("crash %d: %v", n, got)
		}
	}
	if got := crashDelay(4_000_000_000, 0, 0); got != crashMost {
		t.Errorf("after very many crashes: %v", got)
	}
	for most, want := range map[time.Duration][]time.Duration{
		time.Second:      {0, 1, 1, 1},
		25 * time.Second: {0, 10, 20, 25, 25},
	} {
		for n, want := range want {
			if got := crashDelay(uint32(n), 0, most); got != want*time.Second {
				t.Errorf("crash %d, at most %v: %v", n, most, got)
			}
		}
	}
	for n, want := range []time.Duration{0, 1, 2, 4, 8, 16, 32, 60, 60} {
		if got := crashDelay(uint32(n), time.Second, time.Minute); got != want*time.Second {
			t.Errorf("crash %d, with the reduced figures: %v", n, got)
		}
	}
	for n, want := range []time.Duration{1, 1, 2, 4, 8, 10, 10} {
		if got := retryDelay(n); got != want*time.Second {
			t.Errorf("failure %d: %v", n, got)
		}
	}
	if spread(time.Minute, 0) != time.Minute || spread(time.Minute, 0.5) != 63*time.Second || spread(time.Minute, 7) != 66*time.Second {
		t.Error("a spread is up to a tenth")
	}
}

// The jitter of a crash back-off is drawn once: later decisions with other jitter do not move its
// end.
func TestCrashJitterIsDrawnOnce(t *testing.T) {
	p, err := parsePod("main=app")
	testutil.Must(t, err)
	w := newWorld(p, Decide)
	in := w.input()
	in.Pod, in.Volumes, in.NeedSeq = p, VolumesReady, 0
	in.Observed = pod.Observed{Seq: 1, Sandboxes: []pod.Sandbox{{ID: "b", Ready: true}}, Containers: []pod.Container{
		{ID: "c", Name: "app", SandboxID: "b", Attempt: 2, State: pod.StateExited, StartedAt: epoch.Add(-time.Second), FinishedAt: epoch}}}
	in.Jitter = 0.5
	first := Decide(in)
	if want := epoch.Add(21 * time.Second); !first.WakeAt.Equal(want) {
		t.Fatalf("wakes at %v, want %v", first.WakeAt, want)
	}
	in.Ledger, in.Jitter, in.Now = first.Ledger, 0.9, epoch.Add(15*time.Second)
	if again := Decide(in); !again.WakeAt.Equal(first.WakeAt) {
		t.Errorf("the end moved from %v to %v", first.WakeAt, again.WakeAt)
	}
	in.Now = first.WakeAt
	if then := Decide(in); len(then.Start) != 1 || then.Start[0].Kind != OpPull {
		t.Errorf("at its end: %s", then.Reason)
	}
}

func TestMerge(t *testing.T) {
	at := func(s int) time.Time { return epoch.Add(time.Duration(s) * time.Second) }
	a := &Terminate{At: at(0), Grace: 30 * time.Second, Cause: CauseEvicted, Reason: "Evicted", Message: "disk"}
	b := &Terminate{At: at(5), Grace: 10 * time.Second, Cause: CauseDeleted}
	if Merge(nil, a) != a || Merge(a, nil) != a || Merge(nil, nil) != nil {
		t.Error("one request stays as it is")
	}
	if got, want := *Merge(a, b), (Terminate{At: at(5), Grace: 10 * time.Second, Cause: CauseDeleted, Reason: "Evicted", Message: "disk"}); got != want {
		t.Errorf("%+v", got)
	}
	late := &Terminate{At: at(25), Grace: 30 * time.Second, Cause: CauseOrphan}
	if got := *Merge(b, late); got != *b {
		t.Errorf("a milder request changed it to %+v", got)
	}
	if got := *Merge(a, late); got.Cause != CauseOrphan || got.by() != a.by() {
		t.Errorf("%+v", got)
	}
}

func TestOrphanWithoutSpec(t *testing.T) {
	in := Input{Now: epoch, Observed: pod.Observed{Seq: 1, Sandboxes: []pod.Sandbox{{ID: "b", Ready: true}}, Containers: []pod.Container{
		{ID: "c", Name: "app", SandboxID: "b", State: pod.StateRunning, Annotations: map[string]string{pod.AnnotationPreStop: "{}"}}}}}
	out := Decide(in)
	if out.Phase != pod.Terminating || out.Terminate.Cause != CauseOrphan {
		t.Fatalf("%v %+v", out.Phase, out.Terminate)
	}
	if want := []Operation{{Kind: OpStop, ID: "c", Container: "app", Grace: defaultGrace, PreStop: true, Cause: StopPodEnds, Reason: "no source has the pod any more"}}; !reflect.DeepEqual(out.Start, want) {
		t.Errorf("%+v", out.Start)
	}
}

// A new process does not run a pod again that is finished in the API server, and does not start one
// that is being deleted.
func TestAdoptsWhatTheAPISays(t *testing.T) {
	for name, change := range map[string]func(*v1.Pod){
		"succeeded": func(p *v1.Pod) { p.Status.Phase = v1.PodSucceeded },
		"failed":    func(p *v1.Pod) { p.Status.Phase = v1.PodFailed },
		"deleted":   func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: epoch} },
	} {
		p, err := parsePod("main=app")
		testutil.Must(t, err)
		change(p)
		out := Decide(Input{Now: epoch, Pod: p, Observed: pod.Observed{Seq: 1}})
		if out.Phase != pod.Terminated || len(out.Start) != 1 || out.Start[0].Kind != OpRelease {
			t.Errorf("%s: %v %+v", name, out.Phase, out.Start)
		}
	}
}

// The restart count in the API object never goes back, even if the runtime lost every trace.
func TestAttemptsGoOn(t *testing.T) {
	p, err := parsePod("main=app")
	testutil.Must(t, err)
	p.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "app", RestartCount: 4, State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}}
	in := Input{Now: epoch, Pod: p, Volumes: VolumesReady, Ledger: Ledger{Names: map[string]NameRecord{"app": {Pulled: true}}},
		Observed: pod.Observed{Seq: 1, Sandboxes: []pod.Sandbox{{ID: "b", Ready: true}}}}
	out := Decide(in)
	if len(out.Start) != 1 || out.Start[0].Kind != OpStart || out.Start[0].Attempt != 5 {
		t.Errorf("%+v", out.Start)
	}
}

// A container that was created, and whose start has an unknown result, may have run: as with a
// kubelet, its replacement counts as a restart. If only the creation was lost, it cannot have run.
func TestAStartInDoubtCounts(t *testing.T) {
	p, err := parsePod("main=app")
	testutil.Must(t, err)
	for made, want := range map[string]uint32{"c": 3, "": 2} {
		out := Outcome{Operation: Operation{Kind: OpStart, Container: "app", Attempt: 2}, ContainerID: made, Transport: true, Err: "lost", At: epoch}
		ledger := Record(Ledger{Names: map[string]NameRecord{"app": {Pulled: true}}}, out, p, 0)
		in := Input{Now: epoch.Add(time.Hour), Pod: p, Volumes: VolumesReady, Ledger: ledger,
			Observed: pod.Observed{Seq: 1, Sandboxes: []pod.Sandbox{{ID: "b", Ready: true}}, Containers: []pod.Container{
				{ID: "c", Name: "app", SandboxID: "b", Attempt: 2, State: pod.StateCreated}}}}
		first := Decide(in)
		if len(first.Start) != 1 || first.Start[0].Kind != OpRemoveContainer {
			t.Fatalf("%+v", first.Start)
		}
		in.Ledger, in.Observed.Containers = first.Ledger, nil
		if then := Decide(in); len(then.Start) != 1 || then.Start[0].Kind != OpStart || then.Start[0].Attempt != want {
			t.Errorf("made %q: %+v, want attempt %d", made, then.Start, want)
		}
	}
}

func TestRecord(t *testing.T) {
	p, err := parsePod("main=app poststart=app prestop=app")
	testutil.Must(t, err)
	op := func(k OpKind) Operation { return Operation{Kind: k, Container: "app", ID: "id"} }
	in := func(d time.Duration) time.Time { return epoch.Add(d) }
	for name, tc := range map[string]struct {
		from Ledger
		out  Outcome
		want Ledger
	}{
		"a pull that failed": {Ledger{}, Outcome{Operation: op(OpPull), Err: "no such image", Reason: "ErrImagePull"},
			Ledger{Names: map[string]NameRecord{"app": {Backoff: Backoff{Failures: 1, Until: in(10 * time.Second), Reason: "ErrImagePull", Message: "no such image", Of: OpPull}}}}},
		"a pull that failed again": {Ledger{Names: map[string]NameRecord{"app": {Backoff: Backoff{Failures: 1, Of: OpPull}}}}, Outcome{Operation: op(OpPull), Err: "x", Reason: "ImagePullBackOff"},
			Ledger{Names: map[string]NameRecord{"app": {Backoff: Backoff{Failures: 2, Until: in(10 * time.Second), Reason: "ImagePullBackOff", Message: "x", Of: OpPull}}}}},
		"a pull after a failure": {Ledger{Names: map[string]NameRecord{"app": {Backoff: Backoff{Failures: 1, Of: OpPull, Reason: "ErrImagePull"}}}}, Outcome{Operation: op(OpPull)},
			Ledger{Names: map[string]NameRecord{"app": {Pulled: true}}}},
		"a pull leaves another failure": {Ledger{Names: map[string]NameRecord{"app": {Backoff: Backoff{Failures: 3, Of: OpStart}}}}, Outcome{Operation: op(OpPull)},
			Ledger{Names: map[string]NameRecord{"app": {Backoff: Backoff{Failures: 3, Of: OpStart}, Pulled: true}}}},
		"a start": {Ledger{Names: map[string]NameRecord{"app": {Backoff: Backoff{Failures: 3, Of: OpStart}, Pulled: true}}}, Outcome{Operation: op(OpStart), ContainerID: "c", Hooked: true},
			Ledger{Names: map[string]NameRecord{}, Containers: map[string]ContainerRecord{"c": {Hook: HookDone}}}},
		"a start that failed thrice": {Ledger{Names: map[string]NameRecord{"app": {Backoff: Backoff{Failures: 2, Of: OpStart}, Pulled: true}}}, Outcome{Operation: op(OpStart), Err: "no key", Reason: "CreateContainerConfigError"},
			Ledger{Names: map[string]NameRecord{"app": {Backoff: Backoff{Failures: 3, Until: in(4 * time.Second), Reason: "CreateContainerConfigError", Message: "no key", Of: OpStart}}}}},
		"a start lost before the hook": {Ledger{}, Outcome{Operation: op(OpStart), ContainerID: "c", Transport: true, Err: "lost"},
			Ledger{Names: map[string]NameRecord{"app": {Backoff: Backoff{Until: in(time.Second), Of: OpStart}, Attempt: 1}}, Containers: map[string]ContainerRecord{"c": {Hook: HookPending}}}},
		"a creation that was lost": {Ledger{}, Outcome{Operation: op(OpStart), Transport: true, Err: "lost"},
			Ledger{Names: map[string]NameRecord{"app": {Backoff: Backoff{Until: in(time.Second), Of: OpStart}}}}},
		"a hook that failed": {Ledger{}, Outcome{Operation: op(OpStart), ContainerID: "c", Hooked: true, Err: "exit 1", Reason: "PostStartHookError"},
			Ledger{Names: map[string]NameRecord{"app": {Backoff: Backoff{Failures: 1, Until: in(time.Second), Reason: "PostStartHookError", Message: "exit 1", Of: OpStart}}},
				Containers: map[string]ContainerRecord{"c": {Hook: HookDone, Why: Stop{StopPostStart, "PostStartHookError: exit 1"}}}}},
		"a hook made up for": {Ledger{Containers: map[string]ContainerRecord{"id": {Hook: HookPending}}}, Outcome{Operation: op(OpHook), Hooked: true},
			Ledger{Containers: map[string]ContainerRecord{"id": {Hook: HookDone}}}},
		"a stop whose hook ran": {Ledger{}, Outcome{Operation: op(OpStop), Transport: true, Hooked: true},
			Ledger{Containers: map[string]ContainerRecord{"id": {Backoff: Backoff{Until: in(250 * time.Millisecond), Of: OpStop}, PreStopped: true}}}},
		"a sandbox stopped": {Ledger{}, Outcome{Operation: op(OpStopSandbox)}, Ledger{Sandboxes: map[string]SandboxRecord{"id": {Stopped: true}}}},
		"a lost sandbox call keeps what it shows": {Ledger{Names: map[string]NameRecord{SandboxKey: {Backoff: Backoff{Failures: 2, Reason: "FailedCreatePodSandBox", Of: OpSandbox}}}}, Outcome{Operation: op(OpSandbox), Transport: true},
			Ledger{Names: map[string]NameRecord{SandboxKey: {Backoff: Backoff{Failures: 2, Until: in(time.Second), Reason: "FailedCreatePodSandBox", Of: OpSandbox}}}}},
		"volumes that failed do not count against the release": {Ledger{Names: map[string]NameRecord{VolumesKey: {Backoff: Backoff{Failures: 7, Reason: "FailedMount", Of: OpVolumes}}}}, Outcome{Operation: op(OpRelease), Err: "busy", Reason: "FailedUnmount"},
			Ledger{Names: map[string]NameRecord{VolumesKey: {Backoff: Backoff{Failures: 1, Until: in(time.Second), Reason: "FailedUnmount", Message: "busy", Of: OpRelease}}}}},
	} {
		tc.out.At = epoch
		before := fmt.Sprintf("%+v", tc.from)
		if got := Record(tc.from, tc.out, p, 0); !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s:\n got %+v\nwant %+v", name, got, tc.want)
		}
		if after := fmt.Sprintf("%+v", tc.from); after != before {
			t.Errorf("%s: the old ledger changed to %s", name, after)
		}
	}
}

func steadyInput(t testing.TB) Input {
	p, err := parsePod("inits=setup,proxy* main=app,web liveness=app,proxy startup=proxy")
	testutil.Must(t, err)
	w := newWorld(p, Decide)
	w.settle()
	if w.phase != pod.Syncing || len(w.bad) > 0 {
		t.Fatalf("does not come up: %v", w.bad)
	}
	deadline := int64(1_000_000)
	w.pod.Spec.ActiveDeadlineSeconds = &deadline
	w.observe()
	return w.input()
}

// A steadily running pod costs almost nothing: no operation, and at most one allocation.
func TestSteadyStateIsCheap(t *testing.T) {
	in := steadyInput(t)
	if out := Decide(in); len(out.Start) > 0 || out.WakeAt.IsZero() {
		t.Fatalf("not steady: %+v", out)
	}
	if n := testing.AllocsPerRun(100, func() { Decide(in) }); n > 1 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkDecideSteady(b *testing.B) {
	in := steadyInput(b)
	b.ReportAllocs()
	for b.Loop() {
		Decide(in)
	}
}

// Stops that are cut off until the grace period is long over, for example by a link that fails
// repeatedly, still send SIGTERM first. A container whose stops are never answered is killed in the
// end, and one that has to be killed at once is.
func TestStopsThatComeLate(t *testing.T) {
	p, err := parsePod("main=app")
	testutil.Must(t, err)
	decide := func(grace time.Duration, stops int) Plan {
		return Decide(Input{Now: epoch.Add(time.Hour), Pod: p, Phase: pod.Terminating, Volumes: VolumesReady,
			Terminate: &Terminate{At: epoch, Grace: grace, Cause: CauseDeleted},
			Ledger:    Ledger{Containers: map[string]ContainerRecord{"c": {Stops: stops, StopBegan: epoch, StopBy: epoch.Add(grace)}}},
			Observed: pod.Observed{Seq: 1, Sandboxes: []pod.Sandbox{{ID: "b", Ready: true}}, Containers: []pod.Container{
				{ID: "c", Name: "app", SandboxID: "b", State: pod.StateRunning}}}})
	}
	for _, tc := range []struct {
		grace time.Duration
		stops int
		want  time.Duration
	}{
		{5 * time.Second, 1, leastGrace},
		{5 * time.Second, stopsCutOff - 1, leastGrace},
		{5 * time.Second, stopsCutOff, 0},
		{0, 1, 0},
	} {
		out := decide(tc.grace, tc.stops)
		if len(out.Start) != 1 || out.Start[0].Kind != OpStop || out.Start[0].Grace != tc.want {
			t.Errorf("grace %v, %d stops before: %+v, want a stop with %v", tc.grace, tc.stops, out.Start, tc.want)
		} else if n := out.Ledger.Containers["c"].Stops; n != tc.stops+1 {
			t.Errorf("%d stops counted after %d", n, tc.stops)
		}
	}
}

// A sidecar whose turn comes after the pod's grace period gets leastGrace. Later decisions do not
// shorten it, unless the pod has to go at once.
func TestALateSidecarKeepsItsGrace(t *testing.T) {
	p, err := parsePod("inits=proxy* main=app")
	testutil.Must(t, err)
	over := epoch.Add(5 * time.Second)
	in := Input{Now: over.Add(time.Second), Pod: p, Phase: pod.Terminating, Volumes: VolumesReady,
		Terminate: &Terminate{At: epoch, Grace: 5 * time.Second, Cause: CauseDeleted},
		Observed: pod.Observed{Seq: 1, Sandboxes: []pod.Sandbox{{ID: "b", Ready: true}}, Containers: []pod.Container{
			{ID: "c", Name: "proxy", SandboxID: "b", State: pod.StateRunning}}}}
	out := Decide(in)
	if len(out.Start) != 1 || out.Start[0].Kind != OpStop || out.Start[0].Grace != leastGrace {
		t.Fatalf("%+v, want a stop with %v", out.Start, leastGrace)
	}
	in.Ledger, in.InFlight = out.Ledger, out.Start
	in.Now = in.Now.Add(time.Second / 2)
	if out := Decide(in); len(out.Cancel)+len(out.Start) != 0 {
		t.Errorf("half a second later: cancels %v and starts %v", out.Cancel, out.Start)
	}
	in.Terminate = &Terminate{At: in.Now, Cause: CauseDeleted}
	if out := Decide(in); len(out.Cancel) != 1 {
		t.Errorf("to go at once: cancels %v", out.Cancel)
	}
}
