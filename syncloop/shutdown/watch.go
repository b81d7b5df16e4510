package shutdown

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/syncloop/shutdown/order"
)

// session watches until the session or ctx ends. It returns an error unless ctx has ended.
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
			// Giving up would release the inhibitor as well.
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
			klog.FromContext(ctx).Info("Finished the graceful shutdown; released the inhibitor")
			w.pods.noticed = true
			if w.held {
				w.held = false
				if err := s.Release(ctx); err != nil {
					return err // the inhibitor ends with the session
				}
			}
		case <-revive:
			m.revive = m.cfg.Pods.Revive()
		}
	}
}

// watch is the state of one session.
type watch struct {
	*Manager
	s    Session
	held bool
	pods *ending // nil if none are being ended
}

// look asks the host whether it goes down, and acts on the answer.
func (w *watch) look(ctx context.Context) error {
	var refused error
	if !w.held && w.pods == nil {
		// Hold before asking, so that no shutdown can begin in between.
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
		if first { // read it last: the pods need not wait for it
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

// begin announces that the host goes down. It returns false if an earlier session already did.
func (m *Manager) begin(ctx context.Context) (first bool) {
	if m.going.Swap(true) {
		return false
	}
	klog.FromContext(ctx).Info("Shutting down the node: stopping its pods", "time", order.Total(m.cfg.Periods))
	m.boot = ""
	m.cfg.Event(v1.EventTypeNormal, reasonEvent, eventGoing)
	m.cfg.Changed(true)
	return true
}

// bootID returns the current boot ID, or "" if the host does not report one.
func (m *Manager) bootID(ctx context.Context) string {
	id, err := m.cfg.BootID(ctx)
	if err != nil {
		klog.FromContext(ctx).V(1).Info("Failed to read the host's boot ID", "err", err)
		return ""
	}
	return id
}

// isUpAgain reports whether a host that was going down has booted again. It serves for a host whose
// init no longer answers.
func (m *Manager) isUpAgain(ctx context.Context) bool {
	if !m.going.Load() || m.boot == "" {
		return false
	}
	now := m.bootID(ctx)
	return now != "" && now != m.boot
}

// over records that the host does not go down, or is up again.
func (m *Manager) over(ctx context.Context) {
	if !m.going.Swap(false) {
		return
	}
	klog.FromContext(ctx).Info("Accepting pods again: the shutdown was cancelled or is over")
	m.cfg.Event(v1.EventTypeNormal, reasonEvent, eventStays)
	m.cfg.Changed(false)
	m.revive = true // Run retries Revive: the last pods may still be terminating
}
