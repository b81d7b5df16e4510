// Package flap bounds how often it is announced that something goes and comes, such as a link. The
// package is pure: what it decides depends on its state and on the times that it is given.
package flap

import "time"

const (
	// atOnce is how often it may be announced in a row that something has gone; again is the pause
	// after which it may be announced once more.
	atOnce = 5
	again  = 10 * time.Minute
)

// Bound is the bound of one thing. The zero value is ready; one goroutine at a time uses it.
type Bound struct {
	used      int       // announcements that count against atOnce
	since     time.Time // since when the oldest of them counts
	announced bool      // whether it was announced that the thing has gone, the last time that it went
}

// Gone notes that the thing has gone, and reports whether to announce it.
func (b *Bound) Gone(now time.Time) bool {
	if n := int(now.Sub(b.since) / again); n > 0 {
		b.used, b.since = max(b.used-n, 0), b.since.Add(time.Duration(n)*again)
	}
	if b.used == 0 {
		b.since = now
	}
	b.announced = b.used < atOnce
	if b.announced {
		b.used++
	}
	return b.announced
}

// Back reports whether to announce that the thing is back: only if it was announced that it had gone.
func (b *Bound) Back() bool { return b.announced }
