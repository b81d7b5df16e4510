package pleg

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
)

var errNotFound = errors.New("not found")

// world is a runtime in memory: its state is what the test last set.
type world struct {
	sandbox    func(*runtimeapi.PodSandbox) *runtimeapi.PodSandboxStatus // optional: builds the status of a sandbox
	mu         sync.Mutex
	err        error
	sandboxes  []*runtimeapi.PodSandbox
	containers []*runtimeapi.Container
	counting   sync.Mutex
	calls      map[string]int
	broken     string                                     // a container whose status call fails
	hung       func(ctx context.Context, id string) error // called before a container's status is read
	asked      func()                                     // called after a container's status was read
	listed     func()                                     // called after the containers were listed
	hints      chan Hint
	tails      map[string]string
	startedAt  time.Time // of every container
}

func newWorld() *world { return &world{calls: map[string]int{}, startedAt: time.Unix(100, 0)} }

func (w *world) add(uid, container string, state runtimeapi.ContainerState) {
	labels := map[string]string{pod.LabelPodUID: uid, pod.LabelPodNamespace: "ns", pod.LabelPodName: "p-" + uid, pod.LabelOwner: "me"}
	w.sandboxes = append(w.sandboxes, &runtimeapi.PodSandbox{Id: "s-" + uid, Labels: labels})
	c := map[string]string{pod.LabelContainerName: container}
	for k, v := range labels {
		c[k] = v
	}
	w.containers = append(w.containers, &runtimeapi.Container{Id: container + "-" + uid, PodSandboxId: "s-" + uid, State: state, Labels: c})
}

func (w *world) call(name string) error {
	w.counting.Lock()
	defer w.counting.Unlock()
	w.calls[name]++
	return w.err
}

func matches(labels map[string]string, sel map[string]string) bool {
	for k, v := range sel {
		if labels[k] != v {
			return false
		}
	}
	return true
}

func (w *world) ListPodSandbox(_ context.Context, f *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	var out []*runtimeapi.PodSandbox
	for _, s := range w.sandboxes {
		if matches(s.Labels, f.GetLabelSelector()) {
			out = append(out, s)
		}
	}
	return out, w.call("ListPodSandbox")
}

func (w *world) ListContainers(_ context.Context, f *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	if w.listed != nil {
		w.listed()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []*runtimeapi.Container
	for _, c := range w.containers {
		if matches(c.Labels, f.GetLabelSelector()) {
			out = append(out, &runtimeapi.Container{Id: c.Id, PodSandboxId: c.PodSandboxId, State: c.State, Labels: c.Labels})
		}
	}
	return out, w.call("ListContainers")
}

func (w *world) PodSandboxStatus(_ context.Context, id string) (*runtimeapi.PodSandboxStatus, error) {
	if err := w.call("PodSandboxStatus"); err != nil {
		return nil, err
	}
	for _, s := range w.sandboxes {
		if s.Id == id {
			if w.sandbox != nil {
				return w.sandbox(s), nil
			}
			return &runtimeapi.PodSandboxStatus{Id: id, State: s.State, Network: &runtimeapi.PodSandboxNetworkStatus{Ip: "10.0.0.7"}}, nil
		}
	}
	return nil, errNotFound
}

func (w *world) ContainerStatus(ctx context.Context, id string) (*runtimeapi.ContainerStatus, error) {
	st, err := w.containerStatus(ctx, id)
	if w.asked != nil {
		w.asked()
	}
	return st, err
}

func (w *world) containerStatus(ctx context.Context, id string) (*runtimeapi.ContainerStatus, error) {
	if w.hung != nil {
		if err := w.hung(ctx, id); err != nil {
			return nil, err
		}
	}
	if err := w.call("ContainerStatus"); err != nil {
		return nil, err
	}
	if id == w.broken {
		return nil, errors.New("the runtime does not tell")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.containers {
		if c.Id == id {
			return &runtimeapi.ContainerStatus{Id: id, State: c.State, Labels: c.Labels, StartedAt: w.startedAt.UnixNano(),
				Annotations: map[string]string{pod.AnnotationTerminationPath: "/dev/termination-log", pod.AnnotationTerminationPolicy: "FallbackToLogsOnError"},
				Mounts:      []*runtimeapi.Mount{{ContainerPath: "/dev/termination-log", HostPath: "/host/" + id}}, ExitCode: 1, LogPath: "/log/" + id}, nil
		}
	}
	return nil, errNotFound
}

func (w *world) ReadTail(_ context.Context, path string, max int64) ([]byte, error) {
	if text, ok := w.tails[path]; ok {
		return []byte(text), nil
	}
	return nil, fmt.Errorf("read %s: %w", path, errNotFound)
}

func (w *world) generator(t *testing.T) *Generator {
	t.Helper()
	c := Config{Runtime: w, Files: w, Owner: "me", IsNotFound: func(err error) bool { return errors.Is(err, errNotFound) },
		ClockOffset: func() time.Duration { return 4 * time.Minute }}
	if w.hints != nil {
		c.Hints = func(context.Context) (<-chan Hint, error) { return w.hints, nil }
	}
	g, err := New(c)
	testutil.Must(t, err)
	return g
}

// A sandbox whose own network has no address differs from one whose network the runtime does not
// show, and from one on the host network.
func TestSandboxWithoutAnAddress(t *testing.T) {
	node := &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{Options: &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE}}}
	empty := &runtimeapi.PodSandboxNetworkStatus{}
	for name, c := range map[string]struct {
		network *runtimeapi.PodSandboxNetworkStatus
		linux   *runtimeapi.LinuxPodSandboxStatus
		want    bool
	}{
		"none": {empty, nil, true}, "not shown": {nil, nil, false}, "the machine's network": {empty, node, false},
		"one": {&runtimeapi.PodSandboxNetworkStatus{Ip: "10.0.0.7"}, nil, false},
	} {
		w := newWorld()
		w.add("1", "c", runtimeapi.ContainerState_CONTAINER_RUNNING)
		w.sandbox = func(s *runtimeapi.PodSandbox) *runtimeapi.PodSandboxStatus {
			return &runtimeapi.PodSandboxStatus{Id: s.Id, State: s.State, Network: c.network, Linux: c.linux}
		}
		g := w.generator(t)
		testutil.Must(t, g.Relist(t.Context()))
		if got := g.Cache().Get("1").Sandboxes[0].NoAddress; got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestRelistSeesOursOnly(t *testing.T) {
	w := newWorld()
	w.add("1", "c", runtimeapi.ContainerState_CONTAINER_RUNNING)
	w.add("2", "c", runtimeapi.ContainerState_CONTAINER_RUNNING)
	w.sandboxes[1].Labels = map[string]string{pod.LabelPodUID: "2"} // a kubelet's sandbox
	w.containers[1].Labels = w.sandboxes[1].Labels
	g := w.generator(t)
	if o := g.Cache().Get("1"); o.Seq != 0 {
		t.Errorf("before the first look Seq is %d", o.Seq)
	}
	testutil.Must(t, g.Relist(t.Context()))
	o := g.Cache().Get("1")
	if len(o.Containers) != 1 || o.Containers[0].State != pod.StateRunning || o.Sandboxes[0].IPs[0] != "10.0.0.7" {
		t.Errorf("observed %+v", o)
	}
	if want := time.Unix(100, 0).Add(-4 * time.Minute); !o.Containers[0].StartedAt.Equal(want) {
		t.Errorf("startedAt %v, want it on our clock: %v", o.Containers[0].StartedAt, want)
	}
	if got := g.Cache().Get("2"); len(got.Containers) != 0 || g.Cache().Foreign() != 1 {
		t.Errorf("a foreign pod was observed: %+v, foreign %d", got, g.Cache().Foreign())
	}
	if got := g.Cache().Get("absent"); got.Seq == 0 {
		t.Error("a full relist is an observation of pods that the runtime lacks, too")
	}
}

// A pod that did not change costs two list calls and nothing else, and counts as fresh.
func TestUnchangedIsCheapAndFresh(t *testing.T) {
	w := newWorld()
	w.add("1", "c", runtimeapi.ContainerState_CONTAINER_RUNNING)
	g := w.generator(t)
	_ = g.Relist(t.Context())
	before := g.Cache().Get("1").Seq
	calls := w.calls["ContainerStatus"] + w.calls["PodSandboxStatus"]
	g.TakeChanged()
	_ = g.Relist(t.Context())
	if got := w.calls["ContainerStatus"] + w.calls["PodSandboxStatus"]; got != calls {
		t.Errorf("%d status calls for an unchanged pod", got-calls)
	}
	if g.Cache().Get("1").Seq <= before {
		t.Error("the second look did not make the observation newer")
	}
	if changed := g.TakeChanged(); len(changed) != 0 {
		t.Errorf("nothing changed, and %v were announced", changed)
	}
}

// A look that begins earlier never replaces a later one.
func TestOlderLookLoses(t *testing.T) {
	c := newCache()
	early, late := c.NextSeq(), c.NextSeq()
	ref := pod.Ref{UID: "1"}
	c.put(pod.Observed{Ref: ref, Seq: late, Containers: []pod.Container{{ID: "new"}}})
	if kept, _ := c.put(pod.Observed{Ref: ref, Seq: early, Containers: []pod.Container{{ID: "old"}}}); kept {
		t.Error("the older look was kept")
	}
	if got := c.Get("1"); got.Containers[0].ID != "new" {
		t.Errorf("the cache holds %q", got.Containers[0].ID)
	}
	// A relist that began before the look at the pod does not remove it.
	c.relisted(early, time.Now(), map[types.UID]bool{}, 0)
	if got := c.Get("1"); len(got.Containers) != 1 {
		t.Error("a relist begun earlier removed a pod looked at later")
	}
}

func TestVanishedPodIsAnnounced(t *testing.T) {
	w := newWorld()
	w.add("1", "c", runtimeapi.ContainerState_CONTAINER_RUNNING)
	g := w.generator(t)
	_ = g.Relist(t.Context())
	g.TakeChanged()
	w.sandboxes, w.containers = nil, nil
	_ = g.Relist(t.Context())
	if got := g.TakeChanged(); len(got) != 1 || got[0] != "1" {
		t.Errorf("announced %v", got)
	}
}

// With the event stream open, a change is seen without waiting for the relist. When the stream
// ends, relists run each second again.
func TestHintsBringLooksForward(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.hints = make(chan Hint)
		w.add("1", "c", runtimeapi.ContainerState_CONTAINER_RUNNING)
		g := w.generator(t)
		stop := testutil.Go(t.Context(), g.Run)
		time.Sleep(settleLimit + 2*time.Second) // until the generator uses the long pause
		synctest.Wait()
		relists := w.calls["ListPodSandbox"]
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if got := w.calls["ListPodSandbox"]; got != relists {
			t.Errorf("%d relists in 30 s with events open", got-relists)
		}
		// The runtime sends the event of the exit before its lists show it.
		time.AfterFunc(300*time.Millisecond, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.containers[0].State = runtimeapi.ContainerState_CONTAINER_EXITED
		})
		w.hints <- Hint{ID: "c-1", Expect: Ended}
		time.Sleep(time.Second)
		synctest.Wait()
		if o := g.Cache().Get("1"); o.Containers[0].State != pod.StateExited {
			t.Error("the hint did not bring the look forward")
		}
		looks := w.calls["ListPodSandbox"]
		w.hints <- Hint{ID: "c-1", Expect: Ended}
		w.hints <- Hint{ID: "unknown", Expect: Ended}
		time.Sleep(time.Second)
		synctest.Wait()
		if got := w.calls["ListPodSandbox"]; got != looks {
			t.Errorf("%d looks for hints that say nothing new", got-looks)
		}
		close(w.hints)
		_ = stop()
	})
}

// TestQuiet: the generator reports a quiet runtime only for a time in which the event stream was open,
// and showed no event and no change.
func TestQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.hints = make(chan Hint)
		w.add("1", "c", runtimeapi.ContainerState_CONTAINER_RUNNING)
		g := w.generator(t)
		if g.Quiet(time.Now().Add(time.Hour)) {
			t.Error("quiet before the stream has opened")
		}
		start := time.Now()
		stop := testutil.Go(t.Context(), g.Run)
		time.Sleep(time.Minute)
		if g.Quiet(start) || g.Quiet(start.Add(settleLimit)) {
			t.Error("quiet for a time in which an event could be missing")
		}
		if !g.Quiet(start.Add(settleLimit + time.Second)) {
			t.Error("not quiet, though the stream has been open without an event")
		}
		w.hints <- Hint{ID: "unknown", Expect: Ended}
		synctest.Wait()
		last := time.Now()
		if time.Sleep(time.Minute); g.Quiet(last) || !g.Quiet(last.Add(time.Second)) {
			t.Error("an event ends the quiet up to its time, and only that")
		}
		// A change that no event announced.
		w.mu.Lock()
		w.containers[0].State = runtimeapi.ContainerState_CONTAINER_EXITED
		w.mu.Unlock()
		testutil.Must(t, g.Relist(t.Context()))
		last = time.Now()
		if time.Sleep(time.Minute); g.Quiet(last) || !g.Quiet(last.Add(time.Second)) {
			t.Error("a change ends the quiet up to its time, and only that")
		}
		close(w.hints)
		synctest.Wait()
		if g.Quiet(last.Add(time.Second)) {
			t.Error("quiet without a stream")
		}
		_ = stop()
	})
}

// A container ends before the event stream is open, and the lists show it only after the relist
// that follows the opening: no hint announces it.
func TestAnExitBeforeTheStreamIsSeenSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.hints = make(chan Hint)
		w.add("1", "c", runtimeapi.ContainerState_CONTAINER_RUNNING)
		g := w.generator(t)
		stop := testutil.Go(t.Context(), g.Run)
		synctest.Wait()
		time.Sleep(500 * time.Millisecond)
		w.mu.Lock()
		w.containers[0].State = runtimeapi.ContainerState_CONTAINER_EXITED
		w.mu.Unlock()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if o := g.Cache().Get("1"); o.Containers[0].State != pod.StateExited {
			t.Error("the exit waits for the relist of the next minute")
		}
		close(w.hints)
		_ = stop()
	})
}

func TestTerminationMessage(t *testing.T) {
	for _, tc := range []struct {
		name  string
		tails map[string]string
		want  string
	}{
		{"file", map[string]string{"/host/c-1": "disk full"}, "disk full"},
		{"log when the file is empty", map[string]string{"/host/c-1": "", "/log/c-1": "cut stdout F\n2026-01-01T00:00:00Z stderr P panic: \n2026-01-01T00:00:00Z stderr F boom\n"}, "panic: boom\n"},
		{"neither", nil, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld()
			w.tails = tc.tails
			w.add("1", "c", runtimeapi.ContainerState_CONTAINER_EXITED)
			g := w.generator(t)
			testutil.Must(t, g.Relist(t.Context()))
			if got := g.Cache().Get("1").Containers[0].Message; got != tc.want {
				t.Errorf("message %q, want %q", got, tc.want)
			}
		})
	}
}

// An event is not lost if it comes during the look that sees its container for the first time.
func TestHintBeforeItsContainerIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.hints = make(chan Hint)
		g := w.generator(t)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = g.Run(ctx) }()
		synctest.Wait()
		w.add("1", "c", runtimeapi.ContainerState_CONTAINER_RUNNING)
		w.asked = func() { // after the container's status is read, before it is in the cache
			w.asked = nil
			w.containers[0].State = runtimeapi.ContainerState_CONTAINER_EXITED
			w.hints <- Hint{ID: "c-1", Expect: Ended}
			synctest.Wait()
		}
		if _, err := g.Observe(ctx, pod.Ref{Namespace: "ns", Name: "p-1", UID: "1"}, Changed{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if o := g.Cache().Get("1"); o.Containers[0].State != pod.StateExited {
			t.Error("the exit was not seen")
		}
		close(w.hints)
		cancel()
		<-done
	})
}

// A look that confirms an observation does not confirm another one that has replaced it.
func TestTouchWhatWasCompared(t *testing.T) {
	c := newCache()
	old, other, relist := c.NextSeq(), c.NextSeq(), c.NextSeq()
	ref := pod.Ref{UID: "1"}
	c.put(pod.Observed{Ref: ref, Seq: old})
	c.put(pod.Observed{Ref: ref, Seq: other})
	if c.touch("1", old, relist, time.Now()) || c.Get("1").Seq != other {
		t.Error("what no one compared was made fresh")
	}
	if !c.touch("1", other, relist, time.Now()) || c.Get("1").Seq != relist {
		t.Error("what was compared was not made fresh")
	}
}

// The host's clock may be set while a container starts. Times that the runtime reports stay between
// the looks that show the change, and the offset is in doubt.
func TestTimesLieBetweenTheLooks(t *testing.T) {
	for _, c := range []struct {
		name    string
		started time.Duration // by the host's clock, from the second look on
		want    func(first, second time.Time) time.Time
		doubts  int
	}{
		{"as it was", -time.Second, func(_, second time.Time) time.Time { return second.Add(-time.Second) }, 0},
		{"shown late", -time.Minute - 5*time.Second, func(first, _ time.Time) time.Time { return first.Add(-5 * time.Second) }, 0},
		{"a little ahead", time.Second, func(_, second time.Time) time.Time { return second }, 0},
		{"set ahead", 4 * time.Minute, func(_, second time.Time) time.Time { return second }, 1},
		{"set back", -4 * time.Minute, func(first, _ time.Time) time.Time { return first }, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, doubts := newWorld(), 0
				g := w.generator(t)
				g.cfg.ClockOffset, g.cfg.ClockDoubt = func() time.Duration { return 0 }, func() { doubts++ }
				first := time.Now()
				testutil.Must(t, g.Relist(t.Context()))
				time.Sleep(time.Minute)
				second := time.Now()
				w.startedAt = second.Add(c.started)
				w.add("1", "c", runtimeapi.ContainerState_CONTAINER_RUNNING)
				testutil.Must(t, g.Relist(t.Context()))
				got := g.Cache().Get("1").Containers[0].StartedAt
				if want := c.want(first, second); !got.Equal(want) || doubts != c.doubts {
					t.Errorf("started %s after the first look, %d doubts; want %s and %d", got.Sub(first), doubts, want.Sub(first), c.doubts)
				}
				// The clock is right again by now; a known time stays when the container ends.
				w.startedAt = second
				time.Sleep(time.Minute)
				w.containers[0].State = runtimeapi.ContainerState_CONTAINER_EXITED
				testutil.Must(t, g.Relist(t.Context()))
				if now := g.Cache().Get("1").Containers[0]; now.State != pod.StateExited || !now.StartedAt.Equal(got) {
					t.Errorf("ended: %s, started %s after the first look, before %s", now.State, now.StartedAt.Sub(first), got.Sub(first))
				}
			})
		})
	}
}

// A caller of List each minute replaces the relists and also gets objects that are not ours.
// Relists resume when the calls stop.
func TestListIsARelist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.hints = make(chan Hint)
		w.add("1", "c", runtimeapi.ContainerState_CONTAINER_RUNNING)
		w.add("2", "c", runtimeapi.ContainerState_CONTAINER_RUNNING)
		w.sandboxes[1].Labels[pod.LabelOwner] = "somebody"
		g := w.generator(t)
		g.cfg.RelistWithEvents = 70 * time.Second
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- g.Run(ctx) }()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		looks := func() int {
			synctest.Wait()
			w.counting.Lock()
			defer w.counting.Unlock()
			return w.calls["ListPodSandbox"]
		}
		lists := looks()
		for range 10 {
			time.Sleep(time.Minute)
			sandboxes, containers, err := g.List(ctx)
			if err != nil || len(sandboxes) != 2 || len(containers) != 2 {
				t.Fatalf("%d sandboxes, %d containers, %v", len(sandboxes), len(containers), err)
			}
		}
		if n := looks() - lists; n != 10 {
			t.Errorf("%d lists for 10 that were asked for", n)
		}
		time.Sleep(71 * time.Second)
		synctest.Wait()
		if n := looks() - lists; n != 11 {
			t.Errorf("%d lists when no one has asked for a while, want one more than 10", n)
		}
		w.counting.Lock()
		w.err = errors.New("not now")
		w.counting.Unlock()
		if _, _, err := g.List(ctx); err == nil || g.Cache().Get("1").Stale == "" {
			t.Errorf("a list that failed: %v, %+v", err, g.Cache().Get("1"))
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
