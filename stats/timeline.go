package stats

import "time"

// timeline turns the uptime of a host into local times. Its offset does not follow every round
// trip: that would bend the rates that are computed from the times. The zero value is ready.
type timeline struct {
	boot time.Time // the local time at which the host's uptime was zero
	last time.Time
}

// step is how far the timeline may be off before it starts again: after a reboot, or if a clock was
// set.
const step = time.Second

// at returns the local time of an uptime that was read between sent and received. Times advance
// with each call, and are never after received.
func (t *timeline) at(uptime time.Duration, sent, received time.Time) time.Time {
	at := t.boot.Add(uptime)
	if t.boot.IsZero() || at.Before(sent.Add(-step)) || at.After(received.Add(step)) {
		at = sent.Add(received.Sub(sent) / 2)
		t.boot = at.Add(-uptime)
	}
	if at.After(received) {
		at = received
	}
	if !at.After(t.last) {
		at = t.last.Add(time.Millisecond)
	}
	// The local clock was set back.
	if at.After(received.Add(step)) {
		at = received
	}
	t.last = at
	return at
}
