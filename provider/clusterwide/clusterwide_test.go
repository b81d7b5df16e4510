package clusterwide

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

var _ corelisters.ServiceLister = (*Services)(nil)

// node is a node that reads Services.
type node struct {
	*Services
	leave func() // leaves, and waits until that is done
}

func (s *server) node(t *testing.T, all *Shared, who string) node {
	t.Helper()
	return s.nodeIn(t, all, s.cluster(), who)
}

func (s *server) nodeIn(t *testing.T, all *Shared, c Cluster, who string) node {
	t.Helper()
	r, client := all.Services(), s.client(t, who)
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		if err := r.Run(ctx, c, client); err != nil {
			t.Errorf("%s: %v", who, err)
		}
	})
	leave := func() { cancel(); done.Wait() }
	t.Cleanup(leave)
	return node{r, leave}
}

func (n node) sees(name string) bool {
	_, err := n.Services.Services("shop").Get(name)
	return err == nil
}

func (n node) synced(t *testing.T) {
	t.Helper()
	testutil.Eventually(t, "the node has synced", n.HasSynced)
}

// TestOneReadForAllNodes: all nodes of a cluster use one client: each object is sent once, and one
// watch is open.
func TestOneReadForAllNodes(t *testing.T) {
	s := newServer(t)
	s.add("services", "a")
	all := &Shared{}
	var nodes []node
	for _, who := range []string{"n1", "n2", "n3"} {
		nodes = append(nodes, s.node(t, all, who))
	}
	for _, n := range nodes {
		n.synced(t)
	}
	s.add("services", "b")
	for _, n := range nodes {
		testutil.Eventually(t, "each sees what is there, and what comes", func() bool { return n.sees("a") && n.sees("b") })
		list, err := n.List(labels.Everything())
		if err != nil || len(list) != 2 || list[0].Annotations != nil {
			t.Errorf("listed: %v, %v", list, err)
		}
	}
	if reads, watches := s.count("services all"), s.watching("services"); reads != 1 || len(watches) != 1 {
		t.Errorf("all Services were sent %d times, and %v watch them, want once and one", reads, watches)
	}
}

// TestRuntimeClasses: a node that joins others is synced without a list of its own. RuntimeClasses
// and Services are read independently.
func TestRuntimeClasses(t *testing.T) {
	s := newServer(t)
	s.add("runtimeclasses", "gvisor")
	all := &Shared{}
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	defer running.Wait()
	defer cancel()
	for _, who := range []string{"n1", "n2"} {
		r, client := all.RuntimeClasses(), s.client(t, who)
		if _, err := r.Get("gvisor"); !apierrors.IsNotFound(err) {
			t.Errorf("before it has joined: %v", err)
		}
		running.Go(func() { _ = r.Run(ctx, s.cluster(), client) })
		testutil.Eventually(t, "it has synced", r.HasSynced)
		if c, err := r.Get("gvisor"); err != nil || c.Handler != "h-gvisor" {
			t.Errorf("%s: %v, %v", who, c, err)
		}
	}
	if reads, watches := s.count("runtimeclasses all"), s.watching("runtimeclasses"); reads != 1 || len(watches) != 1 {
		t.Errorf("read %d times, watched by %v", reads, watches)
	}
}

// TestAnotherTakesOver: when the node leaves whose client is used, another client continues the
// watch: nothing is listed again, and nothing is missed.
func TestAnotherTakesOver(t *testing.T) {
	s := newServer(t)
	s.add("services", "a")
	all := &Shared{}
	first := s.node(t, all, "n1")
	first.synced(t)
	second, third := s.node(t, all, "n2"), s.node(t, all, "n3")
	second.synced(t)
	third.synced(t)
	testutil.Eventually(t, "the first watches", func() bool { return slices.Equal(s.watching("services"), []string{"n1"}) })
	s.add("services", "early") // client-go treats a short watch without events as suspicious
	testutil.Eventually(t, "it is seen", func() bool { return second.sees("early") })
	first.leave()
	testutil.Eventually(t, "one of the others watches", func() bool {
		w := s.watching("services")
		return len(w) == 1 && w[0] != "n1"
	})
	s.add("services", "b")
	testutil.Eventually(t, "both see what comes", func() bool { return second.sees("b") && third.sees("b") })
	if reads := s.count("services all"); reads != 1 {
		t.Errorf("all Services were sent %d times", reads)
	}
	if !second.HasSynced() || !second.sees("a") {
		t.Error("the second lost what it had")
	}
}

// TestFailingClientGivesWay: a client that is refused, or gets no answer, gives way to another.
func TestFailingClientGivesWay(t *testing.T) {
	for name, fail := range map[string]func(*server, string){
		"forbidden":    func(s *server, who string) { s.refused[who] = http.StatusForbidden },
		"unauthorized": func(s *server, who string) { s.refused[who] = http.StatusUnauthorized },
		"no answer":    func(s *server, who string) { s.lost[who] = true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			all := &Shared{}
			var nodes []node
			for _, who := range []string{"n1", "n2", "n3"} {
				nodes = append(nodes, s.node(t, all, who))
				nodes[len(nodes)-1].synced(t)
			}
			testutil.Eventually(t, "the first watches", func() bool { return slices.Equal(s.watching("services"), []string{"n1"}) })
			s.change(func() { fail(s, "n1"); fail(s, "n2") })
			testutil.Eventually(t, "the third watches", func() bool { return slices.Equal(s.watching("services"), []string{"n3"}) })
			s.add("services", "late")
			for _, n := range nodes {
				testutil.Eventually(t, "each sees what comes", func() bool { return n.sees("late") })
			}
		})
	}
}

// TestNodeThatMayNotRead: a node that may not read is not synced and sees nothing, whatever others
// read, and its client is never used. Once it may read, it has all objects.
func TestNodeThatMayNotRead(t *testing.T) {
	s := newServer(t)
	s.add("services", "a")
	s.refused["n1"] = http.StatusForbidden
	all := &Shared{}
	without := s.node(t, all, "n1")
	testutil.Eventually(t, "it has asked", func() bool { return s.count("services one n1") > 0 })
	with := s.node(t, all, "n2")
	with.synced(t)
	if without.HasSynced() || without.sees("a") || s.count("services all n1") > 0 {
		t.Error("a node that may not read reads by another's right")
	}
	s.change(func() { delete(s.refused, "n1") })
	without.synced(t)
	if !without.sees("a") || s.count("services all") != 1 {
		t.Error("a node that may read now does not read what others do")
	}
}

// TestClustersAreApart: nodes share nothing across API servers, trusts, or clusters behind one
// address.
func TestClustersAreApart(t *testing.T) {
	ours, theirs := newServer(t), newServer(t)
	ours.add("services", "ours")
	theirs.add("services", "theirs")
	all := &Shared{}
	a, b := ours.node(t, all, "n1"), theirs.node(t, all, "n1") // both say that they are "u"
	a.synced(t)
	b.synced(t)
	if !a.sees("ours") || a.sees("theirs") || !b.sees("theirs") || b.sees("ours") {
		t.Error("two clusters are mixed")
	}
	c := ours.cluster()
	c.Trust = "none"
	ours.nodeIn(t, all, c, "n2").synced(t)
	c = ours.cluster()
	c.UID = "another"
	ours.nodeIn(t, all, c, "n3").synced(t)
	if n := len(ours.watching("services")); n != 3 {
		t.Errorf("%d watches, want one for each", n)
	}
}

// TestLastNodeLeaves: with the last node, the watch and the memory are released; the next node
// lists again.
func TestLastNodeLeaves(t *testing.T) {
	s := newServer(t)
	s.add("services", "a")
	all := &Shared{}
	n1, n2 := s.node(t, all, "n1"), s.node(t, all, "n2")
	n1.synced(t)
	n2.synced(t)
	held := weak.Make(n1.view.Load())
	n1.leave()
	if n2.leave(); !n2.sees("a") {
		t.Error("what a node reads is gone while its last containers start")
	}
	testutil.Eventually(t, "no client watches", func() bool { return len(s.watching("services")) == 0 })
	if len(all.views) != 0 {
		t.Errorf("%d views are left", len(all.views))
	}
	n1.Services.view.Store(nil) // as if the nodes were gone
	n2.Services.view.Store(nil)
	testutil.Eventually(t, "the memory is free", func() bool { runtime.GC(); return held.Value() == nil })
	again := s.node(t, all, "n1")
	again.synced(t)
	if !again.sees("a") || s.count("services all") != 2 {
		t.Error("the next node does not read again")
	}
}

// TestNodesComeAndGo: nodes join and leave concurrently, and one that stays sees everything.
func TestNodesComeAndGo(t *testing.T) {
	s := newServer(t)
	all := &Shared{}
	stays := s.node(t, all, "stays")
	var others sync.WaitGroup
	for _, who := range []string{"n1", "n2", "n3", "n4"} {
		others.Go(func() {
			for i := range 10 {
				ctx, cancel := context.WithCancel(context.Background())
				r, client := all.Services(), s.client(t, who)
				var run sync.WaitGroup
				run.Go(func() { _ = r.Run(ctx, s.cluster(), client) })
				testutil.Eventually(t, "it has synced", r.HasSynced)
				s.add("services", who+string(rune('a'+i)))
				cancel()
				run.Wait()
			}
		})
	}
	others.Wait()
	testutil.Eventually(t, "all is seen", func() bool {
		list, err := stays.List(labels.Everything())
		return err == nil && len(list) == 40
	})
	if n := len(s.watching("services")); n != 1 {
		t.Errorf("%d watches are open", n)
	}
}

func listed(l *sources) (order []*source) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.order)
}

// TestEmptyWatchGivesWay: client-go sees a broken connection as an empty watch, so its client gives
// way. A watch that ends after an event is normal.
func TestEmptyWatchGivesWay(t *testing.T) {
	for _, speaks := range []bool{true, false} {
		v := &view{kind: services}
		a, b := newSource(nil), newSource(nil)
		v.sources.add(a)
		v.sources.add(b)
		from := watch.NewFakeWithOptions(watch.FakeOptions{ChannelSize: 1})
		if speaks {
			from.Modify(&v1.Service{})
		}
		from.Stop()
		for range v.relay(a, from, func() {}).ResultChan() {
		}
		v.running.Wait()
		if (listed(&v.sources)[0] == a) != speaks {
			t.Errorf("it spoke: %v; its client gives way: %v", speaks, !speaks)
		}
	}
}

// TestSilentWatchGivesWay: a watch without events ends, and its client gives way; an event
// postpones that.
func TestSilentWatchGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &view{kind: services}
		a, b := newSource(nil), newSource(nil)
		v.sources.add(a)
		v.sources.add(b)
		from := watch.NewFake()
		var ended atomic.Bool
		w := v.relay(a, from, func() { ended.Store(true) })
		time.Sleep(silenceLimit - time.Second)
		go from.Modify(&v1.Service{ObjectMeta: metav1.ObjectMeta{Name: "x"}})
		<-w.ResultChan()
		time.Sleep(silenceLimit - time.Second)
		synctest.Wait()
		if listed(&v.sources)[0] != a || ended.Load() {
			t.Error("a watch that spoke is taken for silent")
		}
		time.Sleep(2 * time.Second)
		if _, open := <-w.ResultChan(); open || listed(&v.sources)[0] != b || !from.IsStopped() || !ended.Load() {
			t.Error("a silent watch continues")
		}
		v.running.Wait()
		a.uses.Wait()
	})
}

// TestTry: after a refusal, each other client is tried at once; without an answer, they wait for
// the next try.
func TestTry(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{}, "", nil)
	for name, c := range map[string]struct {
		fails []error // of the sources, in order
		calls int
		ok    bool
	}{
		"good":                    {[]error{nil, nil}, 1, true},
		"refused, then good":      {[]error{forbidden, forbidden, nil}, 3, true},
		"all refused":             {[]error{forbidden, forbidden, forbidden}, 3, false},
		"no answer":               {[]error{errors.New("reset"), nil}, 1, false},
		"refused, then no answer": {[]error{forbidden, errors.New("reset"), nil}, 2, false},
		"none":                    {nil, 0, false},
	} {
		var l sources
		by := map[*source]error{}
		for _, err := range c.fails {
			s := newSource(nil)
			by[s] = err
			l.add(s)
		}
		calls := 0
		err := l.try(t.Context(), func(_ context.Context, s *source) error { calls++; return by[s] })
		if calls != c.calls || (err == nil) != c.ok {
			t.Errorf("%s: %d calls, %v", name, calls, err)
		}
		for s := range by {
			s.uses.Wait()
		}
		if c.ok && by[listed(&l)[0]] != nil {
			t.Errorf("%s: who failed is still the first", name)
		}
	}
}

// TestLeavesDuringACall: if a client's node leaves during a call, the next client makes it.
func TestLeavesDuringACall(t *testing.T) {
	var l sources
	a, b := newSource(nil), newSource(nil)
	l.add(a)
	l.add(b)
	var used []*source
	err := l.try(t.Context(), func(ctx context.Context, s *source) error {
		used = append(used, s)
		if s == a {
			l.remove(a)
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	})
	if err != nil || !slices.Equal(used, []*source{a, b}) {
		t.Errorf("%v by %d calls", err, len(used))
	}
}
