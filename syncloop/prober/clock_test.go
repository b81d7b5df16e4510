package prober

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/wall/walltest"
)

// A container starts while the clock is two hours ahead, and NTP sets the clock back. Its probes
// run as if the clock had always been right. (A testing/synctest bubble has no such clock.)
func TestAClockThatIsSetBackStopsNoProbe(t *testing.T) {
	const ahead = 2 * time.Hour
	for name, c := range map[string]struct {
		started time.Duration // after the probe is armed, by the wall clock
		due     time.Duration
	}{
		"armed before the clock is set back": {0, 30 * time.Second},
		"armed afterwards":                   {ahead, 30 * time.Second},
		"armed in the initial delay":         {-10 * time.Second, 20 * time.Second},
		"armed after the initial delay":      {-time.Hour, 0},
	} {
		t.Run(name, func(t *testing.T) {
			m := &Manager{cfg: Config{Random: func() float64 { return 0 }}}
			now := time.Now()
			p := &probe{kind: Readiness, index: -1, target: &target{startedAt: now.Round(0).Add(c.started)},
				spec: &v1.Probe{InitialDelaySeconds: 30, PeriodSeconds: 10}}
			m.arm(p)
			// Later times differ from now by both clocks alike, unless they have one clock only.
			left := func(at time.Time) time.Duration { return at.Sub(walltest.Slept(now, -ahead)).Round(time.Second) }
			if got := left(p.due); got != c.due {
				t.Errorf("it is due in %v, want %v", got, c.due)
			}
			p.due = p.due.Add(-c.due) // it has run
			m.heap = nil
			m.next(p, false)
			if got := left(p.due); got != 10*time.Second {
				t.Errorf("after a run it is due in %v", got)
			}
		})
	}
}
