// Package startlimiter bounds how many pods a host starts, and how many hosts a process opens, at
// the same time. A host that gets fifty pods at once is done sooner if it starts a few at a time,
// because the kernel's locks on cgroups, mounts and network namespaces become more expensive with
// contention.
//
//	Take ──► a free place? ──► go
//	   └──► wait; urgent ones before the others, each kind in FIFO order ──► go
//
// A call keeps its place for a limited time only, so that a call that hangs delays others no longer
// than that.
package startlimiter

import (
	"context"
	"sync"
	"time"
)

// Limiter hands out places. The zero value is not usable; see New.
type Limiter struct {
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

// New makes a Limiter with limit places, each held for at most lease.
func New(limit int, lease time.Duration) *Limiter {
	return &Limiter{limit: max(limit, 1), lease: lease}
}

// Take waits for a place and returns a function that releases it. The caller calls it when the work
// is done; further calls do nothing. Urgent callers go before all others. The only error is ctx's. A
// nil Limiter has a place for every caller.
func (l *Limiter) Take(ctx context.Context, urgent bool) (release func(), err error) {
	if l == nil {
		return func() {}, nil
	}
	l.mu.Lock()
	if l.quiet == nil {
		l.quiet = make(chan struct{})
	}
	if l.held < l.limit {
		l.held++
		l.mu.Unlock()
		return l.place(), nil
	}
	w := &waiter{ready: make(chan struct{})}
	queue := l.queue(urgent)
	*queue = append(*queue, w)
	l.mu.Unlock()
	select {
	case <-w.ready:
		return l.place(), nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, other := range *queue {
		if other == w {
			*queue = append((*queue)[:i], (*queue)[i+1:]...)
			l.settle()
			return nil, ctx.Err()
		}
	}
	l.free() // it got the place at the same moment
	return nil, ctx.Err()
}

// Quiet returns a channel that is closed when no call holds a place or waits for one.
func (l *Limiter) Quiet() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.quiet == nil {
		return closed
	}
	return l.quiet
}

var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (l *Limiter) queue(urgent bool) *[]*waiter {
	if urgent {
		return &l.urgent
	}
	return &l.waiting
}

// place returns the release function of a place that is counted as held. The place is released by
// that function or when its lease ends.
func (l *Limiter) place() func() {
	var once sync.Once
	release := func() {
		once.Do(func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.free()
		})
	}
	timer := time.AfterFunc(l.lease, release)
	return func() {
		timer.Stop()
		release()
	}
}

// free passes a place on to the first waiter, urgent ones first.
func (l *Limiter) free() {
	for _, queue := range []*[]*waiter{&l.urgent, &l.waiting} {
		if len(*queue) > 0 {
			next := (*queue)[0]
			*queue = (*queue)[1:]
			close(next.ready)
			return
		}
	}
	l.held--
	l.settle()
}

// settle closes the quiet channel if no call holds a place or waits for one.
func (l *Limiter) settle() {
	if l.held == 0 && len(l.urgent)+len(l.waiting) == 0 && l.quiet != nil {
		close(l.quiet)
		l.quiet = nil
	}
}
