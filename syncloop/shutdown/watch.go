package shutdown

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/syncloop/shutdown/order"
)

// session watches until the session ends, or ctx. Its error is never nil unless ctx has
// ended.
func (m *Manager) session(ctx context.Context, s Session) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w := &watch{Manager: m, s: s}
	defer func() { w.pods.end() }()
	err := w.look(ctx)
	for failed := 0; ; {
		var again, revive <-chan time.Time
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			failed = 0
		case failed == patience:
			return err
		default:
			// Giving up gives the inhibitor back as well.
			failed++
			again = time.After(firstRetry)
		}
		if m.revive && !m.going.Load() {
			revive = time.After(firstRetry)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.Ended():
			return s.Err()
		case <-s.Hints():
			err = w.look(ctx)
		case <-again:
			err = w.look(ctx)
		case <-w.pods.done():
			klog.FromContext(ctx).Info("What was to end before the machine goes down has had its time; the machine may go")
			w.pods.noticed = true
			if w.held {
				w.held = false
				if err := s.Release(ctx); err != nil {
					return err // and the inhibitor goes with the session
				}
			}
		case <-revive:
			m.revive = m.cfg.Pods.Revive()
		}
	}
}

// watch is one session's.
type watch struct {
	*Manager
	s    Session
	held bool
	pods *ending // nil: none is ended
}

// look asks the machine whether it goes down, and does what follows.
func (w *watch) look(ctx context.Context) error {
	var refused error
	if !w.held && w.pods == nil {
		// Before it is asked, so that no shutdown begins between the two.
		refused = w.s.Hold(ctx)
		w.held = refused == nil
	}
	going, err := w.s.Preparing(ctx)
	switch {
	case err != nil:
		return err
	case going && w.pods == nil:
		first := w.begin(ctx)
		w.pods = w.start(ctx, w.held)
		if first { // nothing waits for it
			w.boot = w.bootID(ctx)
		}
		return nil
	case going:
		return nil
	}
	w.pods.end()
	if w.pods != nil && !w.held {
		refused = w.s.Hold(ctx)
		w.held = refused == nil
	}
	w.pods = nil
	w.over(ctx)
	return refused
}

// begin tells that the machine goes down; false: that is known from an earlier session, and
// gone on with.
func (m *Manager) begin(ctx context.Context) (first bool) {
	if m.going.Swap(true) {
		return false
	}
	klog.FromContext(ctx).Info("The machine is about to go down: its pods are ended first", "time", order.Total(m.cfg.Periods))
	m.boot = ""
	m.cfg.Event(v1.EventTypeNormal, reasonEvent, eventGoing)
	m.cfg.Changed(true)
	return true
}

// bootID is empty where the machine does not say.
func (m *Manager) bootID(ctx context.Context) string {
	id, err := m.cfg.BootID(ctx)
	if err != nil {
		klog.FromContext(ctx).V(1).Info("The machine does not say which boot this is", "err", err)
		return ""
	}
	return id
}

// isUpAgain reports whether the machine that was going down has been started anew, which
// is asked where its init says nothing.
func (m *Manager) isUpAgain(ctx context.Context) bool {
	if !m.going.Load() || m.boot == "" {
		return false
	}
	now := m.bootID(ctx)
	return now != "" && now != m.boot
}

// over: the machine does not go down (any more).
func (m *Manager) over(ctx context.Context) {
	if !m.going.Swap(false) {
		return
	}
	klog.FromContext(ctx).Info("The machine does not go down, or is up again: it takes pods")
	m.cfg.Event(v1.EventTypeNormal, reasonEvent, eventStays)
	m.cfg.Changed(false)
	m.revive = true // the last to be told to end need a moment to say so
}
