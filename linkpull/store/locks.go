package store

import (
	"context"
	"sync"
)

// locks are mutexes by name that can be waited for with a context. A name that no one uses takes no memory.
type locks struct {
	mu    sync.Mutex
	named map[string]*named
}

type named struct {
	held  chan struct{} // capacity one: full while it is held
	users int           // guarded by locks.mu: the holder, and those who wait
}

func newLocks() *locks { return &locks{named: map[string]*named{}} }

func (l *locks) lock(ctx context.Context, name string) (unlock func(), err error) {
	l.mu.Lock()
	n := l.named[name]
	if n == nil {
		n = &named{held: make(chan struct{}, 1)}
		l.named[name] = n
	}
	n.users++
	l.mu.Unlock()
	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if n.users--; n.users == 0 {
			delete(l.named, name)
		}
	}
	select {
	case n.held <- struct{}{}:
		return func() { <-n.held; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}
