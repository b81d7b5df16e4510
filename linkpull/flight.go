package linkpull

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"sync"

	"github.com/bowline-k8s/bowline/host/budget"
)

// flights are the pulls that are under way.
type flights struct {
	mu    sync.Mutex
	byKey map[string]*flight
}

// pullFunc is a pull that reports its progress.
type pullFunc func(ctx context.Context, progress ProgressFunc) (Result, error)

// flight is one pull that several calls wait for.
type flight struct {
	waiters int // guarded by flights.mu
	cancel  context.CancelFunc
	done    chan struct{} // closed after result and err are set
	result  Result
	err     error

	mu          sync.Mutex
	listeners   []*ProgressFunc
	last, total int64
}

// join waits for the pull with this key, and starts it if there is none. The last call that leaves cancels it.
func (f *flights) join(ctx context.Context, key string, progress ProgressFunc, pull pullFunc) (Result, error) {
	if err := ctx.Err(); err != nil {
		return Result{}, err
	}
	f.mu.Lock()
	one := f.byKey[key]
	if one == nil {
		// The first caller may leave before the others; logger, trace and account are the first caller's.
		flying, cancel := context.WithCancel(context.WithoutCancel(ctx))
		one = &flight{cancel: cancel, done: make(chan struct{}), err: budget.ErrPanicked}
		f.byKey[key] = one
		go f.fly(flying, key, one, pull)
	}
	one.waiters++
	f.mu.Unlock()
	stop := one.listen(progress)
	defer stop()
	defer f.leave(key, one)
	select {
	case <-one.done:
		return one.result, one.err
	case <-ctx.Done():
		return Result{}, ctx.Err()
	}
}

func (f *flights) fly(ctx context.Context, key string, one *flight, pull pullFunc) {
	defer budget.From(ctx).Recover("pull an image over the link")
	defer func() {
		f.mu.Lock()
		if f.byKey[key] == one { // later calls start a new pull
			delete(f.byKey, key)
		}
		f.mu.Unlock()
		close(one.done)
	}()
	one.result, one.err = pull(ctx, one.report)
}

func (f *flights) leave(key string, one *flight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	one.waiters--
	if one.waiters > 0 {
		return
	}
	if f.byKey[key] == one {
		delete(f.byKey, key)
	}
	one.cancel()
}

// listen calls progress, which may be nil, with the state of now and with each later one until stop is called. A
// call that has begun may end after that.
func (one *flight) listen(progress ProgressFunc) (stop func()) {
	if progress == nil {
		return func() {}
	}
	one.mu.Lock()
	one.listeners = append(one.listeners, &progress)
	done, total := one.last, one.total
	one.mu.Unlock()
	if total > 0 {
		progress(done, total)
	}
	return func() {
		one.mu.Lock()
		defer one.mu.Unlock()
		one.listeners = slices.DeleteFunc(one.listeners, func(l *ProgressFunc) bool { return l == &progress })
	}
}

func (one *flight) report(done, total int64) {
	one.mu.Lock()
	one.last, one.total = done, total
	listeners := slices.Clone(one.listeners)
	one.mu.Unlock()
	for _, l := range listeners {
		(*l)(done, total)
	}
}

// key distinguishes pulls without containing the credentials.
func key(ref string, r Request) string {
	h := sha256.New()
	parts := []string{r.Platform.Normal().String()}
	if r.Auth != nil {
		parts = append(parts, r.Auth.Username, r.Auth.Password)
	}
	for _, s := range parts {
		h.Write([]byte(strconv.Itoa(len(s)) + ":" + s))
	}
	return ref + "\x00" + hex.EncodeToString(h.Sum(nil))
}
