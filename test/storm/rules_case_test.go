package storm

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/bowline-k8s/bowline/test/labtest"
)

var dawn = time.Date(2026, 3, 1, 6, 0, 0, 0, time.UTC)

func second(n int) time.Time { return dawn.Add(time.Duration(n) * time.Second) }

// ran is an instance of main of the pod u, by seconds; 0: that has not happened.
func ran(id string, attempt, created, started, exited, code int) labtest.Instance {
	i := labtest.Instance{ID: id, UID: "u", Pod: "p", Container: "main", Attempt: attempt, Created: second(created), Code: code}
	if started > 0 {
		i.Started = second(started)
	}
	if exited > 0 {
		i.Exited = second(exited)
	}
	return i
}

// version is a version of the pod u, as seen at a second.
func version(at int, change ...func(*v1.Pod)) labtest.Version {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u", Annotations: map[string]string{annotationEnds: "main=5"}},
		Spec: v1.PodSpec{RestartPolicy: v1.RestartPolicyAlways, Containers: []v1.Container{{Name: "main"}},
			InitContainers: []v1.Container{{Name: "init"}, {Name: "side", RestartPolicy: ptr.To(v1.ContainerRestartPolicyAlways)}}},
		Status: v1.PodStatus{
			Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}},
			ContainerStatuses: []v1.ContainerStatus{{Name: "main", ContainerID: "containerd://a", Ready: true,
				State: v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: metav1.NewTime(second(2))}}}},
		},
	}
	for _, c := range change {
		c(p)
	}
	return labtest.Version{Pod: p, At: second(at)}
}

func main0(p *v1.Pod) *v1.ContainerStatus { return &p.Status.ContainerStatuses[0] }

func unready(p *v1.Pod) {
	p.Status.Conditions[0].Status = v1.ConditionFalse
	main0(p).Ready = false
}

func another(p *v1.Pod) { main0(p).ContainerID, main0(p).RestartCount = "containerd://b", 1 }

func asked(p *v1.Pod) { // at second 50
	p.DeletionTimestamp = ptr.To(metav1.NewTime(second(60)))
	p.DeletionGracePeriodSeconds = ptr.To(int64(10))
}

func policy(r v1.RestartPolicy) func(*v1.Pod) { return func(p *v1.Pod) { p.Spec.RestartPolicy = r } }

// struckTwice is the trace of a pod whose container was struck once, ran on as another instance,
// and was deleted.
func struckTwice() *trace {
	return &trace{
		instances: []labtest.Instance{ran("a", 0, 1, 2, 20, 137), ran("b", 1, 21, 22, 55, 0)},
		lives: map[string]life{"u": {gone: second(58), versions: []labtest.Version{
			version(5), version(20, unready),
			version(25, another), version(50, another, asked),
		}}},
		strikes: []strike{{strikeKill, "u", "a", second(19)}},
	}
}

func TestRules(t *testing.T) {
	if bad := struckTwice().check(); len(bad) > 0 {
		t.Errorf("a life without fault: %q", bad)
	}
	last := func(e *trace, n int) *labtest.Instance { return &e.instances[n] }
	for name, c := range map[string]struct {
		change func(*trace)
		want   string // empty: nothing is wrong
	}{
		"not struck":             {func(e *trace) { e.strikes = nil }, "no one knows why"},
		"another was struck":     {func(e *trace) { e.strikes[0].id = "x" }, "no one knows why"},
		"struck afterwards":      {func(e *trace) { e.strikes[0].at = second(30) }, "no one knows why"},
		"with its sandbox":       {func(e *trace) { e.strikes[0] = strike{strikeSandbox, "u", "s", second(19)} }, ""},
		"by itself":              {func(e *trace) { e.strikes = nil; last(e, 0).Code = 5 }, ""},
		"with another code":      {func(e *trace) { e.strikes = nil; last(e, 0).Code = 6 }, "no one knows why"},
		"before it was asked to": {func(e *trace) { last(e, 1).Exited = second(40) }, "no one knows why"},
		"at the kill":            {func(e *trace) { e.strikes = nil; e.kills = []time.Time{second(19)} }, "no one knows why"},
		"start cut off": {func(e *trace) {
			e.strikes, e.kills = nil, []time.Time{second(3)}
			last(e, 0).Exited = second(4)
		}, ""},
		"two at once":                          {func(e *trace) { last(e, 1).Created = second(19) }, "had not ended before main"},
		"never ended":                          {func(e *trace) { last(e, 0).Exited = time.Time{} }, "had not ended before main"},
		"never started":                        {func(e *trace) { last(e, 0).Started, last(e, 0).Exited = time.Time{}, time.Time{} }, "never started"},
		"created while our process was killed": {createdAfterAKill(9), ""},
		"created long after a kill":            {createdAfterAKill(11), "never started"},
		"the same number":                      {func(e *trace) { last(e, 1).Attempt = 0 }, "no higher attempt"},
		"restarted, though never to be": {func(e *trace) {
			for n := range e.lives["u"].versions {
				policy(v1.RestartPolicyNever)(e.lives["u"].versions[n].Pod)
			}
		}, "there was to be none"},
		"restarted, though it succeeded": {func(e *trace) {
			for n := range e.lives["u"].versions {
				policy(v1.RestartPolicyOnFailure)(e.lives["u"].versions[n].Pod)
			}
			last(e, 0).Code = 0
		}, "there was to be none"},
		"a blip": {func(e *trace) {
			l := e.lives["u"]
			l.versions = append(l.versions[:1:1], version(10, unready), version(11), l.versions[1], l.versions[2], l.versions[3])
			e.lives["u"] = l
		}, "when no container of it had ended"},
		"a container's blip": {func(e *trace) {
			l := e.lives["u"]
			l.versions = append(l.versions[:1:1], version(10, func(p *v1.Pod) { main0(p).Ready = false }), version(11), l.versions[1], l.versions[2], l.versions[3])
			e.lives["u"] = l
		}, "and ran on"},
		"a restart too many": {func(e *trace) { main0(e.lives["u"].versions[2].Pod).RestartCount = 2 }, "has 2 restarts"},
		"gone too soon":      {func(e *trace) { last(e, 1).Exited = second(59) }, "the API object was gone"},
		"gone, and it runs":  {func(e *trace) { last(e, 1).Exited = time.Time{} }, "the API object was gone"},
		"a sandbox on its way out": {func(e *trace) {
			s := ran("s", 0, 1, 1, 59, 137)
			s.Sandbox, s.Container = true, ""
			e.instances = append(e.instances, s)
		}, "the API object was gone"},
		"a sandbox on its way out, of a pod that was done": {func(e *trace) {
			s := ran("s", 0, 1, 1, 59, 137)
			s.Sandbox, s.Container = true, ""
			e.instances = append(e.instances, s)
			e.lives["u"].versions[2].Status.Phase, e.lives["u"].versions[3].Status.Phase = v1.PodSucceeded, v1.PodSucceeded
		}, "the API object was gone"},
		"Pending again": {func(e *trace) {
			e.lives["u"].versions[1].Status.Phase = v1.PodRunning
			e.lives["u"].versions[2].Status.Phase = v1.PodPending
		}, "phase Pending after Running"},
		"initialised again": {func(e *trace) {
			e.strikes = []strike{{strikeSandbox, "u", "s", second(19)}}
			e.lives["u"].versions[1].Status.Phase = v1.PodRunning
			e.lives["u"].versions[2].Status.Phase = v1.PodPending
			e.lives["u"].versions[3].Status.Phase = v1.PodPending
		}, ""},
		"forced": {func(e *trace) {
			last(e, 1).Exited = second(70)
			e.strikes = append(e.strikes, strike{strikeForce, "u", "", second(50)})
		}, ""},
		"two of a name": {func(e *trace) {
			other := ran("c", 0, 54, 54, 0, 0)
			other.UID = "v"
			e.instances = append(e.instances, other)
		}, "had not ended before main"},
		"one after the other": {func(e *trace) {
			other := ran("c", 0, 56, 57, 0, 0)
			other.UID = "v"
			e.instances = append(e.instances, other)
		}, ""},
		"init again": {func(e *trace) {
			first, again := ran("i", 0, 1, 1, 1, 0), ran("j", 1, 30, 30, 31, 0)
			first.Container, again.Container = "init", "init"
			e.instances = append(e.instances, first, again)
		}, "ran again in the same sandbox"},
		"a sidecar that left early": {func(e *trace) {
			side := ran("s", 0, 1, 1, 15, 0)
			side.Container = "side"
			e.instances = append(e.instances, side)
		}, "no one knows why"},
		"a sandbox that ended": {func(e *trace) {
			s := ran("s", 0, 1, 1, 15, 0)
			s.Sandbox, s.Container = true, ""
			e.instances = append(e.instances, s)
		}, "the sandbox of p"},
		"a sandbox of a pod whose only start was cut off":           {startCutOff(4, v1.RestartPolicyNever), ""},
		"a sandbox of a pod whose only start was cut off later":     {startCutOff(16, v1.RestartPolicyNever), "the sandbox of p"},
		"a sandbox of a pod that starts again after it was cut off": {startCutOff(4, v1.RestartPolicyOnFailure), "the sandbox of p"},
		"a sandbox of a pod that was created and not cut off":       {startCutOff(300, v1.RestartPolicyNever), "the sandbox of p"},
	} {
		e := struckTwice()
		c.change(e)
		bad := strings.Join(e.check(), "; ")
		if c.want == "" && bad != "" || !strings.Contains(bad, c.want) {
			t.Errorf("%s: got %q, want one with %q", name, bad, c.want)
		}
	}
}

// createdAfterAKill changes the first instance of a trace: it never started, and the runtime created it
// this many seconds after our process was killed.
func createdAfterAKill(seconds int) func(*trace) {
	return func(e *trace) {
		i := &e.instances[0]
		i.Started, i.Exited, e.strikes = time.Time{}, time.Time{}, nil
		e.kills = []time.Time{i.Created.Add(-time.Duration(seconds) * time.Second)}
		for _, v := range e.lives["u"].versions {
			unready(v.Pod)
		}
	}
}

// startCutOff makes a trace one of a pod whose container was created at second 3 and never started, and
// whose sandbox ended at second 15. Our process was killed at second killed.
func startCutOff(killed int, p v1.RestartPolicy) func(*trace) {
	return func(e *trace) {
		s := ran("s", 0, 1, 2, 15, 137)
		s.Sandbox, s.Container = true, ""
		*e = trace{instances: []labtest.Instance{s, ran("a", 0, 3, 0, 0, 0)}, kills: []time.Time{second(killed)},
			lives: map[string]life{"u": {versions: []labtest.Version{version(3, unready, policy(p), func(p *v1.Pod) {
				main0(p).ContainerID, main0(p).State = "", v1.ContainerState{Waiting: &v1.ContainerStateWaiting{}}
			})}}}}
	}
}

// TestTruthOfACancelledStart: a pod was over while its sidecar was restarted.
func TestTruthOfACancelledStart(t *testing.T) {
	for name, c := range map[string]struct {
		change func(e *trace, c *v1.ContainerStatus)
		want   string
	}{
		"true":                     {func(*trace, *v1.ContainerStatus) {}, ""},
		"main runs on":             {func(e *trace, _ *v1.ContainerStatus) { e.instances[0].Exited = time.Time{} }, "never started"},
		"main ended much later":    {func(e *trace, _ *v1.ContainerStatus) { e.instances[0].Exited = second(60) }, "never started"},
		"it waits":                 {func(_ *trace, c *v1.ContainerStatus) { c.State = v1.ContainerState{} }, "cancelled, and its status"},
		"another's end":            {func(_ *trace, c *v1.ContainerStatus) { c.State.Terminated.ContainerID = "containerd://x" }, "cancelled, and its status"},
		"an end that it never had": {func(_ *trace, c *v1.ContainerStatus) { c.State.Terminated.Reason = "Completed" }, "cancelled, and its status"},
		"no end before":            {func(_ *trace, c *v1.ContainerStatus) { c.LastTerminationState.Terminated = nil }, "its end is not reported"},
		"another restart count":    {func(_ *trace, c *v1.ContainerStatus) { c.RestartCount = 0 }, "0 restarts are reported"},
		"the runtime gave it up as our process was killed": {func(e *trace, c *v1.ContainerStatus) {
			e.kills = []time.Time{second(20)}
			c.State.Terminated.ExitCode, c.State.Terminated.Reason = 128, "StartError"
		}, ""},
		"a regular container alike": {func(e *trace, _ *v1.ContainerStatus) {
			e.instances[0].Started, e.instances[0].Exited = time.Time{}, time.Time{}
		}, "main of p: it was never started"},
	} {
		x, y := ran("x", 0, 1, 2, 18, 3), ran("y", 1, 19, 0, 0, 0)
		x.Container, y.Container = "side", "side"
		e := &trace{instances: []labtest.Instance{ran("a", 0, 3, 4, 22, 0), x, y}}
		p := version(30, policy(v1.RestartPolicyNever), func(p *v1.Pod) {
			main0(p).State = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ContainerID: "containerd://a", FinishedAt: metav1.NewTime(second(22))}}
			p.Status.InitContainerStatuses = []v1.ContainerStatus{{
				Name: "side", ContainerID: "containerd://y", RestartCount: 1,
				State:                v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ContainerID: "containerd://y", ExitCode: 137, Reason: "ContainerStatusUnknown"}},
				LastTerminationState: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ContainerID: "containerd://x", ExitCode: 3, FinishedAt: metav1.NewTime(second(18))}},
			}}
		}).Pod
		c.change(e, &p.Status.InitContainerStatuses[0])
		bad := strings.Join(e.truth(p), "; ")
		if c.want == "" && bad != "" || !strings.Contains(bad, c.want) {
			t.Errorf("%s: got %q, want one with %q", name, bad, c.want)
		}
	}
}

func TestTruth(t *testing.T) {
	good := func() (*trace, *v1.Pod) {
		e := &trace{instances: []labtest.Instance{ran("a", 0, 1, 2, 20, 137), ran("b", 1, 21, 22, 0, 0)}}
		p := version(30, func(p *v1.Pod) {
			c := main0(p)
			c.ContainerID, c.RestartCount = "containerd://b", 1
			c.State.Running.StartedAt = metav1.NewTime(second(22))
			c.LastTerminationState.Terminated = &v1.ContainerStateTerminated{ContainerID: "containerd://a", ExitCode: 137, FinishedAt: metav1.NewTime(second(20))}
		}).Pod
		p.UID = types.UID("u")
		return e, p
	}
	for name, c := range map[string]struct {
		change func(e *trace, c *v1.ContainerStatus)
		want   string
	}{
		"true":             {func(*trace, *v1.ContainerStatus) {}, ""},
		"another instance": {func(_ *trace, c *v1.ContainerStatus) { c.ContainerID = "containerd://a" }, "its instance is reported to be"},
		"other restarts":   {func(_ *trace, c *v1.ContainerStatus) { c.RestartCount = 2 }, "2 restarts are reported"},
		"another start":    {func(_ *trace, c *v1.ContainerStatus) { c.State.Running.StartedAt = metav1.NewTime(second(2)) }, "it started at"},
		"no end before":    {func(_ *trace, c *v1.ContainerStatus) { c.LastTerminationState.Terminated = nil }, "its end is not reported"},
		"another code":     {func(_ *trace, c *v1.ContainerStatus) { c.LastTerminationState.Terminated.ExitCode = 1 }, "the reported end is"},
		"another end": {func(_ *trace, c *v1.ContainerStatus) {
			c.LastTerminationState.Terminated.FinishedAt = metav1.NewTime(second(9))
		}, "it ended at"},
		"it has ended": {func(e *trace, _ *v1.ContainerStatus) { e.instances[1].Exited = second(25) }, "the reported end is"},
		"it waits": {func(_ *trace, c *v1.ContainerStatus) {
			c.State = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{}}
		}, "it runs, and its status"},
		"never created": {func(e *trace, _ *v1.ContainerStatus) { e.instances = nil }, "never created"},
		"an end of one that never began": {func(e *trace, c *v1.ContainerStatus) {
			c.LastTerminationState.Terminated = nil
			e.instances[0].Started, e.instances[0].Exited, e.kills = time.Time{}, time.Time{}, []time.Time{second(2)}
		}, ""},
		"an end of none": {func(e *trace, _ *v1.ContainerStatus) { e.instances = e.instances[1:] }, "never ended"},
	} {
		e, p := good()
		c.change(e, main0(p))
		bad := strings.Join(e.truth(p), "; ")
		if c.want == "" && bad != "" || !strings.Contains(bad, c.want) {
			t.Errorf("%s: got %q, want one with %q", name, bad, c.want)
		}
	}
}
