package pleg

import (
	"testing"
	"time"
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
