// Package walltest makes times as they are after the machine has slept.
package walltest

import (
	"fmt"
	"time"
	"unsafe"
)

// Slept is t with a wall clock that is d further, in whole seconds, and the monotonic
// reading that t has: what time.Now gives when the machine has slept for d, or when its
// clock was set. A bubble of testing/synctest has no monotonic clock, and no such times.
func Slept(t time.Time, d time.Duration) time.Time {
	const seconds = 30 // the place of the wall clock's seconds in the first word
	out := t
	*(*uint64)(unsafe.Pointer(&out)) += uint64(d/time.Second) << seconds
	if got := out.Round(0).Sub(t.Round(0)); got != d.Truncate(time.Second) || out.Sub(t) != 0 {
		panic(fmt.Sprintf("walltest: this Go keeps times in another form: %v and %v", got, out.Sub(t)))
	}
	return out
}
