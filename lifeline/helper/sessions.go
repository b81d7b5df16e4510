package helper

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/lifeline/wire"
)

// sessions serves one session after the other, and applies their tables, until ctx ends or there are no more.
// The last table stays in force while there is no session. One that could not be applied is tried again.
func (h *helper) sessions(ctx context.Context) error {
	var waiting sync.WaitGroup
	defer waiting.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan wire.Session)
	waiting.Go(func() {
		for {
			s, err := h.cfg.Sessions(ctx)
			if err != nil {
				cancel(fmt.Errorf("wait for a session: %w", err))
				return
			}
			select {
			case next <- s:
			case <-ctx.Done():
				s.Close()
				return
			}
		}
	})
	detach := func() {}
	defer func() { detach() }()
	var table wire.Table
	var retry <-chan time.Time // not nil while the table is not in force
	apply := func() {
		failing := retry != nil
		retry = nil
		if err := h.apply(ctx, table); err != nil {
			retry = time.After(retryRules)
			if !failing {
				klog.FromContext(ctx).Error(err, "Failed to install the rules, will retry")
			}
		}
	}
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case s := <-next:
			detach()
			detach = h.attach(ctx, s)
		case table = <-h.tables:
			apply()
		case <-retry:
			apply()
		}
	}
}

// attach serves a session in goroutines of its own. detach ends the session and waits for them.
func (h *helper) attach(ctx context.Context, s wire.Session) (detach func()) {
	ctx, cancel := context.WithCancel(ctx)
	log := klog.FromContext(ctx)
	var parts sync.WaitGroup
	h.current.Store(&s)
	log.Info("Opened a session with an exit")
	parts.Go(func() {
		select {
		case <-s.Done():
			if ctx.Err() == nil {
				log.Info("Lost the session with the exit", "reason", fmt.Sprint(s.Err()))
			}
		case <-ctx.Done():
		}
		h.current.CompareAndSwap(&s, nil)
	})
	parts.Go(func() { h.receiveTables(ctx, s) })
	parts.Go(func() { h.receive(ctx, s) })
	parts.Go(func() { h.report(ctx, s) })
	return func() {
		cancel()
		s.Close()
		parts.Wait()
	}
}

// receiveTables passes on the tables of a session.
func (h *helper) receiveTables(ctx context.Context, s wire.Session) {
	for {
		t, err := s.Table(ctx)
		if err != nil {
			return
		}
		select {
		case h.tables <- t:
		case <-ctx.Done():
			return
		}
	}
}

// receive passes on the datagrams of a session.
func (h *helper) receive(ctx context.Context, s wire.Session) {
	for {
		d, err := s.Receive(ctx)
		if err != nil {
			return
		}
		h.deliver(d)
	}
}

// report tells the exit what changes: of the rules at once, of the counts now and then.
func (h *helper) report(ctx context.Context, s wire.Session) {
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	var last wire.Status
	for first := true; ; first = false {
		if status := h.status(); first || status != last {
			if err := s.Report(status); err != nil {
				return
			}
			last = status
		}
		select {
		case <-ctx.Done():
			return
		case <-s.Done():
			return
		case <-h.changed:
		case <-tick.C:
		}
	}
}

// status is what the helper says about itself now.
func (h *helper) status() wire.Status {
	h.mu.Lock()
	status := h.state
	h.mu.Unlock()
	status.Flows = uint64(h.flows.Load()) + uint64(h.exchanges.count())
	status.Served = h.served.Load()
	status.CacheHits, status.CacheMisses = h.cache.Counts()
	return status
}

// setState replaces what a status says about the rules.
func (h *helper) setState(state wire.Status) {
	h.mu.Lock()
	h.state = state
	h.mu.Unlock()
	h.changed.Send()
}
