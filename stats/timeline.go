package stats

import "time"

// timeline turns the uptime of a host into local times. Its offset does not follow every round
// trip: that would bend the rates that are computed from the times. The zero value is ready.
//
// Its times are those of the wall clock, without a monotonic reading: with one, comparisons would
// not notice that the local clock was set.
type timeline struct {
	boot time.Time // the local time at which the host's uptime was zero
	last time.Time
}

// step is how far the timeline may be off before it starts again: after a reboot, or if a clock was
// set.
const step = time.Second

// at returns the local time of an uptime that was read between sent and received, which have
// monotonic readings: the clock may be set between them. A time is never after received. Times
// advance with each call, unless the local clock was set back: then they advance from there, as
// those of a kubelet do.
func (t *timeline) at(uptime time.Duration, sent, received time.Time) time.Time {
	trip := received.Sub(sent)
	received = received.Round(0)
	at := t.boot.Add(uptime)
	if t.boot.IsZero() || at.Before(received.Add(-trip-step)) || at.After(received.Add(step)) {
		at = received.Add(-trip / 2)
		t.boot = at.Add(-uptime)
	}
	if !at.After(t.last) && t.last.Before(received) {
		at = t.last.Add(time.Millisecond)
	}
	if at.After(received) {
		at = received
	}
	t.last = at
	return at
}

// current reports whether what was read at a local time is at most age old by either clock: the
// monotonic one stops while the machine is suspended. If the local clock was set back, the time may lie in
// its future, and is not current then.
func current(at, now time.Time, age time.Duration) bool {
	passed := now.Round(0).Sub(at.Round(0))
	return now.Sub(at) <= age && passed >= 0 && passed <= age
}
