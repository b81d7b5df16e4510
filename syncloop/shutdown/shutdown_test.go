package shutdown

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bowline-k8s/bowline/syncloop/shutdown/order"
)

var periods = []order.Period{{Priority: 0, Time: 20 * time.Second}, {Priority: 2_000_000_000, Time: 10 * time.Second}}

const (
	told   = "event NodeShutdown: Shutdown manager detected shutdown event"
	untold = "event NodeShutdown: Shutdown manager detected shutdown cancellation"
)

func sleep(d time.Duration) { time.Sleep(d); synctest.Wait() } // in synctest's time

// TestShutdown: pods end by priority, each group when the previous one has ended, and the host goes
// down when all have, not before.
func TestShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.pod("system", 2_000_000_000, time.Second)
		w.pod("slow", 0, 7*time.Second)
		w.pod("quick", 5, time.Second)
		m := w.manager(periods...)
		defer w.run(m)()
		w.wants("0s held")
		sleep(time.Hour)
		w.wants()
		if m.Going() {
			t.Error("it goes down by itself")
		}
		w.change(func() { w.going = true })
		w.wants("1h0m0s "+told, "1h0m0s going true", "1h0m0s end slow 20s", "1h0m0s end quick 20s")
		if !m.Going() {
			t.Error("pods are taken while the machine goes down")
		}
		sleep(6 * time.Second)
		w.wants()
		sleep(10 * time.Second)
		w.wants("1h0m7s end system 10s", "1h0m8s released")
		sleep(time.Minute)
		w.wants()
		w.mu.Lock()
		defer w.mu.Unlock()
		if want := []string{"began 1h0m0s", "ended 1h0m8s"}; !slices.Equal(w.phases, want) {
			t.Errorf("phases %q, want %q", w.phases, want)
		}
	})
}

// TestTimeIsOver: a group that does not end in time does not take the next group's time, and the
// host goes down when all time is over.
func TestTimeIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.pod("stuck", 0, time.Hour)
		w.pod("system", 2_000_000_000, time.Hour)
		defer w.run(w.manager(periods...))()
		w.change(func() { w.going = true })
		w.wants("0s held", "0s "+told, "0s going true", "0s end stuck 20s")
		sleep(time.Minute)
		w.wants("20s end system 10s", "35s released") // includes Margin, for the last status
	})
}

// TestNothingRuns: without pods there is nothing to wait for.
func TestNothingRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.run(w.manager(periods...))()
		w.change(func() { w.going = true })
		w.wants("0s held", "0s "+told, "0s going true", "0s released")
	})
}

// TestAPIServerAway: the API server gets limited time to receive the statuses.
func TestAPIServerAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.silent = true
		w.pod("a", 0, time.Second)
		defer w.run(w.manager(periods...))()
		w.change(func() { w.going = true })
		sleep(9 * time.Second)
		w.wants("0s held", "0s "+told, "0s going true", "0s end a 20s")
		sleep(time.Minute)
		w.wants("11s released")
	})
	synctest.Test(t, func(t *testing.T) { // the API server is back in time
		w := newWorld(t)
		w.silent = true
		w.pod("a", 0, time.Second)
		defer w.run(w.manager(periods...))()
		w.change(func() { w.going = true })
		sleep(4*time.Second + 50*time.Millisecond)
		w.mu.Lock()
		w.silent = false
		w.mu.Unlock()
		sleep(time.Second)
		w.wants("0s held", "0s "+told, "0s going true", "0s end a 20s", "4.1s released")
	})
}

// TestCalledOff: pods that were not ended yet keep running, the node takes pods again, and static
// pods that have ended restart. The next shutdown starts over.
func TestCalledOff(t *testing.T) {
	for name, after := range map[string]struct {
		wait time.Duration
		want []string
	}{
		"in the middle": {5 * time.Second, nil},
		"at the end":    {19 * time.Second, []string{"10s end system 10s", "11s released"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.pod("a", 0, 10*time.Second)
				w.pod("system", 2_000_000_000, time.Second)
				w.revivals = 2
				m := w.manager(periods...)
				defer w.run(m)()
				w.change(func() { w.going = true })
				w.wants("0s held", "0s "+told, "0s going true", "0s end a 20s")
				sleep(after.wait)
				w.wants(after.want...)
				w.change(func() { w.going = false })
				at := after.wait.String() + " "
				want := []string{at + untold, at + "going false"}
				if after.want != nil {
					want = append([]string{at + "held"}, want...)
				}
				w.wants(want...)
				if m.Going() {
					t.Error("it still goes down")
				}
				sleep(time.Hour)
				w.wants((after.wait+time.Second).String()+" revive", (after.wait+2*time.Second).String()+" revive")
				if w.held == false {
					t.Error("the next shutdown would not wait")
				}
				w.change(func() { w.going = true })
				at = (after.wait + time.Hour).String() + " "
				want = []string{at + told, at + "going true"}
				if after.want == nil {
					want = append(want, at+"end system 10s")
				} else {
					want = append(want, at+"released")
				}
				w.wants(want...)
			})
		})
	}
}

// TestFalseHint: a signal that is not logind's, or is late, decides nothing.
func TestFalseHint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.pod("a", 0, time.Second)
		m := w.manager(periods...)
		defer w.run(m)()
		w.change(func() {})
		w.change(func() {})
		w.wants("0s held")
		if m.Going() {
			t.Error("a hint was believed")
		}
	})
}

// TestNoAnswer: after a failed call the inhibitor is kept for a while.
func TestNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.pod("a", 0, time.Second)
		defer w.run(w.manager(periods...))()
		w.wants("0s held")
		w.change(func() { w.going, w.deaf = true, 2 })
		sleep(10 * time.Second)
		w.wants("2s "+told, "2s going true", "2s end a 20s", "3s released")
	})
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.run(w.manager(periods...))()
		w.change(func() { w.deaf = 100 })
		sleep(10 * time.Second)
		if w.sessions < 2 {
			t.Error("a session that never answers is kept for ever")
		}
	})
}

// TestLinkDies: while the link is dead no further pods end, and the host counts as going down. When
// the link is back, the host is asked.
func TestLinkDies(t *testing.T) {
	for name, stays := range map[string]bool{"and the machine goes": false, "and is there again": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.pod("a", 0, 3*time.Second)
				w.pod("system", 2_000_000_000, time.Second)
				m := w.manager(periods...)
				defer w.run(m)()
				w.change(func() { w.going = true })
				sleep(2 * time.Second)
				w.wants("0s held", "0s "+told, "0s going true", "0s end a 20s")
				w.unlink()
				sleep(5 * time.Minute)
				w.wants() // system is not ended: the host's state is unknown
				if !m.Going() {
					t.Error("a machine out of reach takes pods")
				}
				w.mu.Lock()
				w.cut, w.going = false, stays
				w.mu.Unlock()
				sleep(2 * time.Minute)
				if stays { // it still goes down, and does not wait
					w.wantsAnyTime("end system 10s")
					return
				}
				w.wantsAnyTime("held", untold, "going false", "revive")
				if m.Going() || !w.held {
					t.Error("the machine is up again, and is not watched as before")
				}
			})
		})
	}
}

// TestWeBeginLate: a process that starts during a shutdown continues it.
func TestWeBeginLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.pod("a", 0, 3*time.Second)
		w.pod("system", 2_000_000_000, time.Second)
		w.unknown = true // until the API server has shown them
		stop := w.run(w.manager(periods...))
		w.change(func() { w.going = true })
		w.wants("0s held", "0s "+told, "0s going true")
		stop() // the end of our process; the host no longer waits for it
		sleep(time.Second)
		if w.held {
			t.Error("an inhibitor stays behind")
		}
		m := w.manager(periods...)
		defer w.run(m)()
		w.wants("1s "+told, "1s going true")
		sleep(2*time.Second + 50*time.Millisecond)
		w.mu.Lock()
		w.unknown = false
		w.mu.Unlock()
		sleep(20 * time.Second)
		w.wants("3.1s end a 20s", "6.1s end system 10s")
	})
	synctest.Test(t, func(t *testing.T) { // the pods never become known
		w := newWorld(t)
		w.pod("a", 0, time.Second)
		w.unknown = true
		defer w.run(w.manager(periods...))()
		w.change(func() { w.going = true })
		sleep(time.Minute)
		w.wants("0s held", "0s "+told, "0s going true", "30s released")
	})
}

// TestOurEnd: the end of our process ends no pod.
func TestOurEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.pod("a", 0, time.Second)
		w.run(w.manager(periods...))()
		w.wants("0s held")
		if w.held {
			t.Error("an inhibitor stays behind")
		}
	})
}

// TestAbsent: if the host has no service to ask, retries back off.
func TestAbsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.absent = true
		defer w.run(w.manager(periods...))()
		sleep(time.Hour)
		if w.sessions < 10 || w.sessions > 20 {
			t.Errorf("it was tried %d times in an hour", w.sessions)
		}
		w.mu.Lock()
		w.absent = false
		w.mu.Unlock()
		sleep(10 * time.Minute)
		if !w.held {
			t.Error("a logind that came later is not asked")
		}
	})
}

// TestUpWithoutInit: a host that has rebooted takes pods, even if its init no longer answers; a
// host that loses its init on the way down does not.
func TestUpWithoutInit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.pod("a", 0, time.Second)
		m := w.manager(periods...)
		defer w.run(m)()
		w.change(func() { w.going = true })
		sleep(5 * time.Second)
		w.wants("0s held", "0s "+told, "0s going true", "0s end a 20s", "1s released")
		w.unlink()
		w.mu.Lock()
		w.cut, w.absent = false, true
		w.mu.Unlock()
		sleep(time.Minute)
		w.wants()
		if !m.Going() {
			t.Error("a machine whose init is gone takes pods")
		}
		w.mu.Lock()
		w.boots++
		w.mu.Unlock()
		sleep(time.Minute)
		w.wantsAnyTime(untold, "going false")
		if m.Going() {
			t.Error("a machine that is up again takes no pods")
		}
	})
}

// TestASecondShutdown: static pods that were about to restart stay ended.
func TestASecondShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.revivals = 1000
		m := w.manager(periods...)
		defer w.run(m)()
		w.change(func() { w.going = true })
		sleep(time.Second)
		w.change(func() { w.going = false })
		sleep(2*time.Second + time.Millisecond)
		w.wantsAnyTime("held", told, "going true", "released", "held", untold, "going false", "revive", "revive")
		w.change(func() { w.going = true })
		sleep(time.Minute)
		w.wantsAnyTime(told, "going true", "released")
		w.change(func() { w.going, w.revivals = false, 1 })
		sleep(time.Minute)
		w.wantsAnyTime("held", untold, "going false", "revive")
	})
}

// TestSessionsThatEndAtOnce: sessions that end at once are reopened with a growing back-off.
func TestSessionsThatEndAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.deaf = 1 << 30
		defer w.run(w.manager(periods...))()
		for range 600 {
			sleep(time.Second)
			w.mu.Lock()
			if w.session != nil {
				w.session.end(errors.New("the bus is gone"))
			}
			w.mu.Unlock()
		}
		if w.sessions < 30 || w.sessions > 80 {
			t.Errorf("%d sessions in ten minutes", w.sessions)
		}
	})
}

func TestConfigIsChecked(t *testing.T) {
	w := newWorld(t)
	m := w.manager(periods...)
	for name, spoil := range map[string]func(*Config){
		"Open": func(c *Config) { c.Open = nil }, "Absent": func(c *Config) { c.Absent = nil }, "BootID": func(c *Config) { c.BootID = nil },
		"Pods":    func(c *Config) { c.Pods = nil },
		"Periods": func(c *Config) { c.Periods = nil }, "Event": func(c *Config) { c.Event = nil }, "Changed": func(c *Config) { c.Changed = nil },
	} {
		c := m.cfg
		spoil(&c)
		if _, err := New(c); err == nil {
			t.Errorf("made without %s", name)
		}
	}
	if (*Manager)(nil).Going() {
		t.Error("a machine that is not watched goes down")
	}
}
