package hosts

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
)

// part is a fake Shard.
type part struct {
	mu   sync.Mutex
	all  string
	held string
}

func (p *part) Hosts(names []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = strings.Join(slices.Sorted(slices.Values(names)), " ")
}

func (p *part) Holds(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Contains(strings.Fields(p.held), name)
}

func (p *part) hold(w *world, names string) {
	p.mu.Lock()
	before := p.held
	p.held = names
	p.mu.Unlock()
	for _, name := range strings.Fields(before + " " + names) {
		w.source.Look(name)
	}
	after(time.Second)
}

// TestShardIsNotified: the Shard receives the names of the Hosts as they come and go.
func TestShardIsNotified(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &part{all: "not told"}
		w := newWorldOf(t, p)
		for _, step := range []struct {
			do   func()
			want string
		}{
			{func() {}, ""},
			{func() { w.api.change("b", same); w.api.change("a", same) }, "a b"},
			{func() { w.api.remove("a") }, "b"},
		} {
			step.do()
			after(time.Second)
			if p.all != step.want {
				t.Errorf("it was notified of %q, and not of %q", p.all, step.want)
			}
		}
	})
}

// TestHostsOfOthers: nothing is done about a Host that another process holds, even if it is invalid
// or deleted. It is reconciled as soon as it is ours, and let go when it stops being ours.
func TestHostsOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &part{}
		w := newWorldOf(t, p, secret("box"), secret("deleted"), node("deleted", "deleted"))
		w.api.change("box", same)
		w.api.change("wrong", func(h *v1alpha1.Host) { h.Spec.Labels = map[string]string{"kubernetes.io/role": "master"} })
		w.api.change("deleted", func(h *v1alpha1.Host) {
			now := metav1.Now()
			h.DeletionTimestamp, h.Finalizers = &now, []string{v1alpha1.Finalizer}
		})
		after(time.Minute)
		if len(w.api.writes) != 0 || w.sets != 0 || len(w.client.Actions()) != 0 {
			t.Errorf("Hosts of others: %v statuses were written, %d times set, and asked for were %v", w.api.writes, w.sets, w.client.Actions())
		}
		for _, name := range []string{"box", "wrong", "deleted"} {
			if w.source.At(name) {
				t.Errorf("something is done about %s", name)
			}
		}
		if h := w.api.get("box"); len(h.Finalizers) != 0 {
			t.Errorf("it has the finalizers %q", h.Finalizers)
		}

		p.hold(w, "box wrong deleted")
		after(5 * time.Second)
		if w.wanted() != "box" || !w.source.At("box") {
			t.Fatalf("wanted are %q", w.wanted())
		}
		w.manages("box")
		after(5 * time.Second)
		w.ready("box", ReasonNodeReady)
		w.ready("wrong", ReasonInvalid)
		after(20 * time.Second)
		if h := w.api.get("deleted"); h != nil {
			t.Errorf("it is there: %+v", h.Status)
		}

		p.hold(w, "")
		written := w.api.writes["box"]
		if w.wanted() != "" || w.source.At("box") || w.source.At("wrong") {
			t.Errorf("wanted are %q, at box %v, at wrong %v", w.wanted(), w.source.At("box"), w.source.At("wrong"))
		}
		w.api.change("box", same)
		after(time.Minute)
		if w.api.writes["box"] != written {
			t.Error("the status of another's was written")
		}
	})
}

// TestRemovalIsHandedOver: a release is cancelled when its Host moves to another process, and At
// tells when that is over.
func TestRemovalIsHandedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &part{held: "box"}
		w := newWorldOf(t, p, secret("box"), node("box", "box"))
		w.emptying = 5 * time.Minute
		w.api.change("box", same)
		after(2 * time.Second)
		w.api.remove("box")
		after(10 * time.Second)
		w.ready("box", ReasonReleasing)
		p.hold(w, "")
		if w.source.At("box") || len(w.released) != 0 {
			t.Errorf("at it is %v, released %q", w.source.At("box"), w.released)
		}
		p.hold(w, "box")
		after(6 * time.Minute)
		if h := w.api.get("box"); h != nil || len(w.released) != 1 {
			t.Errorf("released %q, it is %+v", w.released, h)
		}
	})
}

// TestLocalWithReplicas: the machine of one replica is a different one for each other replica, so it
// is refused.
func TestLocalWithReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorldOf(t, &part{held: "box"})
		w.api.change("box", func(h *v1alpha1.Host) { h.Spec = v1alpha1.HostSpec{Endpoint: "unix:///run/containerd/containerd.sock"} })
		after(5 * time.Second)
		w.ready("box", ReasonInvalid, "differs between replicas")
		if w.wanted() != "" {
			t.Errorf("wanted are %q", w.wanted())
		}
	})
}
