package podconfig

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"pgregory.net/rapid"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

func newPod(name, uid string, edit ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(uid)}}
	for _, e := range edit {
		e(p)
	}
	return p
}

func deleted(grace int64) func(*v1.Pod) {
	return func(p *v1.Pod) {
		at := metav1.NewTime(time.Unix(1000+grace, 0))
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &at, &grace
	}
}

func labelled(p *v1.Pod)  { p.Labels = map[string]string{"a": "b"} }
func podLimits(p *v1.Pod) { p.Spec.Resources = &v1.ResourceRequirements{} }
func ready(p *v1.Pod)     { p.Status.Phase = v1.PodRunning }
func version(rv string) func(*v1.Pod) {
	return func(p *v1.Pod) { p.ResourceVersion = rv }
}

// changes runs the PodConfig until it has delivered every change.
func changes(t *testing.T, c *PodConfig, act func()) []string {
	t.Helper()
	var got []string
	synctest.Test(t, func(t *testing.T) {
		c.wake, c.out = make(chan struct{}, 1), make(chan Change)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = c.Run(ctx) }()
		go func() {
			for {
				select {
				case change := <-c.Updates():
					got = append(got, fmt.Sprintf("%s %s/%s", change.Op, change.Pod.Name, change.Pod.UID))
				case <-ctx.Done():
					return
				}
			}
		}()
		act()
		synctest.Wait()
		cancel()
		<-done
		synctest.Wait()
	})
	return got
}

func TestMerge(t *testing.T) {
	for _, tc := range []struct {
		name string
		sets []*v1.Pod
		want []string
	}{
		{"new", []*v1.Pod{newPod("a", "1")}, []string{"ADD a/1"}},
		{"unchanged", []*v1.Pod{newPod("a", "1"), newPod("a", "1")}, []string{"ADD a/1"}},
		{"labels", []*v1.Pod{newPod("a", "1"), newPod("a", "1", labelled)}, []string{"ADD a/1", "UPDATE a/1"}},
		{"pod-level resources", []*v1.Pod{newPod("a", "1"), newPod("a", "1", podLimits)}, []string{"ADD a/1", "UPDATE a/1"}},
		{"status alone", []*v1.Pod{newPod("a", "1"), newPod("a", "1", ready)}, []string{"ADD a/1", "RECONCILE a/1"}},
		{"a status that went and came back unseen", []*v1.Pod{newPod("a", "1", ready, version("7")), newPod("a", "1", ready, version("9"))}, []string{"ADD a/1", "RECONCILE a/1"}},
		{"the same version", []*v1.Pod{newPod("a", "1", ready, version("7")), newPod("a", "1", ready, version("7"))}, []string{"ADD a/1"}},
		{"graceful deletion", []*v1.Pod{newPod("a", "1"), newPod("a", "1", deleted(30))}, []string{"ADD a/1", "DELETE a/1"}},
		{"shorter grace", []*v1.Pod{newPod("a", "1", deleted(30)), newPod("a", "1", deleted(1))}, []string{"ADD a/1", "DELETE a/1"}},
		{"recreated in one update", []*v1.Pod{newPod("a", "1"), newPod("a", "2")}, []string{"ADD a/1", "REMOVE a/1", "ADD a/2"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := New("api")
			got := changes(t, c, func() {
				for _, p := range tc.sets {
					c.Set("api", p)
				}
			})
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAllSeenWaitsForEverySource(t *testing.T) {
	c := New("api", "file")
	c.Seen("api")
	if c.AllSeen() {
		t.Error("one source has shown nothing, and all count as seen")
	}
	c.Seen("file")
	if !c.AllSeen() {
		t.Error("all sources were seen")
	}
}

// A deletion is found even if the informer delivers it as a tombstone, or not at all.
func TestMissedDeletion(t *testing.T) {
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	a := newPod("a", "1")
	b := newPod("b", "2")
	c := New(SourceAPI)
	api := NewAPI(c, corelisters.NewPodLister(indexer), func() bool { return true })
	got := changes(t, c, func() {
		_ = indexer.Add(a)
		_ = indexer.Add(b)
		testutil.Must(t, api.LookAll())
		_ = indexer.Delete(a)
		api.Handler(t.Context()).OnDelete(cache.DeletedFinalStateUnknown{Key: "ns/a", Obj: a})
		_ = indexer.Delete(b)
		testutil.Must(t, api.LookAll())
	})
	want := []string{"ADD a/1", "ADD b/2", "REMOVE a/1", "REMOVE b/2"}
	if len(got) == 4 && got[0] > got[1] { // the lister returns pods in no order
		got[0], got[1] = got[1], got[0]
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// The REMOVE carries a grace period that only the deleted object shows.
func TestRemoveHasTheLastGrace(t *testing.T) {
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	c := New(SourceAPI)
	api := NewAPI(c, corelisters.NewPodLister(indexer), func() bool { return true })
	c.Set(SourceAPI, newPod("a", "1"))
	api.Handler(t.Context()).OnDelete(newPod("a", "1", deleted(0)))
	last := c.queue[len(c.queue)-1]
	if last.Op != Remove || last.Pod.DeletionGracePeriodSeconds == nil || *last.Pod.DeletionGracePeriodSeconds != 0 {
		t.Errorf("%s with grace %v", last.Op, last.Pod.DeletionGracePeriodSeconds)
	}
}

// Replaying the changes leads to what the sources show: every UID is added once before any other
// change and removed once after all of them.
func TestReplay(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := New("api")
		edits := []func(*v1.Pod){func(*v1.Pod) {}, labelled, ready, deleted(30), deleted(5)}
		last := map[string]*v1.Pod{}
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			name := rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "name")
			if rapid.Bool().Draw(rt, "drop") {
				c.Drop("api", "ns", name)
				delete(last, name)
				continue
			}
			p := newPod(name, name+rapid.SampledFrom([]string{"1", "2"}).Draw(rt, "uid"), rapid.SampledFrom(edits).Draw(rt, "edit"))
			c.Set("api", p)
			last[name] = p
		}
		have := map[types.UID]*v1.Pod{}
		for _, change := range c.queue {
			_, known := have[change.Pod.UID]
			if (change.Op == Add) == known {
				rt.Fatalf("%s of %s, known: %v", change.Op, change.Pod.UID, known)
			}
			if change.Op == Remove {
				delete(have, change.Pod.UID)
				continue
			}
			have[change.Pod.UID] = change.Pod
		}
		if len(have) != len(last) {
			rt.Fatalf("replay ends with %d pods, the source has %d", len(have), len(last))
		}
		for _, p := range last {
			if diff := cmp.Diff(p, have[p.UID]); diff != "" {
				rt.Fatal(diff)
			}
		}
	})
}
