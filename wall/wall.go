// Package wall is for what is due by the wall clock: certificates and tokens that
// expire, deadlines of the API, ages in days. Timers, and times that time.Now has read
// its monotonic clock for, stand still while the machine sleeps or its virtual machine
// is paused, and do not follow a clock that is set.
//
// A back-off, a grace period and the patience for an answer are no such times: they
// count what this process has lived through. Those of seconds are left to time itself.
package wall

import "time"

// Glance is how late an instant is noticed at the most after a sleep, or after the clock
// was set: no timer for one is longer.
const Glance = time.Minute

// Now is the time without a monotonic reading: what is computed of it, and compared with
// it, goes by the wall clock.
func Now() time.Time { return time.Now().Round(0) }

// Until is what a timer is set to that waits for at; who waits looks again when it
// fires. It is never negative, and at most a Glance.
func Until(at, now time.Time) time.Duration { return min(max(at.Sub(now), 0), Glance) }

// Passed says whether a pause that ends at at is over. Where both times have a monotonic
// reading either clock may say so: a sleep counts, and a clock that is set back prolongs
// no pause.
func Passed(at, now time.Time) bool {
	return !at.After(now) || !at.Round(0).After(now.Round(0))
}
