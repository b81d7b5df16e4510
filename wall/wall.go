// Package wall is for what is due by the wall clock: certificates and tokens that expire, deadlines
// of the API, ages in days. Timers, and times from time.Now with a monotonic reading, do not
// advance while the machine is suspended or its virtual machine is paused, and do not follow a
// change of the clock.
//
// Do not use it for a back-off, a grace period or a timeout: they measure time in which this
// process has run. Waits of seconds use package time.
package wall

import "time"

// Glance is the longest delay with which an instant is noticed after a suspend, or after the clock
// was set: no timer for one is longer.
const Glance = time.Minute

// Now is the time without a monotonic reading, so arithmetic and comparisons with it use the wall
// clock.
func Now() time.Time { return time.Now().Round(0) }

// Until is the duration for a timer that waits for at. When it fires, the caller checks again. It
// is never negative, and at most Glance.
func Until(at, now time.Time) time.Duration { return min(max(at.Sub(now), 0), Glance) }

// Passed reports whether a pause that ends at at is over. If both times have a monotonic reading,
// it is over by either clock: a suspend counts, and a clock that is set back does not prolong the
// pause.
func Passed(at, now time.Time) bool {
	return !at.After(now) || !at.Round(0).After(now.Round(0))
}
