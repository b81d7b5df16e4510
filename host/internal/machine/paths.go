package machine

import (
	"context"
	"fmt"
	"path"
	"strings"
	"sync"
)

// CleanAbs reports whether p is absolute and has no "..", ".", doubled slash or NUL.
func CleanAbs(p string) bool {
	return path.IsAbs(p) && path.Clean(p) == p && !strings.Contains(p, "\x00")
}

// Absolute returns an error if p is not absolute or contains "..".
func Absolute(op, p string) error {
	if !path.IsAbs(p) {
		return fmt.Errorf("%s %q: the path is not absolute", op, p)
	}
	for e := range strings.SplitSeq(p, "/") {
		if e == ".." {
			return fmt.Errorf("%s %q: the path contains \"..\"", op, p)
		}
	}
	return nil
}

// KeyedMutex is one mutex for each key in use.
type KeyedMutex struct {
	mu   sync.Mutex
	keys map[string]*keyed
}

type keyed struct {
	held  chan struct{}
	users int
}

// Lock waits for the mutex of key or the end of ctx.
func (k *KeyedMutex) Lock(ctx context.Context, key string) (unlock func(), err error) {
	k.mu.Lock()
	if k.keys == nil {
		k.keys = map[string]*keyed{}
	}
	e := k.keys[key]
	if e == nil {
		e = &keyed{held: make(chan struct{}, 1)}
		k.keys[key] = e
	}
	e.users++
	k.mu.Unlock()

	leave := func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if e.users--; e.users == 0 {
			delete(k.keys, key)
		}
	}
	select {
	case e.held <- struct{}{}:
		return func() { <-e.held; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}
