package chaos

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// version returns a version of a good pod, with changes.
func version(phase v1.PodPhase, change ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{Status: v1.PodStatus{Phase: phase,
		InitContainerStatuses: []v1.ContainerStatus{{Name: "init", ContainerID: "i"}},
		ContainerStatuses:     []v1.ContainerStatus{{Name: "main", ContainerID: "m"}},
		Conditions: []v1.PodCondition{
			{Type: v1.PodInitialized, Status: v1.ConditionTrue}, {Type: v1.PodReady, Status: v1.ConditionTrue}},
	}}
	ended := v1.ContainerState{Terminated: &v1.ContainerStateTerminated{Reason: "Completed"}}
	p.Status.InitContainerStatuses[0].State = ended
	if phase == v1.PodRunning {
		p.Status.ContainerStatuses[0].State.Running = &v1.ContainerStateRunning{}
		p.Status.ContainerStatuses[0].Ready = true
	} else {
		now := metav1.NewTime(time.Unix(100, 0))
		p.DeletionTimestamp = &now
		p.Status.ContainerStatuses[0].State = ended
		p.Status.Conditions[1].Status = v1.ConditionFalse
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func good() trace {
	return trace{
		versions: []*v1.Pod{version(v1.PodRunning), version(v1.PodSucceeded)},
		lines:    parseLines("init enter a\ninit leave a\nmain enter b\npostStart\nreadiness\npreStop\nmain leave b\n"),
		creates:  3, starts: 3,
	}
}

func TestRules(t *testing.T) {
	if bad := good().check(); len(bad) > 0 {
		t.Errorf("a good life: %q", bad)
	}
	main := func(p *v1.Pod) *v1.ContainerStatus { return &p.Status.ContainerStatuses[0] }
	lines := func(text string) func(*trace) { return func(e *trace) { e.lines = parseLines(text) } }
	then := func(p *v1.Pod) func(*trace) {
		return func(e *trace) { e.versions = []*v1.Pod{e.versions[0], p, e.versions[1]} }
	}
	kill := &fault{call: call{label: "cri/StopContainer"}, point: "before", action: "kill"}
	for name, c := range map[string]struct {
		change func(*trace)
		want   string
	}{
		"started twice":        {lines("init enter a\ninit leave a\nmain enter b\npostStart\npreStop\nmain leave b\nmain enter c\nmain leave c"), `2 times "main enter"`},
		"two at once":          {lines("init enter a\ninit leave a\nmain enter b\npostStart\nmain enter c\npreStop\nmain leave b\nmain leave c"), "had not ended before main"},
		"before init":          {lines("main enter b\npostStart\ninit enter a\ninit leave a\npreStop\nmain leave b"), "before init had left"},
		"init again":           {lines("init enter a\ninit leave a\ninit enter z\ninit leave z\nmain enter b\npostStart\npreStop\nmain leave b"), `2 times "init enter"`},
		"killed without grace": {lines("init enter a\ninit leave a\nmain enter b\npostStart\npreStop"), `0 times "main leave"`},
		"no hook":              {lines("init enter a\ninit leave a\nmain enter b\npreStop\nmain leave b"), "postStart ran 0 times"},
		"no preStop, killed": {func(e *trace) {
			e.fault = kill
			e.lines = parseLines("init enter a\ninit leave a\nmain enter b\npostStart\nmain leave b")
		}, "preStop ran 0 times"},
		"gone too soon":     {func(e *trace) { e.inside = 1 }, "before 1 containers had left"},
		"another task":      {func(e *trace) { e.starts = 4 }, "started 4 tasks"},
		"too many made":     {func(e *trace) { e.creates = 5 }, "created 5 containers"},
		"phase":             {then(version(v1.PodPending)), "phase Pending after Running"},
		"restart":           {then(version(v1.PodRunning, func(p *v1.Pod) { main(p).RestartCount = 1 })), "main has 1 restarts"},
		"unready":           {then(version(v1.PodRunning, func(p *v1.Pod) { p.Status.Conditions[1].Status = v1.ConditionFalse })), "condition Ready is lost"},
		"container unready": {then(version(v1.PodRunning, func(p *v1.Pod) { main(p).Ready = false })), "main: not ready any more"},
		"waits again": {then(version(v1.PodRunning, func(p *v1.Pod) {
			main(p).State = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ContainerCreating"}}
		})), "state waiting (ContainerCreating) after running"},
		"another instance": {then(version(v1.PodRunning, func(p *v1.Pod) { main(p).ContainerID = "n" })), `instance "n" after "m"`},
		"another start":    {then(version(v1.PodRunning, func(p *v1.Pod) { main(p).State.Running.StartedAt = metav1.NewTime(time.Unix(9, 0)) })), "started at"},
		"no status":        {then(version(v1.PodRunning, func(p *v1.Pod) { p.Status.ContainerStatuses = nil })), "container main has no status any more"},
		"failed":           {func(e *trace) { e.versions[1].Status.Phase = v1.PodFailed }, "the pod failed"},
		"no last word":     {func(e *trace) { e.versions = e.versions[:1] }, "does not say that main completed"},
		"by a signal": {func(e *trace) {
			main(e.versions[1]).State.Terminated.ExitCode = 137
		}, "does not say that main completed"},
		"never Ready": {func(e *trace) { e.versions = []*v1.Pod{version(v1.PodSucceeded)} }, "condition Ready was never true"},
		"thrice, though cut": {func(e *trace) {
			e.cut = true
			e.lines = parseLines("init enter a\ninit enter b\ninit enter c\ninit leave c\nmain enter d\npostStart\npreStop\nmain leave d")
		}, `3 times "init enter"`},
	} {
		e := good()
		c.change(&e)
		if bad := strings.Join(e.check(), "; "); !strings.Contains(bad, c.want) {
			t.Errorf("%s: got %q, want one with %q", name, bad, c.want)
		}
	}
}

func TestCutStart(t *testing.T) {
	const begin = "begin\narm id=1,label=x,point=before\ncall cri/StartContainer a\n"
	for name, c := range map[string]struct {
		log  string
		want bool
	}{
		"in flight":       {begin + "call host/List b\nstrike host/List b\n", true},
		"answered":        {begin + "done cri/StartContainer a\ncall host/List b\nstrike host/List b\n", false},
		"not sent":        {begin + "strike cri/StartContainer a\n", false},
		"killed unawares": {begin + "begin\ncall host/List b\n", true},
		"ended in peace":  {begin + "done cri/StartContainer a\nbegin\ncall host/List b\n", false},
		"during":          {"begin\narm id=1,point=during\ncall cri/StartContainer a\nstrike cri/StartContainer a\n", true},
		"no strike":       {begin, false},
	} {
		if got := cutStart(parseCalls(c.log), startContainer); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
