package pleg

import (
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/wall/walltest"
)

// Times that ourTime returns are wall clock times in every case: crash back-offs and deadlines
// count from them.
func TestOurTimeHasNoMonotonicReading(t *testing.T) {
	g := newWorld().generator(t)
	now := time.Now()
	for what, c := range map[string]struct{ reported, after time.Time }{
		"a time that is to come": {now.Add(time.Hour), now},
		"one before the last":    {now.Add(-time.Hour), now},
		"one that can be":        {now.Add(-time.Second), now.Add(-time.Minute)},
	} {
		if got := g.ourTime(c.reported.Add(g.cfg.ClockOffset()).UnixNano(), time.Time{}, c.after); got != got.Round(0) {
			t.Errorf("%s: %v", what, got)
		}
	}
}

// The relist timer stands still while the system sleeps and ignores changes of the wall clock.
// Health follows the same clock: the node is as ready after a sleep as before it.
func TestHealthGoesByTheTimeOfTheTimers(t *testing.T) {
	g := newWorld().generator(t)
	if ok, last := g.Healthy(time.Now()); ok || !last.IsZero() {
		t.Errorf("before the first relist: healthy %t, last %v", ok, last)
	}
	testutil.Must(t, g.Relist(t.Context()))
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

// The short relist pause after the opening of the event stream is measured by the same clock:
// setting the wall clock back does not prolong it.
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

// A wall clock that is set back, so that the last relist lies in the future, does not delay the
// next one. A sleep does not bring it forward.
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
