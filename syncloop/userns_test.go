package syncloop_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
)

// users returns, by pod name, the first host IDs of the pods' sandboxes.
func (w *world) users() map[string][]uint32 {
	w.t.Helper()
	list, err := w.node.client.ListPodSandbox(context.Background(), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	out := map[string][]uint32{}
	for _, s := range list {
		st, err := w.node.client.PodSandboxStatus(context.Background(), s.Id)
		if cri.IsNotFound(err) {
			continue // removed meanwhile
		}
		if err != nil {
			w.t.Fatal(err)
		}
		name := s.GetMetadata().GetName()
		for _, m := range st.GetLinux().GetNamespaces().GetOptions().GetUsernsOptions().GetUids() {
			out[name] = append(out[name], m.HostId)
		}
		slices.Sort(out[name])
	}
	return out
}

// TestUserNamespaces: each pod with a user namespace has a range of its own, in all of its
// sandboxes and across restarts of Bowline. The runtime must support it.
func TestUserNamespaces(t *testing.T) {
	w := newWorld(t, fake.Config{})
	w.userNamespaces = true
	w.up()
	own := func(name string) *v1.Pod {
		no := false
		return with(newPod(name), func(p *v1.Pod) { p.Spec.HostUsers = &no })
	}
	w.api.create(own("a"))
	w.api.create(own("b"))
	w.api.create(newPod("none"))
	for _, name := range []string{"a", "b", "none"} {
		w.untilReady(name)
	}
	before := w.users()
	if len(before["a"]) != 1 || len(before["b"]) != 1 || len(before["none"]) != 0 || before["a"][0] == before["b"][0] ||
		before["a"][0]+before["b"][0] != 65536+2*65536 {
		t.Fatalf("ranges: %v", before)
	}
	w.down()
	w.up()
	w.untilSettled("a")
	w.createReady(own("c"))
	if got := w.users(); got["c"][0] != 3*65536 || got["a"][0] != before["a"][0] {
		t.Errorf("after a restart of ours: %v, before %v", got, before)
	}
	w.api.delete("b", 1)
	w.until("b has gone", func() bool {
		_, has := w.node.loop.Why(namespace, "b") // its worker frees the range
		return !has && w.api.pod("b") == nil && len(w.users()["b"]) == 0
	})
	w.createReady(own("d"))
	if got := w.users(); got["d"][0] != before["b"][0] {
		t.Errorf("the range of who has gone is not given again: %v", got)
	}
}

func TestUserNamespacesNotSupported(t *testing.T) {
	w := up(t)
	no := false
	w.api.create(with(newPod("p"), func(p *v1.Pod) { p.Spec.HostUsers = &no }))
	w.until("the event says so", func() bool {
		return w.event("Warning FailedCreatePodSandBox Failed to create pod sandbox: can't set `spec.hostUsers: false`, runtime does not support user namespaces")
	})
	if n := w.count(fake.OpRunSandbox); n != 0 {
		t.Errorf("%d sandboxes", n)
	}
}

// While no look at a sandbox without the annotation has succeeded since the process started, its
// range is unknown, and no pod gets a new range.
func TestUserNamespacesAfterAPartialLook(t *testing.T) {
	w := newWorld(t, fake.Config{})
	w.userNamespaces = true
	no := false
	own := func(name string) *v1.Pod { return with(newPod(name), func(p *v1.Pod) { p.Spec.HostUsers = &no }) }
	w.up()
	w.createReady(own("a"))
	before := w.users()
	list, err := w.node.client.ListPodSandbox(t.Context(), nil)
	if err != nil || len(list) != 1 {
		t.Fatalf("%d sandboxes: %v", len(list), err)
	}
	testutil.Must(t, w.rt.RemoveAnnotation(list[0].Id, pod.AnnotationUsers))
	w.down()
	blind := atomic.Bool{}
	blind.Store(true)
	var refused atomic.Int32
	w.setHook(func(ctx context.Context, label string, call func(context.Context) error) error {
		if blind.Load() && label == "cri/PodSandboxStatus" {
			refused.Add(1)
			return errors.New("the sandbox cannot be looked at")
		}
		return call(ctx)
	})
	w.up()
	w.api.create(own("b"))
	w.api.create(newPod("plain"))
	w.until("someone waits for it", func() bool {
		r, ok := w.node.loop.Why(namespace, "b")
		return ok && refused.Load() > 0 && strings.Contains(r.Reason, "user ranges")
	})
	for _, e := range w.rt.Log() {
		if strings.Contains(e.Pod, "ns/b") {
			t.Errorf("it was not waited for: %s", e.Op)
		}
	}
	blind.Store(false)
	w.untilReady("b")
	w.untilReady("plain")
	if got := w.users(); got["a"][0] != before["a"][0] || got["b"][0] == got["a"][0] {
		t.Errorf("the ranges are %v, and were %v", got, before)
	}
}

// A container whose status the runtime never returns hides no range: after a restart of Bowline,
// pods with a user namespace start beside it and none gets its pod's range.
func TestUserNamespacesBesideAStatusThatHangs(t *testing.T) {
	w := newParallelWorld(t)
	w.userNamespaces = true
	no := false
	own := func(name string) *v1.Pod { return with(newPod(name), func(p *v1.Pod) { p.Spec.HostUsers = &no }) }
	w.up()
	w.api.create(own("stuck"))
	w.api.create(own("other"))
	w.untilReady("stuck")
	w.untilReady("other")
	before := w.users()
	id, other, held := w.instance("stuck", "app"), w.instance("other", "app"), make(chan struct{})
	w.down()
	w.rt.Inject("ContainerStatus", fake.Fault{Hold: held, Times: -1, Match: func(r any) bool {
		q, ok := r.(*runtimeapi.ContainerStatusRequest)
		return ok && q.ContainerId == id
	}})
	for _, id := range []string{id, other} {
		testutil.Must(t, w.rt.Exit(id, 1))
	}
	w.up()
	w.createReady(own("new"))
	w.until("the other pod's container is restarted", func() bool {
		p := w.api.pod("other")
		return container(p, "app").RestartCount == 1 && ready(p)
	})
	got := w.users()
	if got["new"][0] == before["stuck"][0] || got["new"][0] == before["other"][0] || !slices.Equal(got["other"], before["other"]) {
		t.Errorf("the ranges are %v, and were %v", got, before)
	}
	if now := w.instance("stuck", "app"); now != id {
		t.Errorf("the container in doubt was replaced by %s", now)
	}
	w.rt.ClearFaults()
	close(held)
	w.until("the stuck pod's container is restarted", func() bool {
		p := w.api.pod("stuck")
		return container(p, "app").RestartCount == 1 && ready(p)
	})
}

// A sandbox whose status the runtime never returns hides no range either: the runtime's list shows
// the annotation with it.
func TestUserNamespacesBesideASandboxThatHangs(t *testing.T) {
	w := newParallelWorld(t)
	w.userNamespaces = true
	no := false
	own := func(name string) *v1.Pod { return with(newPod(name), func(p *v1.Pod) { p.Spec.HostUsers = &no }) }
	w.up()
	w.createReady(own("stuck"))
	before := w.users()
	list, err := w.node.client.ListPodSandbox(t.Context(), nil)
	if err != nil || len(list) != 1 {
		t.Fatalf("%d sandboxes: %v", len(list), err)
	}
	held := make(chan struct{})
	w.down()
	w.rt.Inject("PodSandboxStatus", fake.Fault{Hold: held, Times: -1, Match: func(r any) bool {
		q, ok := r.(*runtimeapi.PodSandboxStatusRequest)
		return ok && q.PodSandboxId == list[0].Id
	}})
	w.up()
	w.createReady(own("new"))
	w.rt.ClearFaults()
	close(held)
	w.untilSettled("stuck")
	if got := w.users(); got["new"][0] == before["stuck"][0] || !slices.Equal(got["stuck"], before["stuck"]) {
		t.Errorf("the ranges are %v, and were %v", got, before)
	}
}

// While the range of one pod is unknown, a pod that has its sandbox continues: its crashed
// container is restarted, and a lost sandbox is recreated with the same range.
func TestUserNamespacesOfWhatRunsAfterAPartialLook(t *testing.T) {
	w := newParallelWorld(t)
	w.userNamespaces = true
	no := false
	own := func(name string) *v1.Pod { return with(newPod(name), func(p *v1.Pod) { p.Spec.HostUsers = &no }) }
	w.up()
	w.api.create(own("blind"))
	w.api.create(own("crashed"))
	w.api.create(own("lost"))
	for _, name := range []string{"blind", "crashed", "lost"} {
		w.untilReady(name)
	}
	before := w.users()
	sandboxes := map[string]string{}
	list, err := w.node.client.ListPodSandbox(t.Context(), nil)
	testutil.Must(t, err)
	for _, s := range list {
		sandboxes[s.GetMetadata().GetName()] = s.Id
	}
	crashed := w.instance("crashed", "app")
	testutil.Must(t, w.rt.RemoveAnnotation(sandboxes["blind"], pod.AnnotationUsers))
	w.down()
	w.rt.Inject("PodSandboxStatus", fake.Fault{Before: errors.New("the sandbox cannot be looked at"), Times: -1, Match: func(r any) bool {
		q, ok := r.(*runtimeapi.PodSandboxStatusRequest)
		return ok && q.PodSandboxId == sandboxes["blind"]
	}})
	testutil.Must(t, w.rt.Exit(crashed, 1))
	testutil.Must(t, w.rt.FailSandbox(sandboxes["lost"]))
	w.up()
	w.api.create(own("new"))
	w.until("the crashed container is restarted", func() bool {
		p := w.api.pod("crashed")
		return container(p, "app").RestartCount == 1 && ready(p)
	})
	w.until("the lost sandbox comes again", func() bool {
		p := w.api.pod("lost")
		return container(p, "app").RestartCount == 1 && ready(p)
	})
	w.until("the new pod waits for the range that is not known", func() bool {
		r, ok := w.node.loop.Why(namespace, "new")
		return ok && strings.Contains(r.Reason, "user ranges")
	})
	w.rt.ClearFaults()
	w.untilReady("new")
	got := w.users()
	for _, name := range []string{"blind", "crashed", "lost"} {
		if got[name][0] != before[name][0] || got["new"][0] == before[name][0] {
			t.Errorf("the ranges are %v, and were %v", got, before)
		}
	}
}
