package prober

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
)

// commands answers exec probes by the command's first word, and records the time of each call.
type commands struct {
	mu     sync.Mutex
	answer map[string]func(ctx context.Context) (cri.ExecResult, error)
	asked  map[string][]time.Time
}

func (c *commands) ExecSync(ctx context.Context, id string, cmd []string, _ time.Duration) (cri.ExecResult, error) {
	c.mu.Lock()
	c.asked[cmd[0]] = append(c.asked[cmd[0]], time.Now())
	f := c.answer[cmd[0]]
	c.mu.Unlock()
	return f(ctx)
}

func (c *commands) set(name string, f func(ctx context.Context) (cri.ExecResult, error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer[name] = f
}

func (c *commands) times(name string) []time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked[name]
}

func good(context.Context) (cri.ExecResult, error) { return cri.ExecResult{}, nil }
func bad(context.Context) (cri.ExecResult, error) {
	return cri.ExecResult{ExitCode: 1, Stdout: []byte("sick")}, nil
}
func linkDown(context.Context) (cri.ExecResult, error) {
	return cri.ExecResult{}, &cri.Error{Method: "ExecSync", Kind: cri.KindTransport, Err: errors.New("gone")}
}

// bench is a manager under test, in a synctest bubble.
type bench struct {
	*Manager
	commands
	mu     sync.Mutex
	events []string
	pod    *v1.Pod
	seq    uint64
}

func (b *bench) eventCount(part string) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.events {
		if strings.Contains(e, part) {
			n++
		}
	}
	return n
}

type noDialer struct{}

func (noDialer) Dial(context.Context, string, string) (net.Conn, error) {
	return nil, errors.New("no network in this test")
}

func start(t *testing.T) *bench {
	b := &bench{commands: commands{answer: map[string]func(context.Context) (cri.ExecResult, error){}, asked: map[string][]time.Time{}}}
	m, err := New(Config{Exec: &b.commands, Dialer: noDialer{}, Random: func() float64 { return 0.5 },
		Event: func(_ *v1.Pod, container, kind, reason, message string) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.events = append(b.events, container+" "+kind+" "+reason+" "+message)
		}})
	testutil.Must(t, err)
	b.Manager = m
	b.pod = &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "uid"}}
	stop := testutil.Go(t.Context(), m.Run)
	t.Cleanup(func() { _ = stop() })
	return b
}

func probeOf(command string, tune func(*v1.Probe)) *v1.Probe {
	p := &v1.Probe{ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{command}}},
		PeriodSeconds: 10, TimeoutSeconds: 1, SuccessThreshold: 1, FailureThreshold: 3}
	if tune != nil {
		tune(p)
	}
	return p
}

// running reports to the manager that container c runs as id since started.
func (b *bench) running(id string, started time.Time) {
	b.seq++
	b.Sync(b.pod, pod.Observed{Seq: b.seq, Containers: []pod.Container{{ID: id, Name: "c", State: pod.StateRunning, StartedAt: started}}}, []string{"10.0.0.5"})
}

func (b *bench) verdict(id string) pod.Verdicts { return b.Verdicts("uid")[id] }

func TestReadyAsSoonAsTheContainerIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.set("r", bad)
		b.pod.Spec.Containers = []v1.Container{{Name: "c", ReadinessProbe: probeOf("r", nil)}}
		began := time.Now()
		b.running("1", began)
		if v := b.verdict("1"); v.Readiness != pod.VerdictFailure || v.Liveness != pod.VerdictSuccess || v.Startup != pod.VerdictSuccess {
			t.Errorf("at the start: %+v", v)
		}
		time.Sleep(2 * time.Second)
		b.set("r", good)
		uid := <-b.Updates()
		if b.verdict("1").Readiness != pod.VerdictSuccess || uid != "uid" || time.Since(began) > 4*time.Second {
			t.Errorf("ready after %v: %+v", time.Since(began), b.verdict("1"))
		}
		if n := b.eventCount(""); n != 0 {
			t.Errorf("events while it came up: %v", b.events)
		}
		n := len(b.times("r"))
		time.Sleep(65 * time.Second)
		if got := len(b.times("r")) - n; got != 6 {
			t.Errorf("%d runs a minute once ready", got)
		}
	})
}

func TestNotReadyAfterThreeFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.set("r", good)
		b.pod.Spec.Containers = []v1.Container{{Name: "c", ReadinessProbe: probeOf("r", nil)}}
		b.running("1", time.Now())
		time.Sleep(11 * time.Second)
		b.set("r", bad)
		time.Sleep(20 * time.Second)
		if b.verdict("1").Readiness != pod.VerdictSuccess {
			t.Error("not ready after two failures")
		}
		time.Sleep(10 * time.Second)
		if b.verdict("1").Readiness != pod.VerdictFailure {
			t.Error("ready after three failures")
		}
		if b.eventCount("c Warning Unhealthy Readiness probe failed: sick") != 3 {
			t.Errorf("events %q", b.events)
		}
		b.set("r", good)
		time.Sleep(10 * time.Second)
		if b.verdict("1").Readiness != pod.VerdictSuccess {
			t.Error("not ready again")
		}
	})
}

func TestStartupGatesTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.set("s", bad)
		b.set("l", good)
		b.set("r", good)
		b.pod.Spec.Containers = []v1.Container{{Name: "c",
			StartupProbe: probeOf("s", nil), LivenessProbe: probeOf("l", nil), ReadinessProbe: probeOf("r", nil)}}
		b.running("1", time.Now())
		time.Sleep(25 * time.Second) // two of three failures that count
		if v := b.verdict("1"); v.Startup != pod.VerdictUnknown || len(b.times("l"))+len(b.times("r")) != 0 {
			t.Fatalf("%+v, liveness asked %d times", v, len(b.times("l")))
		}
		b.set("s", good)
		time.Sleep(6 * time.Second)
		if v := b.verdict("1"); v.Startup != pod.VerdictSuccess || v.Readiness != pod.VerdictSuccess {
			t.Errorf("started: %+v", v)
		}
		n := len(b.times("s"))
		time.Sleep(time.Minute)
		if len(b.times("s")) != n {
			t.Error("startup is asked after it succeeded")
		}
		if len(b.times("l")) < 5 {
			t.Errorf("liveness asked %d times", len(b.times("l")))
		}
	})
}

// A container has failureThreshold × period to start, never less.
func TestStartupGetsItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.set("s", bad)
		grace := int64(7)
		b.pod.Spec.Containers = []v1.Container{{Name: "c", StartupProbe: probeOf("s", func(p *v1.Probe) { p.TerminationGracePeriodSeconds = &grace })}}
		began := time.Now()
		b.running("1", began)
		for b.verdict("1").Startup != pod.VerdictFailure {
			<-b.Updates()
		}
		if d := time.Since(began); d != 30*time.Second {
			t.Errorf("given up after %v", d)
		}
		if v := b.verdict("1"); v.LivenessGrace == nil || *v.LivenessGrace != 7 || v.Message != "sick" {
			t.Errorf("%+v", v)
		}
	})
}

func TestLivenessHoldsUntilANewContainer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.set("l", bad)
		b.pod.Spec.Containers = []v1.Container{{Name: "c", LivenessProbe: probeOf("l", func(p *v1.Probe) { p.InitialDelaySeconds = 30 })}}
		began := time.Now()
		b.running("1", began)
		time.Sleep(2 * time.Minute)
		asked := b.times("l")
		if len(asked) != 3 || asked[0].Sub(began) != 35*time.Second { // the delay and half a period
			t.Fatalf("asked at %v", asked)
		}
		if v := b.verdict("1"); v.Liveness != pod.VerdictFailure || v.LivenessGrace != nil || v.Message != "sick" {
			t.Errorf("%+v", v)
		}
		b.set("l", good)
		b.running("2", time.Now())
		if _, old := b.Verdicts("uid")["1"]; old || b.verdict("2").Liveness != pod.VerdictUnknown {
			t.Errorf("%+v", b.Verdicts("uid"))
		}
		time.Sleep(time.Minute)
		if b.verdict("2").Liveness != pod.VerdictSuccess {
			t.Error("the new container is not asked")
		}
	})
}

func TestALostLinkIsNoResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.set("r", good)
		b.set("l", good)
		b.pod.Spec.Containers = []v1.Container{{Name: "c", ReadinessProbe: probeOf("r", nil), LivenessProbe: probeOf("l", nil)}}
		b.running("1", time.Now())
		time.Sleep(15 * time.Second)
		before := b.verdict("1")
		b.set("r", linkDown)
		b.set("l", linkDown)
		b.Sync(b.pod, pod.Observed{Seq: 99, Stale: "link down"}, nil)
		time.Sleep(time.Hour)
		if got := b.verdict("1"); got != before || got.Liveness != pod.VerdictSuccess {
			t.Errorf("%+v before the link went, %+v after an hour", before, got)
		}
		if b.eventCount("") != 0 {
			t.Errorf("events %q", b.events[:1])
		}
	})
}

func TestAdoptedReadinessDoesNotBlink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		for _, name := range []string{"s", "r"} {
			b.set(name, bad)
		}
		yes := true
		b.pod.Spec.Containers = []v1.Container{{Name: "c", StartupProbe: probeOf("s", nil), ReadinessProbe: probeOf("r", nil)}}
		b.pod.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "c", ContainerID: "containerd://1", Ready: true, Started: &yes,
			State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}}
		began := time.Now()
		b.running("1", began.Add(-time.Hour))
		if v := b.verdict("1"); v.Readiness != pod.VerdictSuccess || v.Startup != pod.VerdictSuccess {
			t.Fatalf("adopted as %+v", v)
		}
		time.Sleep(24 * time.Second)
		if asked := b.times("r"); asked[0].Sub(began) != 5*time.Second || len(asked) != 2 {
			t.Errorf("asked at %v, want half a period after our start and once a period", asked)
		}
		if b.verdict("1").Readiness != pod.VerdictSuccess || len(b.times("s")) != 0 {
			t.Error("changed before three failures")
		}
		time.Sleep(2 * time.Second)
		if b.verdict("1").Readiness != pod.VerdictFailure {
			t.Error("three failures are not counted")
		}

		// Adopt alone has the same effect; a new instance inherits nothing.
		b.pod = b.pod.DeepCopy()
		b.pod.UID, b.pod.Status = "uid2", v1.PodStatus{}
		b.Adopt("2", true)
		b.running("2", began.Add(-time.Hour))
		if v := b.Verdicts("uid2")["2"]; v.Readiness != pod.VerdictSuccess || v.Startup != pod.VerdictSuccess {
			t.Errorf("adopted as %+v", v)
		}
		b.running("3", time.Now())
		if v := b.Verdicts("uid2")["3"]; v.Readiness != pod.VerdictFailure || v.Startup != pod.VerdictUnknown {
			t.Errorf("a new instance is %+v", v)
		}
	})
}

func TestStopLeavesReadinessAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.set("r", good)
		b.set("l", good)
		b.pod.Spec.Containers = []v1.Container{{Name: "c", ReadinessProbe: probeOf("r", nil), LivenessProbe: probeOf("l", nil)}}
		b.running("1", time.Now())
		time.Sleep(16 * time.Second)
		b.Stop("uid")
		b.set("r", bad)
		b.set("l", bad)
		n := len(b.times("l"))
		time.Sleep(time.Minute)
		if v := b.verdict("1"); v.Readiness != pod.VerdictFailure || v.Liveness != pod.VerdictSuccess || len(b.times("l")) != n {
			t.Errorf("%+v, liveness asked %d times more", v, len(b.times("l"))-n)
		}
		if b.eventCount("") != 0 {
			t.Errorf("events of a pod that ends: %q", b.events)
		}
	})
}

func TestForgetCutsOffARun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		ended := make(chan struct{})
		b.set("r", func(ctx context.Context) (cri.ExecResult, error) {
			<-ctx.Done()
			close(ended)
			return cri.ExecResult{}, ctx.Err()
		})
		b.pod.Spec.Containers = []v1.Container{{Name: "c", ReadinessProbe: probeOf("r", nil)}}
		b.running("1", time.Now())
		synctest.Wait()
		b.Forget("uid")
		<-ended
		time.Sleep(time.Hour)
		if len(b.Verdicts("uid")) != 0 || len(b.times("r")) != 1 || b.eventCount("") != 0 {
			t.Errorf("verdicts %v, asked %d times, events %q", b.Verdicts("uid"), len(b.times("r")), b.events)
		}
	})
}

func TestABrokenProbeIsNoResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.set("l", func(context.Context) (cri.ExecResult, error) {
			return cri.ExecResult{}, &cri.Error{Method: "ExecSync", Err: errors.New("no such file")}
		})
		b.pod.Spec.Containers = []v1.Container{{Name: "c", LivenessProbe: probeOf("l", nil)}}
		b.running("1", time.Now())
		time.Sleep(59 * time.Second)
		if v := b.verdict("1"); v.Liveness != pod.VerdictUnknown || len(b.times("l")) != 6*maxTries {
			t.Errorf("%+v after %d tries", v, len(b.times("l")))
		}
		if b.eventCount("Liveness probe errored and resulted in unknown state: ") != 6 {
			t.Errorf("events %q", b.events)
		}
	})
}

func TestInitContainersAreNotProbedAndSidecarsAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.set("r", good)
		always := v1.ContainerRestartPolicyAlways
		b.pod.Spec.InitContainers = []v1.Container{{Name: "i", ReadinessProbe: probeOf("never", nil)}, {Name: "s", RestartPolicy: &always, ReadinessProbe: probeOf("r", nil)}}
		b.pod.Spec.Containers = []v1.Container{{Name: "c", ReadinessProbe: probeOf("r", nil)}}
		b.Sync(b.pod, pod.Observed{Seq: 1, Containers: []pod.Container{
			{ID: "i", Name: "i", State: pod.StateRunning, StartedAt: time.Now()},
			{ID: "s", Name: "s", State: pod.StateRunning, StartedAt: time.Now()},
			{ID: "c", Name: "c", State: pod.StateExited},
		}}, nil)
		time.Sleep(time.Second)
		v := b.Verdicts("uid")
		if len(v) != 2 || v["i"].Readiness != pod.VerdictSuccess || v["s"].Readiness != pod.VerdictSuccess || len(b.times("r")) != 1 {
			t.Errorf("%+v", v)
		}
	})
}
