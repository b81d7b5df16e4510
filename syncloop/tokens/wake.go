package tokens

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/wall"
)

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
		k, at, found := m.next()
		var timer <-chan time.Time
		var out chan types.UID
		switch wait := wall.Until(at, m.now()); {
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

// next returns the token that falls due first.
func (m *Manager) next() (k key, at time.Time, found bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for candidate, t := range m.dues {
		if !found || t.Before(at) {
			k, at, found = candidate, t, true
		}
	}
	return k, at, found
}

// sent drops a due time that was sent, unless a later one has replaced it.
func (m *Manager) sent(k key, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dues[k].Equal(at) {
		delete(m.dues, k)
	}
}
