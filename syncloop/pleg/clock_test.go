package pleg

import (
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/wall/walltest"
)

// What is told of times goes by the wall clock, whatever it was made of: crash back-offs
// and deadlines count from it.
func TestOurTimeHasNoMonotonicReading(t *testing.T) {
	g := newWorld().generator(t)
	now := time.Now()
	for what, c := range map[string]struct{ told, after time.Time }{
		"a time that is to come": {now.Add(time.Hour), now},
		"one before the last":    {now.Add(-time.Hour), now},
		"one that can be":        {now.Add(-time.Second), now.Add(-time.Minute)},
	} {
		if got := g.ourTime(c.told.Add(g.cfg.ClockOffset()).UnixNano(), time.Time{}, c.after); got != got.Round(0) {
			t.Errorf("%s: %v", what, got)
		}
	}
}

// A relist's timer stands still while the machine sleeps and does not follow a clock that
// is set, so neither does the verdict: the node is as ready after a sleep as before it.
func TestHealthGoesByTheTimeOfTheTimers(t *testing.T) {
	g := newWorld().generator(t)
	if ok, last := g.Healthy(time.Now()); ok || !last.IsZero() {
		t.Errorf("before the first relist: healthy %t, last %v", ok, last)
	}
	if err := g.Relist(t.Context()); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for what, c := range map[string]struct {
		now  time.Time
		want bool
	}{
		"at once":                       {now, true},
		"after a sleep":                 {walltest.Slept(now, time.Hour), true},
		"three minutes later":           {now.Add(unhealthyAfter), false},
		"and the clock was set back":    {walltest.Slept(now.Add(unhealthyAfter), -time.Hour), false},
		"and the clock was set forward": {walltest.Slept(now.Add(time.Minute), time.Hour), true},
	} {
		if ok, _ := g.Healthy(c.now); ok != c.want {
			t.Errorf("%s: healthy %t", what, ok)
		}
	}
}

// Relists follow each other for a while after the event stream was opened, by the same
// clock: one that was set back since does not prolong that.
func TestRelistsSettleWhateverTheClockSays(t *testing.T) {
	g := newWorld().generator(t)
	now := time.Now()
	g.events.Store(true)
	for what, c := range map[string]struct {
		opened time.Time
		want   time.Duration
	}{
		"just opened":                            {now, g.cfg.Relist},
		"opened a while ago":                     {now.Add(-2 * settleLimit), g.cfg.RelistWithEvents},
		"and the clock was set back":             {walltest.Slept(now.Add(-2*settleLimit), time.Hour), g.cfg.RelistWithEvents},
		"just opened, and the clock set forward": {walltest.Slept(now, -time.Hour), g.cfg.Relist},
	} {
		g.opened.set(c.opened)
		if got := g.pause(nil, now); got != c.want {
			t.Errorf("%s: %v", what, got)
		}
	}
}

// A clock that was set back, by which the last relist lies ahead, delays no relist; a
// sleep brings none forward.
func TestAClockThatIsSetMovesNoRelist(t *testing.T) {
	g := newWorld().generator(t)
	now := time.Now()
	if left := g.left(time.Minute, now); left > 0 {
		t.Errorf("before the first: %v", left)
	}
	for what, last := range map[string]time.Time{
		"as it was":     now.Add(-10 * time.Second),
		"set back":      walltest.Slept(now.Add(-10*time.Second), time.Hour),
		"after a sleep": walltest.Slept(now.Add(-10*time.Second), -time.Hour),
	} {
		g.lastRelist.set(last)
		if left := g.left(time.Minute, now); left != 50*time.Second {
			t.Errorf("%s: %v", what, left)
		}
	}
}
