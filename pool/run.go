package pool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/hint"
)

const (
	// The first and the longest pause before a failed host is tried again; each is twice the one
	// before.
	retryFirst = 5 * time.Second
	retryLast  = time.Minute
	// The same for a quarantined host.
	quarantineFirst = time.Minute
	quarantineLast  = 32 * time.Minute
	// turnTime is between two starts of drivers.
	turnTime = 20 * time.Millisecond
)

var (
	firstRetry   = wait.Backoff{Duration: retryFirst, Factor: 2, Steps: 10, Cap: retryLast}
	firstRelease = wait.Backoff{Duration: quarantineFirst, Factor: 2, Steps: 10, Cap: quarantineLast}
)

// member is a host that is wanted, or whose driver has not ended.
type member struct {
	name   string
	host   *config.Host       // the configuration of the last driver, or of the next
	cancel context.CancelFunc // cancels its driver; nil: it has none
	began  time.Time          // when the driver was started
	due    time.Time          // when it may be started
	state  State

	retry, release wait.Backoff // of its failures, and of its quarantines
}

// ending reports that a driver has ended.
type ending struct {
	m   *member
	err error
}

// Run manages the wanted hosts until ctx ends, which is no error.
func (p *Pool) Run(ctx context.Context) error {
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	defer p.await(cancel)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Stop()
		if next := p.step(inner, time.Now()); !next.IsZero() {
			timer.Reset(time.Until(next))
		}
		p.show()
		select {
		case <-ctx.Done():
			return nil
		case <-p.wake:
		case <-timer.C:
		case <-p.pings:
		case e := <-p.ended:
			failed := p.note(ctx, e)
			if ctx.Err() != nil {
				return nil
			}
			if !failed {
				continue
			}
			if err := p.allFailed(); p.options.EndWhenAllFail && err != nil {
				return err // the caller reports it
			}
			e.m.logFailure(klog.FromContext(ctx))
		}
	}
}

// await cancels all drivers, waits for them, and forgets all hosts.
func (p *Pool) await(cancel context.CancelFunc) {
	cancel()
	for name, m := range p.members {
		if m.cancel == nil {
			delete(p.members, name)
			continue
		}
		p.phase(m, Ending, "")
	}
	p.touched = true
	p.show()
	for len(p.members) > 0 {
		e := <-p.ended
		delete(p.members, e.m.name)
		p.touched = true
		p.show()
	}
}

// step starts and cancels drivers according to what is wanted. next is when there is more to do if
// nothing happens before; zero: never.
func (p *Pool) step(ctx context.Context, now time.Time) (next time.Time) {
	p.mu.Lock()
	wanted := p.wanted
	p.mu.Unlock()
	for name, m := range p.members {
		w := wanted[name]
		switch {
		case w != nil && same(w, m.host):
			m.host = w // the same pointer makes the next comparison cheap
		case m.cancel != nil && m.state.Phase != Ending:
			klog.FromContext(ctx).Info("Stopping the host's driver", "host", name, "restart", w != nil)
			m.cancel()
			p.phase(m, Ending, "")
		case m.cancel != nil: // its driver has not ended yet
		default:
			// The change may have fixed the failure: it starts again below.
			p.forget(m)
		}
	}
	var ready []*member
	for name, w := range wanted {
		m := p.members[name]
		if m == nil {
			m = &member{name: name, host: w, due: now, retry: firstRetry, release: firstRelease}
			p.members[name] = m
			p.phase(m, Waiting, "")
		}
		switch {
		case m.cancel != nil:
		case m.due.After(now):
			next = sooner(next, m.due)
		default:
			ready = append(ready, m)
		}
	}
	// The one that has been due for longest comes first, so that hosts that fail often do not delay
	// the first start of others.
	slices.SortFunc(ready, func(a, b *member) int {
		return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.name, b.name))
	})
	for _, m := range ready {
		if in := p.blockedBy(m.host); in != "" {
			if m.state.BlockedBy != in {
				klog.FromContext(ctx).Info("Waiting for the driver of another host to stop", "host", m.name, "blockedBy", in)
			}
			p.phase(m, Waiting, in)
			continue // when that driver ends, step runs again
		}
		if p.turn.After(now) {
			p.phase(m, Waiting, "")
			next = sooner(next, p.turn)
			continue
		}
		p.turn = now.Add(turnTime)
		p.start(ctx, m, now)
	}
	return next
}

// blockedBy says which live driver holds a claim of h.
func (p *Pool) blockedBy(h *config.Host) string {
	for _, c := range h.Claims() {
		if other := p.holders[c]; other != nil {
			return fmt.Sprintf("host %[3]s still uses the %[1]s %[2]s", c.Field, c.Value, other.name)
		}
	}
	return ""
}

func (p *Pool) start(ctx context.Context, m *member, now time.Time) {
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("host", m.name))
	ctx, m.cancel = context.WithCancel(ctx)
	m.began = now
	for _, c := range m.host.Claims() {
		p.holders[c] = m
	}
	p.phase(m, Managed, "")
	host := m.host
	go func() { p.ended <- ending{m, p.safely(ctx, host)} }()
}

// safely manages a host, and turns a panic into an error of that host alone.
func (p *Pool) safely(ctx context.Context, h *config.Host) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &PanicError{r, debug.Stack()}
		}
	}()
	return p.manage(ctx, h)
}

// hostile reports whether a driver's error quarantines the host.
func (p *Pool) hostile(err error) bool {
	var panicked *PanicError
	return errors.As(err, &panicked) || p.options.Hostile != nil && p.options.Hostile(err)
}

// note handles the end of a driver, and reports whether it has failed.
func (p *Pool) note(ctx context.Context, e ending) (failed bool) {
	m, now := e.m, time.Now()
	m.cancel()
	m.cancel = nil
	for _, c := range m.host.Claims() {
		delete(p.holders, c)
	}
	if m.state.Phase == Ending {
		klog.FromContext(ctx).Info("Stopped the host's driver", "host", m.name)
		p.forget(m) // the next step makes a new member if the host is wanted
		return false
	}
	if ctx.Err() != nil {
		return false
	}
	if e.err == nil {
		e.err = errors.New("it ended by itself")
	}
	lasted := now.Sub(m.began)
	if lasted > retryLast {
		m.retry = firstRetry
	}
	if lasted > quarantineLast {
		m.release = firstRelease
	}
	to, backoff := Failed, &m.retry
	if p.hostile(e.err) {
		to, backoff = Quarantined, &m.release
		m.state.Quarantines++
	}
	pause := backoff.Step()
	m.due = now.Add(pause - time.Duration(p.chance()*float64(pause)/4))
	p.phase(m, to, "")
	m.state.Err, m.state.FailedAt, m.state.NextTry = e.err, now, m.due
	return true
}

// logFailure logs why the host is not managed, and until when.
func (m *member) logFailure(log klog.Logger) {
	in := time.Until(m.due).Round(100 * time.Millisecond)
	if m.state.Phase == Failed {
		log.Error(m.state.Err, "Failed to manage the host, will retry", hint.With(m.state.Err, "host", m.name, "in", in)...)
		return
	}
	log.Error(m.state.Err, "Quarantined the host, will retry", hint.With(m.state.Err, "host", m.name, "in", in, "quarantines", m.state.Quarantines)...)
	var panicked *PanicError
	if errors.As(m.state.Err, &panicked) {
		log.Error(nil, "Recovered the driver's panic", "host", m.name, "stack", string(panicked.Stack))
	}
}

// allFailed returns the errors of all wanted hosts, or nil if one is managed or about to be.
func (p *Pool) allFailed() error {
	p.mu.Lock()
	wanted := p.wanted
	p.mu.Unlock()
	var errs []error
	for name, w := range wanted {
		m := p.members[name]
		// A quarantined host does not end the process, because a restarted process would run it
		// at once.
		if m == nil || m.state.Phase != Failed || !same(w, m.host) {
			return nil
		}
		errs = append(errs, fmt.Errorf("host %s: %w", name, m.state.Err))
	}
	slices.SortFunc(errs, func(a, b error) int { return cmp.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

func (p *Pool) forget(m *member) {
	delete(p.members, m.name)
	p.touched = true
}

// phase makes the transitions of doc.go. It keeps the last error.
func (p *Pool) phase(m *member, to Phase, blockedBy string) {
	if m.state.Phase != to {
		m.state.Since = time.Now()
	} else if m.state.BlockedBy == blockedBy {
		return
	}
	m.state.Phase, m.state.BlockedBy, m.state.NextTry = to, blockedBy, time.Time{}
	p.touched = true
}

// same reports whether a driver would see no difference.
func same(a, b *config.Host) bool { return a == b || equality.Semantic.DeepEqual(a, b) }

// sooner returns the earlier of two times, where zero means never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}
