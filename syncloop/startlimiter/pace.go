// Package startlimiter bounds how many pods a host starts at the same time. A host that gets fifty pods at
// once is done sooner if it starts a few at a time, because the kernel's locks on cgroups, mounts
// and network namespaces become more expensive with contention.
//
//	Take ──► a free place? ──► go
//	   └──► wait; urgent ones before the others, each kind in FIFO order ──► go
//
// A place is held for a limited time only, so that a call that hangs delays others no longer than
// that.
package startlimiter

import (
	"context"
	"sync"
	"time"
)

// Pacer hands out places. The zero value is not usable; see New.
type Pacer struct {
	limit int
	lease time.Duration

	mu      sync.Mutex
	held    int
	urgent  []*waiter
	waiting []*waiter
	quiet   chan struct{} // closed when no place is held or waited for; then nil
}

type waiter struct {
	ready chan struct{} // closed when the waiter gets its place
}

// New makes a Pacer with limit places, each held for at most lease.
func New(limit int, lease time.Duration) *Pacer {
	return &Pacer{limit: max(limit, 1), lease: lease}
}

// Take waits for a place and returns a function that releases it. The caller calls it when the work
// is done; further calls do nothing. Urgent callers go before all others. The only error is ctx's.
func (p *Pacer) Take(ctx context.Context, urgent bool) (release func(), err error) {
	p.mu.Lock()
	if p.quiet == nil {
		p.quiet = make(chan struct{})
	}
	if p.held < p.limit {
		p.held++
		p.mu.Unlock()
		return p.place(), nil
	}
	w := &waiter{ready: make(chan struct{})}
	queue := p.queue(urgent)
	*queue = append(*queue, w)
	p.mu.Unlock()
	select {
	case <-w.ready:
		return p.place(), nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, other := range *queue {
		if other == w {
			*queue = append((*queue)[:i], (*queue)[i+1:]...)
			p.settle()
			return nil, ctx.Err()
		}
	}
	p.free() // it got the place at the same moment
	return nil, ctx.Err()
}

// Quiet returns a channel that is closed when no place is held or waited for.
func (p *Pacer) Quiet() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.quiet == nil {
		return closed
	}
	return p.quiet
}

var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (p *Pacer) queue(urgent bool) *[]*waiter {
	if urgent {
		return &p.urgent
	}
	return &p.waiting
}

// place returns the release function of a place that is counted as held. The place is released by
// that function or when its lease ends.
func (p *Pacer) place() func() {
	var once sync.Once
	release := func() {
		once.Do(func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.free()
		})
	}
	timer := time.AfterFunc(p.lease, release)
	return func() {
		timer.Stop()
		release()
	}
}

// free passes a place on to the first waiter, urgent ones first.
func (p *Pacer) free() {
	for _, queue := range []*[]*waiter{&p.urgent, &p.waiting} {
		if len(*queue) > 0 {
			next := (*queue)[0]
			*queue = (*queue)[1:]
			close(next.ready)
			return
		}
	}
	p.held--
	p.settle()
}

// settle closes the quiet channel if no place is held or waited for.
func (p *Pacer) settle() {
	if p.held == 0 && len(p.urgent)+len(p.waiting) == 0 && p.quiet != nil {
		close(p.quiet)
		p.quiet = nil
	}
}
