package replica

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/hosts/shard"
)

// bubble runs a test in virtual time.
func bubble(t *testing.T, hosts int, test func(*testing.T, *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, hosts)
		defer w.end()
		test(t, w)
	})
}

// TestSecondReplica: the first has all hosts at once. The second gets half of them, one by one,
// after it has lived for a while.
func TestSecondReplica(t *testing.T) {
	bubble(t, 10, func(t *testing.T, w *world) {
		w.start("a")
		w.after(time.Second)
		w.want("a:10")
		w.fresh()
		w.start("b")
		w.after(29 * time.Second)
		w.want("a:10 b:0")
		if n := w.moves(); n != 0 {
			t.Errorf("%d hosts moved at once", n)
		}
		w.after(time.Minute)
		w.want("a:5 b:5")
		t.Logf("the longest that a host was not managed is %s, %d at most at once", w.worst, w.most)
		if n := w.moves(); n != 5 || w.most != 1 || w.worst > 2*time.Second || len(w.both) > 0 {
			t.Errorf("%d moves, %d hosts at once, for %s at most, both had %v", n, w.most, w.worst, w.both)
		}
	})
}

// TestKilled: the hosts of a replica that is killed are with others within 20 s, and no other host
// moves. This holds also if its machine dies with it, so that the locks are released later.
func TestKilled(t *testing.T) {
	for what, locks := range map[string]time.Duration{"process": 0, "machine": 15 * time.Second} {
		t.Run(what, func(t *testing.T) {
			bubble(t, 30, func(t *testing.T, w *world) {
				w.start("a")
				b := w.start("b")
				w.start("c")
				w.after(2 * time.Minute)
				w.want("a:10 b:10 c:10")
				w.fresh()
				b.kill(locks)
				w.after(20 * time.Second)
				w.want("a:15 b:0 c:15")
				t.Logf("the longest that a host was not managed is %s", w.worst)
				if n := w.moves(); n != 10 || w.worst > 20*time.Second || w.worst < 5*time.Second || len(w.both) > 0 {
					t.Errorf("%d moves, not managed for %s at most, both had %v", n, w.worst, w.both)
				}
				w.start("d")
				w.after(2 * time.Minute)
				w.want("a:10 b:0 c:10 d:10")
			})
		})
	}
}

// TestComesBack: a process that is killed, and restarted under its name within the 10 s, keeps its
// hosts.
func TestComesBack(t *testing.T) {
	bubble(t, 6, func(t *testing.T, w *world) {
		a := w.start("a")
		w.start("b")
		w.after(time.Minute)
		w.want("a:3 b:3")
		w.fresh()
		a.kill(0)
		w.after(4 * time.Second)
		w.start("a")
		w.after(time.Minute)
		w.want("a:0 b:3 a:3")
		if n := w.moves(); n != 3 || w.worst > 5*time.Second {
			t.Errorf("%d were taken again, and not managed for %s", n, w.worst)
		}
	})
}

// TestAPIServerAway: while the API server is down, and when it returns to one replica before the
// other, no host moves, and no driver stops.
func TestAPIServerAway(t *testing.T) {
	for what, how := range map[string]condition{"refusing": refusing, "silent": swallowed} {
		for _, away := range []time.Duration{5 * time.Second, 7 * time.Second, 9 * time.Second, 12 * time.Second, time.Minute, time.Hour} {
			t.Run(what+" for "+away.String(), func(t *testing.T) {
				bubble(t, 9, func(t *testing.T, w *world) {
					a, b, c := w.start("a"), w.start("b"), w.start("c")
					w.after(time.Minute)
					w.want("a:3 b:3 c:3")
					rounds := 4
					if away >= time.Minute {
						rounds = 1
					}
					for range rounds {
						w.after(1700 * time.Millisecond) // at another phase of the renewals each time
						w.fresh()
						for _, m := range []*member{a, b, c} {
							m.wire.turn(how)
						}
						w.after(away)
						for _, m := range []*member{b, a, c} {
							m.wire.turn(whole)
							w.after(300 * time.Millisecond)
						}
						w.after(3 * time.Minute)
						w.want("a:3 b:3 c:3")
						if n := w.moves(); n != 0 || w.most != 0 {
							t.Errorf("%d moves, %d hosts not managed", n, w.most)
						}
					}
				})
			})
		}
	}
}

// TestLeaves: a replica that is stopped gives its hosts away one by one, and then deletes its
// Lease. The only replica lets go of all, and the next one has them at once.
func TestLeaves(t *testing.T) {
	bubble(t, 9, func(t *testing.T, w *world) {
		a := w.start("a")
		b, c := w.start("b"), w.start("c")
		w.after(time.Minute)
		w.want("a:3 b:3 c:3")
		w.fresh()
		leave := func(m *member, within time.Duration) {
			t.Helper()
			began := time.Now()
			m.cancel()
			for len(m.ended) == 0 && time.Since(began) < within {
				w.after(100 * time.Millisecond)
			}
			if len(m.ended) == 0 {
				t.Fatalf("it has not ended after %s", within)
			}
			if err := <-m.ended; err != nil {
				t.Error(err)
			}
			t.Logf("it has left after %s", time.Since(began))
			if l := w.lease(replicaPrefix + m.name); l != nil {
				t.Errorf("its Lease is there: %v", l)
			}
		}
		leave(a, 5*time.Second)
		w.after(time.Second)
		w.want("a:0 b:5 c:4")
		if n := w.moves(); n != 3 || w.most != 1 || w.worst > time.Second || len(w.both) > 0 {
			t.Errorf("%d moves, %d hosts at once, for %s at most, both had %v", n, w.most, w.worst, w.both)
		}

		// More hosts than the time allows: the others take the rest at once.
		c.slow(4*time.Second, 0)
		leave(c, c.r.cfg.Patience+dropTime+time.Second)
		w.after(time.Second)
		w.want("a:0 b:9 c:0")

		leave(b, 2*time.Second)
		w.fresh()
		w.start("d")
		w.after(time.Second)
		w.want("a:0 b:0 c:0 d:9")
	})
}

// TestBothLeave: the replica that gets a host leaves at any moment of the handover. The one that gives
// it does not begin with the host again while the new holder is written.
func TestBothLeave(t *testing.T) {
	for after := time.Duration(0); after < 1200*time.Millisecond; after += 10 * time.Millisecond {
		bubble(t, 2, func(t *testing.T, w *world) {
			a, b := w.start("a"), w.start("b")
			w.after(time.Minute)
			w.want("a:1 b:1")
			a.cancel()
			w.after(after)
			b.cancel()
			w.after(time.Minute)
			if len(a.ended) == 0 || len(b.ended) == 0 {
				t.Errorf("%s apart: %d and %d have ended", after, len(a.ended), len(b.ended))
			}
		})
	}
}

// TestLeavingTakesNothing: a host that is added while a replica leaves goes to another.
func TestLeavingTakesNothing(t *testing.T) {
	bubble(t, 6, func(t *testing.T, w *world) {
		a, b := w.start("a"), w.start("b")
		w.after(time.Minute)
		w.want("a:3 b:3")
		a.slow(10*time.Second, 0)
		a.cancel()
		w.after(time.Second)
		for _, h := range []string{"new-1", "new-2", "new-3"} {
			w.hosts[h] = &config.Host{Name: h}
		}
		for _, m := range []*member{a, b} {
			m.r.Set(maps.Clone(w.hosts))
			m.r.Hosts(slices.Collect(maps.Keys(w.hosts)))
		}
		w.after(time.Second)
		for _, h := range []string{"new-1", "new-2", "new-3"} {
			if a.r.Holds(h) || !b.r.Holds(h) {
				t.Errorf("%s is with who leaves: %v, with the other: %v", h, a.r.Holds(h), b.r.Holds(h))
			}
		}
		w.after(30 * time.Second)
		w.want("a:0 b:9")
	})
}

// TestTakenBack: a host is being given to a replica that dies before it takes it. The old holder
// manages it again.
func TestTakenBack(t *testing.T) {
	bubble(t, 4, func(t *testing.T, w *world) {
		a := w.start("a")
		w.after(time.Second)
		a.slow(0, time.Minute) // so that the other waits for it
		b := w.start("b")
		w.after(45 * time.Second)
		if got := w.counts(); got != "a:3 b:0" {
			t.Fatalf("the hosts are with %q", got)
		}
		b.kill(0)
		w.after(15 * time.Second)
		w.want("a:4 b:0")
	})
}

// TestRollingUpgrade: each host moves once, to a new replica, and never two hosts of one replica at
// a time.
func TestRollingUpgrade(t *testing.T) {
	bubble(t, 12, func(t *testing.T, w *world) {
		a, b, c := w.start("a1"), w.start("b1"), w.start("c1")
		w.after(2 * time.Minute)
		w.want("a1:4 b1:4 c1:4")
		w.fresh()
		for _, step := range []struct {
			next string
			old  *member
		}{{"a2", a}, {"b2", b}, {"c2", c}} {
			w.start(step.next)
			w.after(5 * time.Second) // it is ready
			step.old.cancel()
			w.after(10 * time.Second)
		}
		w.after(3 * time.Minute)
		w.want("a1:0 b1:0 c1:0 a2:4 b2:4 c2:4")
		t.Logf("the longest that a host was not managed is %s, %d at most at once", w.worst, w.most)
		if n := w.moves(); n != 12 || w.most != 1 || w.worst > 2*time.Second || len(w.both) > 0 {
			t.Errorf("%d moves, %d hosts at once, for %s at most, both had %v", n, w.most, w.worst, w.both)
		}
	})
}

// TestCutOff: a replica that alone loses the API server continues to manage its hosts by the
// machines' locks, although the others have taken its Leases. When it learns of that, it lets go,
// and they manage the hosts.
func TestCutOff(t *testing.T) {
	for what, how := range map[string]condition{"refusing": refusing, "silent": swallowed} {
		t.Run(what, func(t *testing.T) {
			bubble(t, 6, func(t *testing.T, w *world) {
				a := w.start("a")
				b := w.start("b")
				w.after(time.Minute)
				w.want("a:3 b:3")
				w.fresh()
				a.wire.turn(how)
				w.after(2 * time.Minute)
				if got := w.counts(); got != "a:3 b:3" || w.most != 0 {
					t.Errorf("the machines are managed by %q, %d were not", got, w.most)
				}
				held := 0
				for h := range w.hosts {
					if b.r.Holds(h) {
						held++
					}
				}
				if held != 6 || len(w.both) != 3 {
					t.Errorf("the other one has %d, both have %v", held, w.both)
				}
				// Its links are cut as well: the machines release its locks.
				w.mu.Lock()
				a.apart = true
				w.free(func(_ string, by *member) bool { return by == a })
				w.mu.Unlock()
				w.after(time.Second)
				w.mu.Lock()
				for h, by := range w.locks {
					if by != b {
						t.Errorf("%s is managed by %s", h, by.name)
					}
				}
				clear(w.both)
				a.apart = false
				w.mu.Unlock()
				a.wire.turn(whole)
				// A watch that has failed for long is retried at client-go's own pace.
				w.after(90 * time.Second)
				for h, d := range w.both {
					if d > 65*time.Second {
						t.Errorf("both have had %s for %s since they could see", h, d)
					}
				}
				w.mu.Lock()
				clear(w.both)
				w.mu.Unlock()
				w.after(2 * time.Minute)
				w.want("a:3 b:3")
				if len(w.both) > 0 {
					t.Errorf("both have %v", w.both)
				}
			})
		})
	}
}

// TestNotHeardTakesNothing: a replica that cannot renew takes no new host, and does so as soon as
// it can renew.
func TestNotHeardTakesNothing(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world) {
		a := w.start("a")
		w.after(time.Second)
		w.want("a:2")
		a.wire.mu.Lock()
		a.wire.denied = replicaPrefix
		a.wire.mu.Unlock()
		w.after(10 * time.Second)
		more := []string{"h00", "h01", "new", "given"}
		a.r.Hosts(more)
		w.after(time.Minute)
		w.want("a:2")
		// Another replica gives it a host, as it may before it notices.
		given := &wire{server: w.server, by: a}
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: leaseName("given"), Labels: map[string]string{KindLabel: "host"}}}
		lease.Spec.HolderIdentity = &a.name
		if _, err := given.Create(t.Context(), lease, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.after(time.Minute)
		if a.r.Holds("given") || a.r.Holds("new") || w.lease(leaseName("new")) != nil {
			t.Error("it has taken a host")
		}
		a.wire.mu.Lock()
		a.wire.denied = ""
		a.wire.mu.Unlock()
		w.after(3 * time.Second)
		for _, h := range more {
			if !a.r.Holds(h) {
				t.Errorf("it has not taken %s", h)
			}
		}
	})
}

// TestHostLeaseDenied: a host whose Lease cannot be written is not managed until it can be.
func TestHostLeaseDenied(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world) {
		a := w.start("a")
		a.wire.mu.Lock()
		a.wire.denied = leaseName("h01")
		a.wire.mu.Unlock()
		w.after(time.Minute)
		if got := w.counts(); got != "a:1" {
			t.Errorf("the hosts are with %q", got)
		}
		a.wire.mu.Lock()
		a.wire.denied = ""
		a.wire.mu.Unlock()
		w.after(2 * time.Second)
		w.want("a:2")
	})
}

// TestOneName: of two processes of one name, the one that was started last continues. The other one
// ends with an error.
func TestOneName(t *testing.T) {
	bubble(t, 3, func(t *testing.T, w *world) {
		first := w.start("a")
		w.after(20 * time.Second)
		w.start("a")
		w.after(20 * time.Second)
		select {
		case err := <-first.ended:
			if err == nil || !strings.Contains(hint.Text(err), "Give each replica its own name") {
				t.Errorf("it ended with %v", err)
			}
		default:
			t.Error("the first one has not ended")
		}
		w.want("a:0 a:3")
	})
}

// TestTidy: the Leases of a deleted Host, and of a replica that has been dead for long, are
// deleted.
func TestTidy(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world) {
		a, b := w.start("a"), w.start("b")
		w.after(time.Minute)
		w.want("a:1 b:1")
		for _, m := range []*member{a, b} {
			m.r.Hosts([]string{"h00"})
		}
		delete(w.hosts, "h01")
		w.after(time.Second)
		if a.r.Holds("h01") || b.r.Holds("h01") {
			t.Error("a host that is no more is held")
		}
		w.after(40 * time.Second)
		if l := w.lease(leaseName("h01")); l != nil {
			t.Errorf("its Lease is %v", l)
		}
		b.kill(0)
		w.after(time.Minute)
		w.want("a:1 b:0")
		if w.lease(replicaPrefix+"b") == nil {
			t.Error("the Lease of who died just now is gone")
		}
		w.after(forgotten)
		if l := w.lease(replicaPrefix + "b"); l != nil {
			t.Errorf("the Lease of who died long ago is %v", l)
		}
	})
}

// TestUnknownToOne: a Host that one replica does not know yet stays with the one that does.
func TestUnknownToOne(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world) {
		a, b := w.start("a"), w.start("b")
		w.after(time.Minute)
		w.want("a:1 b:1")
		its := "h00"
		if !b.r.Holds(its) {
			its = "h01"
		}
		before := w.lease(leaseName(its))
		a.r.Hosts(nil)
		w.after(5 * time.Minute)
		if now := w.lease(leaseName(its)); now == nil || now.UID != before.UID || now.ResourceVersion != before.ResourceVersion {
			t.Errorf("the Lease of %s was %v, and is %v", its, before, now)
		}
		a.r.Hosts(slices.Collect(maps.Keys(w.hosts)))
		w.after(time.Minute)
		w.want("a:1 b:1")
	})
}

func TestLeaseName(t *testing.T) {
	if got := leaseName("box-1.lan"); got != "bowline-host-box-1.lan" {
		t.Error(got)
	}
	a, b := leaseName(strings.Repeat("a", 253)), leaseName(strings.Repeat("a", 252)+"b")
	if a == b || len(a) > 253 || len(b) > 253 {
		t.Errorf("long names: %s, %s", a, b)
	}
}

func TestNewWantsAll(t *testing.T) {
	_, err := New(Config{})
	for _, field := range []string{"Name", "Leases", "Sink", "Managed"} {
		if err == nil || !strings.Contains(err.Error(), field+" is required") {
			t.Errorf("without %s: %v", field, err)
		}
	}
	if _, err := New(Config{Name: "Not a name"}); err == nil || !strings.Contains(err.Error(), `"Not a name"`) {
		t.Errorf("of a wrong name: %v", err)
	}
}

// TestSilence: how long other replicas may be silent, by when their renewals and ours are seen.
func TestSilence(t *testing.T) {
	const ours, other = "a", "b"
	for _, c := range []struct {
		what        string
		ours, other []float64 // the seconds at which renewals are seen
		at          float64
		heard       bool
		lives       bool
	}{
		{"both renew", []float64{0, 4, 8, 12}, []float64{1, 5, 9, 13}, 13, true, true},
		{"the other is silent", []float64{0, 4, 8}, []float64{1}, 10.9, true, true},
		{"the other is silent for 10 s", []float64{0, 4, 8}, []float64{1}, 11, true, false},
		{"we have not been seen for long", []float64{0, 4}, []float64{1}, 9.9, true, true},
		{"we have not been seen for 6 s", []float64{0, 4}, []float64{1}, 10, false, true},
		{"no one was seen for 7 s: all begin again", []float64{0, 4, 11}, []float64{0}, 15.9, true, true},
		{"and end", []float64{0, 4, 11, 15, 19}, []float64{0}, 21, true, false},
		{"we were late by 1.5 s, which does not count", []float64{0, 5.5, 9.5}, []float64{0}, 11.4, true, true},
		{"and no more than that", []float64{0, 5.5, 9.5}, []float64{0}, 11.5, true, false},
		{"late by 1 s twice", []float64{0, 5, 10}, []float64{0}, 11.9, true, true},
		{"one that was there when we came", []float64{3, 7, 11}, []float64{0}, 12.9, true, true},
		{"has its 10 s", []float64{3, 7, 11}, []float64{0}, 13, true, false},
	} {
		v := &view{replicas: map[string]seen{}, holders: map[string]string{}}
		begin := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
		var times []float64
		times = append(append(append(times, c.ours...), c.other...), c.at)
		slices.Sort(times)
		var s snapshot
		for _, now := range times {
			var all []*coordinationv1.Lease
			for who, renewed := range map[string][]float64{ours: c.ours, other: c.other} {
				n := 0
				for _, r := range renewed {
					if r <= now {
						n++
					}
				}
				if n > 0 {
					l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: replicaPrefix + who, ResourceVersion: fmt.Sprint(n)}}
					l.Spec.HolderIdentity = ptr.To(who + "_x")
					all = append(all, l)
				}
			}
			s = v.see(all, ours+"_x", ours, begin.Add(time.Duration(now*float64(time.Second))))
		}
		if lives := slices.Contains(s.others, shard.Replica{Name: other}); s.heard != c.heard || lives != c.lives {
			t.Errorf("%s: heard is %v, the other lives is %v", c.what, s.heard, lives)
		}
	}
}
