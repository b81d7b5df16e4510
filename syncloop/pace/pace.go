// Package pace bounds how many pods a machine starts at the same moment. A
// machine that is given fifty pods at once brings up the last of them sooner when
// it starts a few at a time: the kernel's locks on cgroups, mounts and network
// namespaces cost more the more they are fought for.
//
//	Take ──► a free place? ──► go
//	   └──► wait; the urgent before the others, each in its turn ──► go
//
// A place is held for a limited time only: a call that hangs holds nobody up
// for longer, however long it may last itself.
package pace

import (
	"context"
	"sync"
	"time"
)

// Pacer gives out places. The zero value is not usable; see New.
type Pacer struct {
	limit int
	lease time.Duration

	mu      sync.Mutex
	held    int
	urgent  []*waiter
	waiting []*waiter
	quiet   chan struct{} // closed when nothing is held or waited for; nil when it is so
}

type waiter struct {
	ready chan struct{} // closed when the place is given
}

// New makes a Pacer with that many places, each held for at most lease.
func New(limit int, lease time.Duration) *Pacer {
	return &Pacer{limit: max(limit, 1), lease: lease}
}

// Take waits for a place and returns what gives it back, to be called once the
// work is done; more calls do nothing. The urgent go before all others. It fails
// with ctx's error alone.
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
	p.free() // it was given the place at the same moment
	return nil, ctx.Err()
}

// Quiet returns a channel that is closed when nothing is held or waited for.
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

// place is the right to give back a place that is counted as held, by hand or
// when its time is over.
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

// free hands a place on to the first in line.
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

// settle tells of quiet when there is some.
func (p *Pacer) settle() {
	if p.held == 0 && len(p.urgent)+len(p.waiting) == 0 && p.quiet != nil {
		close(p.quiet)
		p.quiet = nil
	}
}
