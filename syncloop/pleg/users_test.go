package pleg

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
)

// withUsers gives the sandboxes user ID ranges, by sandbox ID.
func (w *world) withUsers(first map[string]uint32) {
	w.sandbox = func(s *runtimeapi.PodSandbox) *runtimeapi.PodSandboxStatus {
		users := &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: []*runtimeapi.IDMapping{{HostId: first[s.Id], Length: 65536}}}
		return &runtimeapi.PodSandboxStatus{Id: s.Id, State: s.State, Linux: &runtimeapi.LinuxPodSandboxStatus{
			Namespaces: &runtimeapi.Namespace{Options: &runtimeapi.NamespaceOption{UsernsOptions: users}}}}
	}
}

// usersAre checks the first IDs of the ranges.
func usersAre(t *testing.T, g *Generator, when string, want ...uint32) {
	t.Helper()
	var got []uint32
	for _, r := range g.Cache().Users() {
		got = append(got, r.HostID)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("%s the ranges are %v, want %v", when, got, want)
	}
}

// The user ID range of a pod is known although the status of its container never comes; the pod
// still gets no decisions.
func TestUsersOfAPodWhoseContainerHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.add("1", "c", runtimeapi.ContainerState_CONTAINER_RUNNING)
		w.add("2", "c", runtimeapi.ContainerState_CONTAINER_RUNNING)
		w.withUsers(map[string]uint32{"s-1": 65536, "s-2": 2 * 65536})
		w.hang("c-1")
		g := w.generator(t)
		stop := testutil.Go(t.Context(), g.Run)
		for range 3 { // during the first look, and during later ones
			time.Sleep(25 * time.Second)
			synctest.Wait()
			if !g.Whole() {
				t.Error("the ranges of all pods are not known")
			}
			usersAre(t, g, "while a status hangs", 65536, 2*65536)
			if o := g.Cache().Get("1"); o.Stale == "" || len(o.Sandboxes) != 0 {
				t.Errorf("the pod whose status hangs is decided on: %+v", o)
			}
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
	})
}

// The ranges that a failed look has read follow the pod's sandboxes: they count until a look
// succeeds or the pod is gone.
func TestUsersFollowTheSandboxes(t *testing.T) {
	w := newWorld()
	w.add("1", "c", runtimeapi.ContainerState_CONTAINER_RUNNING)
	w.add("2", "c", runtimeapi.ContainerState_CONTAINER_RUNNING)
	w.withUsers(map[string]uint32{"s-1": 65536, "s-2": 2 * 65536, "later": 3 * 65536})
	w.broken = "c-1"
	g := w.generator(t)
	g.cfg.IsTransport = func(error) bool { return false }
	relist := func() {
		t.Helper()
		testutil.Must(t, g.Relist(t.Context()))
	}
	relist()
	usersAre(t, g, "after a look that failed", 65536, 2*65536)
	w.sandboxes[0].Id = "later"
	relist()
	usersAre(t, g, "after another sandbox came", 2*65536, 3*65536)
	w.broken = ""
	relist()
	usersAre(t, g, "after a look that succeeded", 2*65536, 3*65536)
	if n := len(g.cache.heard); n != 0 {
		t.Errorf("of %d pods what is observed is kept twice", n)
	}
	w.containers[0].State, w.broken = runtimeapi.ContainerState_CONTAINER_EXITED, "c-1"
	relist()
	if len(g.cache.heard) != 1 {
		t.Errorf("what a failed look has read early is not kept: %+v", g.cache.heard)
	}
	w.sandboxes, w.containers = w.sandboxes[1:], w.containers[1:]
	relist()
	usersAre(t, g, "after the pod has gone", 2*65536)
	if len(g.cache.heard) != 0 {
		t.Errorf("what is known of a pod that has gone: %+v", g.cache.heard)
	}
	w.sandboxes, w.containers = nil, nil
	if relist(); g.cache.size != 0 {
		t.Errorf("%d bytes after everything went", g.cache.size)
	}
}

// A look that ends late does not bring back what a later one no longer found.
func TestALateLookDoesNotReplaceALaterOne(t *testing.T) {
	c := newCache()
	l := func(id string) *listed {
		return &listed{ref: pod.Ref{UID: "1"}, sandboxes: []*runtimeapi.PodSandbox{{Id: id}}}
	}
	first, second := c.NextSeq(), c.NextSeq()
	c.hear(l("b"), []pod.Sandbox{{ID: "b", Users: &pod.IDRange{HostID: 2}}}, second)
	c.hear(l("a"), []pod.Sandbox{{ID: "a", Users: &pod.IDRange{HostID: 1}}}, first)
	if got := c.Users(); len(got) != 1 || got[0].HostID != 2 {
		t.Errorf("the ranges are %v", got)
	}
	c.put(pod.Observed{Ref: pod.Ref{UID: "1"}, Seq: first})
	if got := c.Users(); len(got) != 1 || got[0].HostID != 2 {
		t.Errorf("after an older look succeeded the ranges are %v", got)
	}
}

// Without the status of a sandbox, its range is not known, whatever else is. A sandbox that
// vanished has none.
func TestUsersOfASandboxThatCannotBeRead(t *testing.T) {
	w := newWorld()
	w.add("1", "c", runtimeapi.ContainerState_CONTAINER_RUNNING)
	w.add("2", "c", runtimeapi.ContainerState_CONTAINER_RUNNING)
	w.broken = "c-1"
	r := &unreadable{world: w, id: "s-1", err: errors.New("the runtime does not tell")}
	g := w.generator(t)
	g.cfg.Runtime, g.cfg.IsTransport = r, func(error) bool { return false }
	for _, c := range []struct {
		err  error
		want bool
	}{{r.err, false}, {errNotFound, true}, {r.err, true}} {
		r.err = c.err
		testutil.Must(t, g.Relist(t.Context()))
		if got := g.Whole(); got != c.want {
			t.Errorf("%v: known %t, want %t", c.err, got, c.want)
		}
	}
}

// unreadable is a runtime that fails the status call of one sandbox.
type unreadable struct {
	*world
	id  string
	err error
}

func (r *unreadable) PodSandboxStatus(ctx context.Context, id string) (*runtimeapi.PodSandboxStatus, error) {
	if id == r.id {
		return nil, r.err
	}
	return r.world.PodSandboxStatus(ctx, id)
}
