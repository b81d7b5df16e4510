package link

import (
	"sync"
	"time"
)

// deadline is a time that can be moved, and a channel that is closed while it is past.
type deadline struct {
	mu    sync.Mutex
	timer *time.Timer
	past  chan struct{}
}

func newDeadline() *deadline { return &deadline{past: make(chan struct{})} }

// set moves the deadline; the zero time means none.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	select {
	case <-d.past:
		d.past = make(chan struct{})
	default:
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
		// A timer that set could not stop in time is no longer the current one.
		if d.timer == mine {
			d.timer = nil
			close(d.past)
		}
	})
	d.timer = mine
}

// passed is closed once the current deadline is past.
func (d *deadline) passed() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.past
}

func closedNow(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
