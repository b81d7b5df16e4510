package shutdown

import (
	"errors"
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

func wait(d time.Duration) { time.Sleep(d); synctest.Wait() } // of synctest's time

// TestShutdown: pods end by priority, each group when the one before it has ended, and the
// machine goes when all have, and not before.
func TestShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.pod("system", 2_000_000_000, time.Second)
		w.pod("slow", 0, 7*time.Second)
		w.pod("quick", 5, time.Second)
		m := w.manager(periods...)
		defer w.run(m)()
		w.wants("0s held")
		wait(time.Hour)
		w.wants()
		if m.Going() {
			t.Error("it goes down by itself")
		}
		w.change(func() { w.going = true })
		w.wants("1h0m0s "+told, "1h0m0s going true", "1h0m0s end slow 20s", "1h0m0s end quick 20s")
		if !m.Going() {
			t.Error("pods are taken while the machine goes down")
		}
		wait(6 * time.Second)
		w.wants()
		wait(10 * time.Second)
		w.wants("1h0m7s end system 10s", "1h0m8s released")
		wait(time.Minute)
		w.wants()
	})
}

// TestTimeIsOver: a group that does not end in its time does not keep the next from its
// own, and the machine goes when all time is over.
func TestTimeIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.pod("stuck", 0, time.Hour)
		w.pod("system", 2_000_000_000, time.Hour)
		defer w.run(w.manager(periods...))()
		w.change(func() { w.going = true })
		w.wants("0s held", "0s "+told, "0s going true", "0s end stuck 20s")
		wait(time.Minute)
		w.wants("20s end system 10s", "35s released") // Margin: for the last word
	})
}

// TestNobodyRuns: there is nothing to wait for.
func TestNobodyRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.run(w.manager(periods...))()
		w.change(func() { w.going = true })
		w.wants("0s held", "0s "+told, "0s going true", "0s released")
	})
}

// TestAPIServerAway: it is given a while to hear of the ends, and no more.
func TestAPIServerAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.silent = true
		w.pod("a", 0, time.Second)
		defer w.run(w.manager(periods...))()
		w.change(func() { w.going = true })
		wait(9 * time.Second)
		w.wants("0s held", "0s "+told, "0s going true", "0s end a 20s")
		wait(time.Minute)
		w.wants("11s released")
	})
	synctest.Test(t, func(t *testing.T) { // and back in time
		w := newWorld(t)
		w.silent = true
		w.pod("a", 0, time.Second)
		defer w.run(w.manager(periods...))()
		w.change(func() { w.going = true })
		wait(4*time.Second + 50*time.Millisecond)
		w.mu.Lock()
		w.silent = false
		w.mu.Unlock()
		wait(time.Second)
		w.wants("0s held", "0s "+told, "0s going true", "0s end a 20s", "4.1s released")
	})
}

// TestCalledOff: who has not been told to end yet goes on, the node takes pods again, and
// static pods that have ended run again. The next shutdown is another one.
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
				wait(after.wait)
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
				wait(time.Hour)
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

// TestFalseHint: a signal that is none of logind's, or is late, decides nothing.
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

// TestNoAnswer: a question that fails does not give the inhibitor back, for a while.
func TestNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.pod("a", 0, time.Second)
		defer w.run(w.manager(periods...))()
		w.wants("0s held")
		w.change(func() { w.going, w.deaf = true, 2 })
		wait(10 * time.Second)
		w.wants("2s "+told, "2s going true", "2s end a 20s", "3s released")
	})
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.run(w.manager(periods...))()
		w.change(func() { w.deaf = 100 })
		wait(10 * time.Second)
		if w.sessions < 2 {
			t.Error("a session that never answers is kept for ever")
		}
	})
}

// TestLinkDies: a dead link ends no more pods, and does not say that the machine stays up;
// when it is back, the machine is asked.
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
				wait(2 * time.Second)
				w.wants("0s held", "0s "+told, "0s going true", "0s end a 20s")
				w.unlink()
				wait(5 * time.Minute)
				w.wants() // system is not ended: nobody knows what the machine does
				if !m.Going() {
					t.Error("a machine out of reach takes pods")
				}
				w.mu.Lock()
				w.cut, w.going = false, stays
				w.mu.Unlock()
				wait(2 * time.Minute)
				if stays { // it still goes down, and waits for nobody
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

// TestWeBeginLate: a process that begins while the machine goes down takes it up.
func TestWeBeginLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.pod("a", 0, 3*time.Second)
		w.pod("system", 2_000_000_000, time.Second)
		w.unknown = true // until the API server has shown them
		stop := w.run(w.manager(periods...))
		w.change(func() { w.going = true })
		w.wants("0s held", "0s "+told, "0s going true")
		stop() // ours; the machine waits for it no more
		wait(time.Second)
		if w.held {
			t.Error("an inhibitor stays behind")
		}
		m := w.manager(periods...)
		defer w.run(m)()
		w.wants("1s "+told, "1s going true")
		wait(2*time.Second + 50*time.Millisecond)
		w.mu.Lock()
		w.unknown = false
		w.mu.Unlock()
		wait(20 * time.Second)
		w.wants("3.1s end a 20s", "6.1s end system 10s")
	})
	synctest.Test(t, func(t *testing.T) { // which pods there are is never known
		w := newWorld(t)
		w.pod("a", 0, time.Second)
		w.unknown = true
		defer w.run(w.manager(periods...))()
		w.change(func() { w.going = true })
		wait(time.Minute)
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

// TestAbsent: where there is nobody to ask, it is tried ever more rarely.
func TestAbsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.absent = true
		defer w.run(w.manager(periods...))()
		wait(time.Hour)
		if w.sessions < 10 || w.sessions > 20 {
			t.Errorf("it was tried %d times in an hour", w.sessions)
		}
		w.mu.Lock()
		w.absent = false
		w.mu.Unlock()
		wait(10 * time.Minute)
		if !w.held {
			t.Error("a logind that came later is not asked")
		}
	})
}

// TestUpWithoutInit: a machine that was started anew takes pods, also where its init does
// not answer any more; one whose init is lost on the way down does not.
func TestUpWithoutInit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.pod("a", 0, time.Second)
		m := w.manager(periods...)
		defer w.run(m)()
		w.change(func() { w.going = true })
		wait(5 * time.Second)
		w.wants("0s held", "0s "+told, "0s going true", "0s end a 20s", "1s released")
		w.unlink()
		w.mu.Lock()
		w.cut, w.absent = false, true
		w.mu.Unlock()
		wait(time.Minute)
		w.wants()
		if !m.Going() {
			t.Error("a machine whose init is gone takes pods")
		}
		w.mu.Lock()
		w.boots++
		w.mu.Unlock()
		wait(time.Minute)
		w.wantsAnyTime(untold, "going false")
		if m.Going() {
			t.Error("a machine that is up again takes no pods")
		}
	})
}

// TestASecondShutdown: static pods that were to run again stay ended.
func TestASecondShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.revivals = 1000
		m := w.manager(periods...)
		defer w.run(m)()
		w.change(func() { w.going = true })
		wait(time.Second)
		w.change(func() { w.going = false })
		wait(2*time.Second + time.Millisecond)
		w.wantsAnyTime("held", told, "going true", "released", "held", untold, "going false", "revive", "revive")
		w.change(func() { w.going = true })
		wait(time.Minute)
		w.wantsAnyTime(told, "going true", "released")
		w.change(func() { w.going, w.revivals = false, 1 })
		wait(time.Minute)
		w.wantsAnyTime("held", untold, "going false", "revive")
	})
}

// TestSessionsThatEndAtOnce are begun ever more rarely.
func TestSessionsThatEndAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.deaf = 1 << 30
		defer w.run(w.manager(periods...))()
		for range 600 {
			wait(time.Second)
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
