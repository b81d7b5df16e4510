package pleg

import (
	"errors"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
)

// A transport error makes everything stale and nothing dead; the next successful look ends that.
func TestStaleIsNeverDead(t *testing.T) {
	w := newWorld()
	w.add("1", "c", runtimeapi.ContainerState_CONTAINER_RUNNING)
	g := w.generator(t)
	_ = g.Relist(t.Context())
	g.TakeChanged()
	w.err = errors.New("connection refused")
	if err := g.Relist(t.Context()); err == nil {
		t.Fatal("the relist hid its error")
	}
	o := g.Cache().Get("1")
	if o.Stale == "" || len(o.Containers) != 1 || o.Containers[0].State != pod.StateRunning {
		t.Errorf("after a failed look: %+v", o)
	}
	if got := g.TakeChanged(); len(got) != 1 || got[0] != All {
		t.Errorf("staleness was announced as %v", got)
	}
	w.err = nil
	_ = g.Relist(t.Context())
	if o := g.Cache().Get("1"); o.Stale != "" {
		t.Errorf("still stale: %s", o.Stale)
	}
	if got := g.TakeChanged(); len(got) != 1 || got[0] != All {
		t.Errorf("the return of sight was announced as %v", got)
	}
}

// If a look fails during a relist, it marks everything stale, and the relist then ends that: a
// worker that learns of the first learns of the second.
func TestARelistTellsThatItEndedBlindness(t *testing.T) {
	w := newWorld()
	w.add("1", "c", runtimeapi.ContainerState_CONTAINER_RUNNING)
	g := w.generator(t)
	testutil.Must(t, g.Relist(t.Context()))
	g.TakeChanged()
	// This relist has no pod to look at: only its end can announce the change.
	w.listed = func() {
		w.listed = nil
		_ = g.failed(t.Context(), errors.New("another look failed"))
		g.TakeChanged()
	}
	testutil.Must(t, g.Relist(t.Context()))
	if o := g.cache.Get("1"); o.Stale != "" {
		t.Fatalf("still stale after a relist that succeeded: %s", o.Stale)
	}
	if got := g.TakeChanged(); len(got) != 1 || got[0] != All {
		t.Errorf("workers got %v; the relist ended the blindness, and each must get it", got)
	}
}

// A pod that the runtime could not report, and that then turns out not to exist, is announced: its
// worker waits for that.
func TestAPodInDoubtThatIsNotThereIsAnnounced(t *testing.T) {
	w := newWorld()
	g := w.generator(t)
	testutil.Must(t, g.Relist(t.Context()))
	ref := pod.Ref{Namespace: "ns", Name: "p-1", UID: "1"}
	g.failedOne(t.Context(), ref, g.cache.NextSeq(), errors.New("the runtime does not tell"))
	g.TakeChanged()
	testutil.Must(t, g.Relist(t.Context()))
	if o := g.cache.Get("1"); o.Stale != "" {
		t.Fatalf("still in doubt: %s", o.Stale)
	}
	if got := g.TakeChanged(); len(got) != 1 || got[0] != "1" {
		t.Errorf("workers got %v, want the pod whose doubt ended", got)
	}
}

// A runtime that answers, but not about one pod, makes only that pod stale.
func TestOnePodThatCannotBeLookedAt(t *testing.T) {
	w := newWorld()
	w.add("1", "c", runtimeapi.ContainerState_CONTAINER_RUNNING)
	w.add("2", "c", runtimeapi.ContainerState_CONTAINER_RUNNING)
	g := w.generator(t)
	g.cfg.IsTransport = func(error) bool { return false }
	testutil.Must(t, g.Relist(t.Context()))
	g.TakeChanged()
	for _, c := range w.containers {
		c.State = runtimeapi.ContainerState_CONTAINER_EXITED
	}
	w.broken = "c-1"
	for range 2 { // the second relist must not skip the pod because its list is unchanged
		testutil.Must(t, g.Relist(t.Context()))
		if o := g.Cache().Get("1"); o.Stale == "" || o.Containers[0].State != pod.StateRunning {
			t.Errorf("the pod that could not be checked: %+v", o)
		}
		if o := g.Cache().Get("2"); o.Stale != "" || o.Containers[0].State != pod.StateExited {
			t.Errorf("the other pod: %+v", o)
		}
	}
	if ok, _ := g.Healthy(time.Now()); !ok {
		t.Error("one pod made the node unhealthy")
	}
	w.broken = ""
	testutil.Must(t, g.Relist(t.Context()))
	if o := g.Cache().Get("1"); o.Stale != "" || o.Containers[0].State != pod.StateExited {
		t.Errorf("after it could be looked at: %+v", o)
	}
}

// TestFirstLookIsSlow: a list that ends while the first look at a pod has not ended does not say that
// the pod is gone. The look says what there is, although it began before the list.
func TestFirstLookIsSlow(t *testing.T) {
	c := newCache()
	look, list := c.NextSeq(), c.NextSeq()
	c.relisted(list, time.Now(), map[types.UID]bool{"u1": true}, 0)
	if o := c.Get("u1"); o.Fresh() || c.StaleAlone("u1") {
		t.Errorf("the pod is taken for absent, or for one that cannot be seen: %+v", o)
	}
	if o := c.Get("u2"); !o.Fresh() {
		t.Errorf("a pod that the list does not have is not known: %+v", o)
	}
	kept, _ := c.put(pod.Observed{Ref: pod.Ref{UID: "u1"}, Seq: look, Sandboxes: []pod.Sandbox{{ID: "s1"}}})
	if o := c.Get("u1"); !kept || !o.Fresh() || len(o.Sandboxes) != 1 {
		t.Errorf("the look is not kept: %+v", o)
	}
	// A pod that has gone before its first look ended is announced as gone.
	next := c.NextSeq()
	c.relisted(next, time.Now(), map[types.UID]bool{"u1": true, "u3": true}, 0)
	gone, _ := c.relisted(c.NextSeq(), time.Now(), map[types.UID]bool{"u1": true}, 0)
	if o := c.Get("u3"); len(gone) != 1 || gone[0].UID != "u3" || !o.Fresh() {
		t.Errorf("gone are %v", gone)
	}
}
