package syncloop_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/syncloop"
	"github.com/bowline-k8s/bowline/syncloop/shutdown"
	"github.com/bowline-k8s/bowline/syncloop/shutdown/order"
)

// machineInit is the host's init system as package shutdown asks it.
type machineInit struct {
	hints    chan struct{}
	going    chan bool // of one: the answer
	released chan struct{}
}

func (i *machineInit) Delay() time.Duration          { return time.Hour }
func (i *machineInit) Hints() <-chan struct{}        { return i.hints }
func (i *machineInit) Hold(context.Context) error    { return nil }
func (i *machineInit) Release(context.Context) error { close(i.released); return nil }
func (i *machineInit) Ended() <-chan struct{}        { return nil }
func (i *machineInit) Err() error                    { return nil }
func (i *machineInit) Close() error                  { return nil }
func (i *machineInit) Preparing(context.Context) (bool, error) {
	g := <-i.going
	i.going <- g
	return g, nil
}

func (i *machineInit) say(going bool) {
	<-i.going
	i.going <- going
	i.hints <- struct{}{}
}

type loopPods struct{ *syncloop.Loop }

func (l loopPods) Known() bool                        { return l.AllKnown() }
func (l loopPods) End(p *v1.Pod, grace time.Duration) { l.EndForShutdown(p.UID, grace) }
func (l loopPods) Over(p *v1.Pod) bool                { return l.State(p.UID).Released() }
func (l loopPods) Reported(p *v1.Pod) bool            { return !l.State(p.UID).Managed }

// watchShutdown runs the shutdown manager for the running node; stop ends it.
func (w *world) watchShutdown() (i *machineInit, stop func()) {
	w.t.Helper()
	i = &machineInit{hints: make(chan struct{}), going: make(chan bool, 1), released: make(chan struct{})}
	i.going <- false
	m, err := shutdown.New(shutdown.Config{
		Open:   func(context.Context) (shutdown.Session, error) { return i, nil },
		Absent: func(error) bool { return false },
		BootID: func(context.Context) (string, error) { return "boot", nil },
		Pods:   loopPods{w.node.loop}, Periods: order.Simple(time.Hour, time.Minute),
		Event: func(kind, reason, message string) { recorder{w}.Event(nil, kind, reason, message) }, Changed: w.goingDown.Store,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), w.node.log))
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	return i, func() {
		w.t.Helper()
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			w.t.Error(err)
		}
	}
}

func (w *world) untilFailed(name, reason, message string) {
	w.t.Helper()
	w.until("pod "+name+" has failed", func() bool { p := w.api.pod(name); return p != nil && p.Status.Phase == v1.PodFailed })
	if st := w.api.pod(name).Status; st.Reason != reason || st.Message != message {
		w.t.Errorf("%s has ended as %s %q", name, st.Reason, st.Message)
	}
}

// All pods of the node end, running or waiting; finished ones stay as they are. The host goes down
// when the API server has the statuses. After the reboot, ended pods stay ended for their
// controllers to see, except static pods, which no controller recreates.
func TestShutdownOfTheMachine(t *testing.T) {
	w := newParallelWorld(t)
	w.manifests, w.admitting = t.TempDir(), oneCPU()
	w.up()
	w.write("static.yaml", newPod("static"), "")
	w.api.create(newPod("web"))
	w.api.create(with(newPod("done", "exit 0"), func(p *v1.Pod) { p.Spec.RestartPolicy = v1.RestartPolicyNever }))
	w.api.create(with(newPod("waits"), func(p *v1.Pod) {
		p.Spec.Containers[0].EnvFrom = []v1.EnvFromSource{{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "none"}}}}
	}))
	w.api.create(with(newPod("critical"), func(p *v1.Pod) { high := int32(2_000_000_000); p.Spec.Priority = &high }))
	for _, name := range []string{"web", "critical", "static-node"} {
		w.untilReady(name)
	}
	w.until("done is done", func() bool { return w.api.pod("done").Status.Phase == v1.PodSucceeded })
	w.until("waits waits", func() bool { return waitingReason(w.api.pod("waits"), "app") == "CreateContainerConfigError" })

	i, stop := w.watchShutdown()
	i.say(true)
	select {
	case <-i.released:
	case <-time.After(time.Minute):
		t.Fatal("the machine still waits")
	}
	// The shutdown was released, so all statuses have been written.
	const message = "Pod was terminated in response to imminent node shutdown."
	for _, name := range []string{"web", "waits", "critical", "static-node"} {
		st := w.api.pod(name).Status
		at := slices.IndexFunc(st.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.DisruptionTarget })
		if st.Phase != v1.PodFailed || st.Reason != "Terminated" || st.Message != message || at < 0 ||
			st.Conditions[at].Status != v1.ConditionTrue || st.Conditions[at].Reason != "TerminationByKubelet" || st.Conditions[at].Message != message {
			t.Errorf("%s has ended as %+v", name, st)
		}
	}
	if st := w.api.pod("done").Status; st.Phase != v1.PodSucceeded || st.Reason != "" {
		t.Errorf("done has ended as %+v", st)
	}
	if web, critical := w.finished("web"), w.finished("critical"); !web.Before(critical) {
		t.Errorf("web ended at %s, critical at %s", web, critical)
	}
	for _, text := range []string{"Normal NodeShutdown Shutdown manager detected shutdown event"} {
		w.wantEvent(text)
	}
	// Pods that arrive now are rejected, from any source.
	const rejected = "Pod was rejected: Pod was rejected as the node is shutting down."
	w.api.create(newPod("late"))
	w.write("later.yaml", newPod("later"), "")
	w.untilFailed("late", "NodeShutdown", rejected)
	w.untilFailed("later-node", "NodeShutdown", rejected)

	starts := w.rt.Count(fake.OpStart, "app")
	i.say(false)
	w.untilReady("static-node")
	w.untilReady("later-node")
	w.createReady(newPod("next"))
	if n := w.rt.Count(fake.OpStart, "app"); n != starts+3 {
		t.Errorf("%d containers were started, want those of the static pods and of next", n-starts)
	}
	stop()
	w.down()
	w.up() // another process does not restart what has ended either
	w.until("the new process has seen the pods", func() bool { _, ok := w.node.loop.Why(namespace, "next"); return ok })
	w.untilSettled("next")
	w.untilSettled("static-node")
	w.untilFailed("web", "Terminated", message)
	w.untilFailed("late", "NodeShutdown", rejected)
	if n := w.rt.Count(fake.OpStart, "app"); n != starts+3 {
		t.Errorf("the next process has started %d containers", n-starts-3)
	}
	w.remove("static.yaml", "later.yaml")
	for _, name := range w.api.names() {
		if !strings.HasSuffix(name, "-node") {
			w.api.delete(name, 1)
		}
	}
	w.untilGone()
}

// finished returns when the runtime saw the end of the pod's container.
func (w *world) finished(name string) time.Time {
	for _, e := range w.rt.Log() {
		if e.Op == fake.OpExit && strings.Contains(e.Pod, name) {
			return e.Time
		}
	}
	w.t.Errorf("the container of %s has not ended", name)
	return time.Time{}
}

// A pod that is being deleted when the shutdown begins gets no more time than the shutdown allows,
// and is waited for.
func TestShutdownShortensADeletion(t *testing.T) {
	w := up(t)
	p := w.createReady(with(newPod("stubborn", "ignore-term", "wait"), func(p *v1.Pod) { *p.Spec.TerminationGracePeriodSeconds = 3600 }))
	w.api.delete("stubborn", 3600)
	w.until("it is asked to end", func() bool { return w.at(fake.OpTerm, "app", 0) >= 0 })
	if all := w.node.loop.Unended(); len(all) != 1 {
		t.Fatalf("what has not ended is %d pods", len(all))
	}
	w.node.loop.EndForShutdown(p.UID, time.Second)
	w.until("it has ended", func() bool { return !w.node.loop.State(p.UID).Managed })
	w.untilGone()
}

// The set of pods is not known until the API server has shown them and each has its worker.
func TestShutdownKnowsThePods(t *testing.T) {
	w := newParallelWorld(t)
	w.api.create(newPod("web"))
	w.api.mu.Lock()
	w.api.blind = true
	w.api.mu.Unlock()
	w.up()
	if w.node.loop.AllKnown() {
		t.Error("pods are known that no one has shown")
	}
	w.down()
	w.api.mu.Lock()
	w.api.blind = false
	w.api.mu.Unlock()
	w.up()
	w.until("they are known", w.node.loop.AllKnown)
	if all := w.node.loop.Unended(); len(all) != 1 || all[0].Name != "web" {
		t.Errorf("what has not ended is %v", all)
	}
}

// A static pod that is still ending when the shutdown is cancelled runs again after it has ended,
// although its status does not yet say why it ends.
func TestRevivalWaitsForTheEnd(t *testing.T) {
	w := newParallelWorld(t)
	w.manifests = t.TempDir()
	w.up()
	w.write("static.yaml", with(newPod("static", "ignore-term", "wait"), func(p *v1.Pod) { *p.Spec.TerminationGracePeriodSeconds = 2 }), "")
	w.untilReady("static-node")
	l := w.node.loop
	static, _ := w.node.sources.StaticPods()
	if len(static) != 1 {
		t.Fatalf("%d static pods", len(static))
	}
	if l.Revive() {
		t.Error("a pod that runs is waited for")
	}
	l.EndForShutdown(static[0].UID, 2*time.Second)
	w.until("it is asked to end", func() bool { return w.at(fake.OpTerm, "app", 0) >= 0 })
	if !l.Revive() {
		t.Error("a pod that is still ending is not waited for")
	}
	w.until("it runs again", func() bool { return !l.Revive() && w.rt.Count(fake.OpStart, "app") == 2 })
	w.remove("static.yaml")
	w.untilGone()
}
