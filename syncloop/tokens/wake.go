package tokens

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/wall"
)

// due says when to refresh a token.
type due struct {
	// at is over by either clock (wall.Passed): time that the machine slept counts, and a clock that
	// is set back does not delay a refresh.
	at time.Time
	// server is the same instant by the API's expiry of the token, which shows a suspend even if
	// the clock was set back right afterwards. It counts after rested, and is zero if unknown.
	server, rested time.Time
}

func (d due) passed(now time.Time) bool {
	return wall.Passed(d.at, now) || !d.server.IsZero() && !d.server.After(now.Round(0)) && wall.Passed(d.rested, now)
}

// wait is the duration for a timer, after which the caller checks again; 0: the token is due.
func (d due) wait(now time.Time) time.Duration {
	if d.passed(now) {
		return 0
	}
	wait := min(wall.Until(d.at, now), wall.Until(d.at.Round(0), now.Round(0)))
	if !d.server.IsZero() {
		wait = min(wait, max(wall.Until(d.server, now), wall.Until(d.rested, now)))
	}
	return wait
}

// Updates yields the UID of a pod when one of its tokens has fallen due. The next Token call
// fetches the new one; until then the UID is not repeated.
func (m *Manager) Updates() <-chan types.UID { return m.updates }

// schedule notes when to send the token's pod on updates; the caller holds e.sem.
func (m *Manager) schedule(k key, e *entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.entries[k] != e {
		return // forgotten meanwhile
	}
	m.dues[k] = e.due
	m.wake.Send()
}

// Run sends Updates until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	for {
		k, at, wait, found := m.next()
		var timer <-chan time.Time
		var out chan types.UID
		switch {
		case !found:
		case wait > 0:
			timer = time.After(wait)
		default:
			out = m.updates
		}
		select {
		case out <- k.uid:
			m.sent(k, at)
		case <-timer:
		case <-m.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

// next returns the token that falls due first, and how long to wait for it.
func (m *Manager) next() (k key, at due, wait time.Duration, found bool) {
	now := m.now()
	m.mu.Lock()
	defer m.mu.Unlock()
	for candidate, d := range m.dues {
		if w := d.wait(now); !found || w < wait {
			k, at, wait, found = candidate, d, w, true
		}
	}
	return k, at, wait, found
}

// sent drops a due time that was sent, unless a later one has replaced it.
func (m *Manager) sent(k key, at due) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dues[k] == at {
		delete(m.dues, k)
	}
}
