package ownership

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/syncloop/owner"
)

// testClaim is a claim that the test can lose.
type testClaim struct {
	lost     chan struct{}
	released bool
	mu       sync.Mutex
	learned  []owner.Witnesses
	fails    error // the error of Learn
}

func (c *testClaim) Lost() <-chan struct{}         { return c.lost }
func (c *testClaim) Release(context.Context) error { c.released = true; return nil }
func (c *testClaim) Stamp() string                 { return "ours" }

func (c *testClaim) Learn(_ context.Context, seen owner.Witnesses) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fails == nil {
		c.learned = append(c.learned, seen)
	}
	return c.fails
}

// claims answers calls of take in order; the last answer repeats.
type claims struct {
	mu      sync.Mutex
	answers []error
	given   []*testClaim
	asked   int
	fenced  int // calls with a context that a shut fence would stop
}

func (c *claims) take(ctx context.Context) (Claim, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	if !BypassesFence(ctx) {
		c.fenced++
	}
	if len(c.answers) > 0 {
		err := c.answers[0]
		if len(c.answers) > 1 || err == nil {
			c.answers = c.answers[1:]
		}
		if err != nil {
			return nil, err
		}
	}
	given := &testClaim{lost: make(chan struct{})}
	c.given = append(c.given, given)
	return given, nil
}

func (c *claims) answer(errs ...error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers = errs
}

func (c *claims) newest() *testClaim {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.given[len(c.given)-1]
}

var (
	errHeld  = &owner.RefusedError{Decision: owner.Decision{Kind: owner.HeldByOther, Problem: "another manages it"}}
	errOther = &owner.RefusedError{Decision: owner.Decision{Kind: owner.OtherNode, Problem: "it is another node"}}
	errGone  = fmt.Errorf("claim the host: %w", host.ErrUnreachable)
)

func TestLocalHostIsLostForGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &claims{}
		h := &Holder{Take: c.take}
		testutil.Must(t, h.Acquire(t.Context()))
		close(c.newest().lost)
		if err := h.Keep(t.Context(), Callbacks{}); err == nil || c.asked != 1 {
			t.Errorf("%v, asked %d times", err, c.asked)
		}
	})
}

// A remote host is fenced from the loss of its lock until the lock is held again.
func TestRemoteHostIsHeldAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c, f := &claims{}, NewFence(nil, func() int { return 1 })
		back, lost := 0, 0
		h := &Holder{Take: c.take, Fence: f}
		testutil.Must(t, h.Acquire(ctx))
		done := make(chan error, 1)
		go func() {
			done <- h.Keep(ctx, Callbacks{Reacquired: func() { back++ }, Lost: func() {
				if lost++; !f.shut.Load() {
					t.Error("told of the loss before the fence is shut")
				}
			}})
		}()
		allowed := func(what string, want bool) {
			t.Helper()
			synctest.Wait()
			ran := false
			err := f.Hook(ctx, "cri/Any", func(context.Context) error { ran = true; return nil })
			if ran != want || (err == nil) != want || err != nil && !errors.Is(err, host.ErrUnreachable) {
				t.Errorf("%s: ran %v, %v", what, ran, err)
			}
		}
		allowed("while it is held", true)
		c.answer(errGone)
		first := c.newest()
		close(first.lost)
		allowed("when it is lost", false)
		time.Sleep(time.Hour)
		allowed("an hour later, the link still down", false)
		// This process's previous session holds the lock for a while.
		c.answer(errHeld, errHeld, errHeld, nil)
		time.Sleep(time.Minute)
		allowed("lock again", true)
		if back != 1 || lost != 1 || !first.released || c.fenced != 0 {
			t.Errorf("told %d times, and %d of the loss, released %v, %d tries without a pass", back, lost, first.released, c.fenced)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A claim that was taken while the connection changed may be half lost: it is released and taken
// again.
func TestRemoteHostTakenOverTwoConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &claims{}
		number := 1
		f := NewFence(nil, func() int { return number })
		h := &Holder{Fence: f, Take: func(ctx context.Context) (Claim, error) {
			if c.asked == 0 {
				number++
			}
			return c.take(ctx)
		}}
		testutil.Must(t, h.Acquire(t.Context()))
		if c.asked != 2 || !c.given[0].released || c.given[1].released {
			t.Errorf("asked %d times, the first released: %v", c.asked, c.given[0].released)
		}
		// Calls are bound to the connection that holds the lock.
		if f.held.Load() != 2 {
			t.Errorf("held by the connection %d", f.held.Load())
		}
	})
}

func TestRemoteHostOfAnother(t *testing.T) {
	for name, tc := range map[string]struct {
		answer error
		least  time.Duration
		most   time.Duration
	}{
		"a lock that another holds is believed after a while": {errHeld, lockPatience, lockPatience + 3*lockPause},
		"an owner file of another is believed at once":        {errOther, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, f := &claims{}, NewFence(nil, func() int { return 1 })
				h := &Holder{Take: c.take, Fence: f}
				testutil.Must(t, h.Acquire(t.Context()))
				c.answer(tc.answer)
				close(c.newest().lost)
				began := time.Now()
				err := h.Keep(t.Context(), Callbacks{})
				if took := time.Since(began); !errors.Is(err, tc.answer) || took < tc.least || took > tc.most {
					t.Errorf("%v after %s", err, took)
				}
				if !f.shut.Load() {
					t.Error("the fence is open")
				}
			})
		})
	}
}
