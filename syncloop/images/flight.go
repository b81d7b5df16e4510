package images

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/host/budget"
)

// flight is one pull that several calls wait for. It ends when the runtime has answered, or when no
// call waits for it any more.
type flight struct {
	waiters int // guarded by Manager.mu
	// intents counts the calls whose intent is still recorded. A call adds its own here, and
	// recordFile.finish takes it off under the lock of the records.
	intents atomic.Int64
	cancel  context.CancelFunc
	done    chan struct{} // closed after result is set
	result  flightResult
}

type flightResult struct {
	ref   string
	image *runtimeapi.Image // nil if its status could not be read
	took  time.Duration     // of the pull itself, without waiting for a slot
	err   error
	// used are the credentials that worked, or those in flight when the outcome became unknown;
	// nil: none.
	used *runtimeapi.AuthConfig
	// unknown is set if the runtime did not answer, so that the image may have come.
	unknown bool
	flight  *flight // set by join; nil: none began
}

// join waits for a pull of image with these credentials, and starts it if there is none. Calls with
// other credentials have their own pull: a pod must neither get an image by another pod's secret,
// nor fail because of it.
func (m *Manager) join(ctx context.Context, image *runtimeapi.ImageSpec, auths []*runtimeapi.AuthConfig) (flightResult, error) {
	if err := ctx.Err(); err != nil {
		return flightResult{}, err
	}
	key := flightKey(image, auths)
	m.mu.Lock()
	f := m.flights[key]
	if f == nil {
		// The first caller may leave before the others, so the pull has its own cancellation;
		// logger and trace are the first caller's.
		pullCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		f = &flight{cancel: cancel, done: make(chan struct{})}
		m.flights[key] = f
		go m.fly(pullCtx, key, f, image, auths)
	}
	f.waiters++
	f.intents.Add(1)
	m.mu.Unlock()

	select {
	case <-f.done:
		m.leave(key, f)
		return f.outcome(), f.result.err
	case <-ctx.Done():
		if m.leave(key, f) {
			<-f.done // the last waiter waits for the goroutine to end
			return f.outcome(), ctx.Err()
		}
		// The others note the outcome.
		return flightResult{flight: f, err: ctx.Err()}, ctx.Err()
	}
}

// outcome is the result after the flight's end.
func (f *flight) outcome() flightResult {
	out := f.result
	out.flight = f
	return out
}

// leave removes one waiter. After the last one it cancels the pull, so that the next caller starts
// a new one. It reports whether this was the last.
func (m *Manager) leave(key string, f *flight) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	f.waiters--
	if f.waiters > 0 {
		return false
	}
	if m.flights[key] == f {
		delete(m.flights, key)
	}
	f.cancel()
	return true
}

func (m *Manager) fly(ctx context.Context, key string, f *flight, image *runtimeapi.ImageSpec, auths []*runtimeapi.AuthConfig) {
	defer budget.From(ctx).Recover("pull an image")
	defer close(f.done)
	f.result.err, f.result.unknown = budget.ErrPanicked, true // in case attempt panics
	f.result = m.attempt(ctx, image, auths)
	m.mu.Lock()
	if m.flights[key] == f { // later callers start a new pull
		delete(m.flights, key)
	}
	m.mu.Unlock()
}

// attempt takes a slot, waits for the rate limit, and tries the credentials in order until one works.
func (m *Manager) attempt(ctx context.Context, image *runtimeapi.ImageSpec, auths []*runtimeapi.AuthConfig) flightResult {
	if m.slots != nil {
		select {
		case m.slots <- struct{}{}:
			defer func() { <-m.slots }()
		case <-ctx.Done():
			return flightResult{err: ctx.Err()}
		}
	}
	if m.rate != nil {
		if err := m.rate.Wait(ctx); err != nil {
			return flightResult{err: cmp.Or(ctx.Err(), err)}
		}
	}
	if len(auths) == 0 {
		auths = []*runtimeapi.AuthConfig{nil}
	}
	began := time.Now()
	var errs refusals
	for _, auth := range auths {
		ref, err := m.cfg.Runtime.PullImage(ctx, image, auth, nil)
		if err == nil {
			out := flightResult{ref: ref, took: time.Since(began), used: auth}
			// The image is present whether or not its status can be read now.
			out.image, _ = m.cfg.Runtime.ImageStatus(ctx, image)
			return out
		}
		if m.lost(ctx, err) {
			return flightResult{err: err, used: auth, unknown: true} // says nothing about the credentials
		}
		errs = append(errs, err)
	}
	if len(errs) == 1 {
		return flightResult{err: errs[0]}
	}
	return flightResult{err: errs}
}

// refusals are the runtime's errors from one pull with several credentials.
type refusals []error

func (r refusals) Error() string {
	var texts []string
	for _, err := range r {
		if text := words(err); !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	if len(texts) == 1 {
		return texts[0]
	}
	return "[" + strings.Join(texts, ", ") + "]"
}

func (r refusals) Unwrap() []error { return r }

// flightKey distinguishes images and credentials without containing the latter.
func flightKey(image *runtimeapi.ImageSpec, auths []*runtimeapi.AuthConfig) string {
	h := sha256.New()
	for _, a := range auths {
		for _, s := range []string{a.GetUsername(), a.GetPassword()} {
			h.Write([]byte(strconv.Itoa(len(s)) + ":" + s))
		}
	}
	return image.Image + "\x00" + hex.EncodeToString(h.Sum(nil))
}
