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
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/config"
)

const (
	// The first pause before a host that could not be driven is tried again, and the
	// longest; each is twice the one before.
	retryFirst = 5 * time.Second
	retryLast  = time.Minute
	// The same of a host that is quarantined.
	quarantineFirst = time.Minute
	quarantineLast  = 32 * time.Minute
	// turnTime is between two starts of drivers.
	turnTime = 20 * time.Millisecond
)

// member is a host that is wanted, or whose driver has not ended.
type member struct {
	name   string
	host   *config.Host       // as it was driven last, or is to be
	cancel context.CancelFunc // ends its driver; nil: it has none
	began  time.Time          // when the driver was started
	due    time.Time          // when it may be started
	pause  time.Duration      // before it is tried again, were it to fail now
	away   time.Duration      // the same, were it to be quarantined
	state  State
}

// ending is what a driver says of its end.
type ending struct {
	m   *member
	err error
}

// Run drives what is wanted until ctx ends, which is no error.
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
		case e := <-p.ended:
			failed := p.note(ctx, e)
			if ctx.Err() != nil {
				return nil
			}
			if !failed {
				continue
			}
			if err := p.allFailed(); p.options.EndWhenAllFail && err != nil {
				return err // which is told by who is given it, and by nobody else
			}
			e.m.tell(klog.FromContext(ctx))
		}
	}
}

// await ends all drivers, and forgets all hosts.
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

// step brings every host nearer to what is wanted, and says when there is more to do
// if nothing happens before; zero if never.
func (p *Pool) step(ctx context.Context, now time.Time) (next time.Time) {
	p.mu.Lock()
	wanted := p.wanted
	p.mu.Unlock()
	for name, m := range p.members {
		w := wanted[name]
		switch {
		case w != nil && same(w, m.host):
			m.host = w // so that they need no comparing the next time
		case m.cancel != nil && m.state.Phase != Ending:
			klog.FromContext(ctx).Info("The host's driver is ended", "host", name, "wantedOtherwise", w != nil)
			m.cancel()
			p.phase(m, Ending, "")
		case m.cancel != nil: // it is to end yet
		default:
			// What it failed of may have been mended: it begins anew below.
			p.forget(m)
		}
	}
	var ready []*member
	for name, w := range wanted {
		m := p.members[name]
		if m == nil {
			m = &member{name: name, host: w, due: now, pause: retryFirst, away: quarantineFirst}
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
	// Who has been due for longest comes first: those who fail often do not keep
	// others from their first turn.
	slices.SortFunc(ready, func(a, b *member) int {
		return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.name, b.name))
	})
	for _, m := range ready {
		if in := p.inTheWay(m.host); in != "" {
			if m.state.InTheWay != in {
				klog.FromContext(ctx).Info("The host waits for another's driver to end", "host", m.name, "inTheWay", in)
			}
			p.phase(m, Waiting, in)
			continue // the end of that driver is a step as well
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

// inTheWay says which live driver has what h claims.
func (p *Pool) inTheWay(h *config.Host) string {
	for _, c := range h.Claims() {
		if other := p.holders[c]; other != nil {
			return fmt.Sprintf("%s %s is still that of host %s", c.Field, c.Value, other.name)
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
	p.phase(m, Driven, "")
	host := m.host
	go func() { p.ended <- ending{m, p.safely(ctx, host)} }()
}

// safely drives a host; a panic is an error of that host alone.
func (p *Pool) safely(ctx context.Context, h *config.Host) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &PanicError{r, debug.Stack()}
		}
	}()
	return p.drive(ctx, h)
}

// hostile tells whether what a driver ended with is to be met by a quarantine.
func (p *Pool) hostile(err error) bool {
	var panicked *PanicError
	return errors.As(err, &panicked) || p.options.Hostile != nil && p.options.Hostile(err)
}

// note is told that a driver has ended, and says whether it has failed.
func (p *Pool) note(ctx context.Context, e ending) (failed bool) {
	m, now := e.m, time.Now()
	m.cancel()
	m.cancel = nil
	for _, c := range m.host.Claims() {
		delete(p.holders, c)
	}
	if m.state.Phase == Ending {
		klog.FromContext(ctx).Info("The host's driver has ended", "host", m.name)
		p.forget(m) // the step that follows makes a new one of what is wanted
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
		m.pause = retryFirst
	}
	if lasted > quarantineLast {
		m.away = quarantineFirst
	}
	to, pause := Failed, &m.pause
	if p.hostile(e.err) {
		to, pause = Quarantined, &m.away
		m.state.Quarantines++
	}
	m.due = now.Add(*pause - time.Duration(p.chance()*float64(*pause)/4))
	if to == Failed {
		m.pause = min(2*m.pause, retryLast)
	} else {
		m.away = min(2*m.away, quarantineLast)
	}
	p.phase(m, to, "")
	m.state.Err, m.state.FailedAt, m.state.NextTry = e.err, now, m.due
	return true
}

// tell logs why the host is not driven, and until when.
func (m *member) tell(log klog.Logger) {
	in := time.Until(m.due).Round(100 * time.Millisecond)
	if m.state.Phase == Failed {
		log.Info("The host cannot be driven; it is tried again", "host", m.name, "err", m.state.Err, "in", in)
		return
	}
	log.Error(m.state.Err, "The host is quarantined; it is tried again", "host", m.name, "in", in, "quarantines", m.state.Quarantines)
	var panicked *PanicError
	if errors.As(m.state.Err, &panicked) {
		log.Info("Where the driver panicked", "host", m.name, "stack", string(panicked.Stack))
	}
}

// allFailed is the errors of all that are wanted, or nil if one is driven, or is
// about to be.
func (p *Pool) allFailed() error {
	p.mu.Lock()
	wanted := p.wanted
	p.mu.Unlock()
	var errs []error
	for name, w := range wanted {
		m := p.members[name]
		// One that is quarantined does not end the process: the next one would drive it
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

// phase makes the transitions of doc.go. What a host failed of last is kept.
func (p *Pool) phase(m *member, to Phase, inTheWay string) {
	if m.state.Phase != to {
		m.state.Since = time.Now()
	} else if m.state.InTheWay == inTheWay {
		return
	}
	m.state.Phase, m.state.InTheWay, m.state.NextTry = to, inTheWay, time.Time{}
	p.touched = true
}

// same: nothing that a driver could see is different.
func same(a, b *config.Host) bool { return a == b || equality.Semantic.DeepEqual(a, b) }

// sooner of two times, where zero is never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}
