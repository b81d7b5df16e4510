// Package walltest makes times as they are after a suspend of the machine.
package walltest

import (
	"fmt"
	"time"
	"unsafe"
)

// Slept is t with its wall clock advanced by d, in whole seconds, and its monotonic reading
// unchanged, as time.Now returns after a suspend of d, or after the clock was set. A
// testing/synctest bubble has no monotonic clock, and so no such times.
func Slept(t time.Time, d time.Duration) time.Time {
	const seconds = 30 // bit position of the wall-clock seconds in the first word
	out := t
	*(*uint64)(unsafe.Pointer(&out)) += uint64(d/time.Second) << seconds
	if got := out.Round(0).Sub(t.Round(0)); got != d.Truncate(time.Second) || out.Sub(t) != 0 {
		panic(fmt.Sprintf("walltest: this Go keeps times in another form: %v and %v", got, out.Sub(t)))
	}
	return out
}
