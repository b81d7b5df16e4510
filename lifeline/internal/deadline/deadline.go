// Package deadline has the deadlines of a net.Conn.
package deadline

import (
	"sync"
	"time"
)

// Deadline is a time that can be moved, and a channel that is closed while it is past. The zero Deadline is
// not usable; New makes one that never passes.
type Deadline struct {
	mu    sync.Mutex
	timer *time.Timer
	past  chan struct{}
}

// New makes a Deadline that is not set.
func New() *Deadline { return &Deadline{past: make(chan struct{})} }

// Set moves the deadline; the zero time means none.
func (d *Deadline) Set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	if closed(d.past) {
		d.past = make(chan struct{})
	}
	if t.IsZero() {
		return
	}
	left := time.Until(t)
	if left <= 0 {
		close(d.past)
		return
	}
	var mine *time.Timer
	mine = time.AfterFunc(left, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		// A timer that Set could not stop in time is no longer the current one.
		if d.timer == mine {
			d.timer = nil
			close(d.past)
		}
	})
	d.timer = mine
}

// Passed is closed once the current deadline is past. A later Set may move the deadline of the same channel.
func (d *Deadline) Passed() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.past
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
