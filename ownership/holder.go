// Package ownership keeps the claim of a host: its lock and its owner file (package owner). The lock
// of a remote host is lost with the link, and another process may take it meanwhile. Until the lock
// is held again, the fence stops every call, so that two processes never act on one host.
//
//	claim.go       takes and releases a claim; package syncloop/owner decides whether a host may be
//	               claimed, takes its locks and writes its owner file
//	holder.go      keeps a claim, and takes it again
//	fence.go       stops the calls to a host whose lock is not held
//	nodenames.go   two hosts of one process are never the same node
//
// The instance, which names the process that reports a Node, is not of the host but of the Node:
// provider/standby.go reads it from the object, and node/build.go makes a new one for each run. A
// process that sees another instance there reports nothing unless it holds the lock.
package ownership

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/syncloop/owner"
)

// Holder keeps the claim of a host while the host is managed. The claim of a remote host is lost
// with its link, and is taken again before anything else is done on the host.
type Holder struct {
	Take  func(ctx context.Context) (Claim, error)
	Fence *Fence        // nil: the host is local, and a lost claim is final
	Pause time.Duration // between tries; 0 means lockPause
	Claim Claim
	// updates carries what Record wants in the owner file to Keep, which owns the claim.
	updates chan update
}

// update is one request to write newly seen witnesses to the owner file.
type update struct {
	seen owner.Witnesses
	done chan<- error // buffered
}

// Claim is the part of owner.Claim that Holder uses.
type Claim interface {
	Lost() <-chan struct{}
	Release(ctx context.Context) error
	Stamp() string
	Learn(ctx context.Context, seen owner.Witnesses) error
}

const (
	// learnTime bounds one write of the owner file.
	learnTime = 30 * time.Second
	// lockPatience is how long a lock held by another process is retried before that is believed.
	// The remote host releases a lock 15 s after it last heard from the holder, and may notice only
	// then that a link has ended.
	lockPatience = 25 * time.Second
	lockPause    = time.Second
	// logInterval is how often the log repeats why the lock is not held.
	logInterval = 30 * time.Second
)

// NewHolder returns a Holder that takes its claim by take. fence is that of a remote host; nil for
// a local one, whose lost claim is final.
func NewHolder(fence *Fence, take func(context.Context) (Claim, error)) *Holder {
	return &Holder{Take: take, Fence: fence, updates: make(chan update)}
}

// Acquire takes the claim for the first time.
func (h *Holder) Acquire(ctx context.Context) (err error) {
	h.Claim, err = h.acquire(ctx, false)
	return err
}

// Held reports whether, as far as this process knows, it holds the host's lock now.
func (h *Holder) Held() bool { return h.Fence == nil || !h.Fence.shut.Load() }

// ErrLockLost is the error of Keep when the lock of a local host was lost, which is final.
var ErrLockLost = errors.New("lost the host lock")

// Callbacks are what Keep calls; each may be nil.
type Callbacks struct {
	Lost       func() // a claim that may be taken again was lost, and the fence is shut
	Reacquired func() // the claim was taken again
}

// Keep keeps the claim until ctx ends or another process has the host.
func (h *Holder) Keep(ctx context.Context, on Callbacks) error {
	log := klog.FromContext(ctx)
	var writing sync.WaitGroup
	defer writing.Wait()
	for {
		select {
		case <-ctx.Done():
			return nil
		case l := <-h.updates:
			// In a goroutine, so that a claim that is lost meanwhile is noticed at once.
			claim := h.Claim
			writing.Add(1)
			budget.From(ctx).Go("record cluster identity", func() {
				defer writing.Done()
				err := budget.ErrPanicked
				defer func() { l.done <- err }()
				ctx, cancel := context.WithTimeout(ctx, learnTime)
				defer cancel()
				err = claim.Learn(ctx, l.seen)
			})
			continue
		case <-h.Claim.Lost():
		}
		if h.Fence == nil {
			return hint.Add(ErrLockLost, "look for another Bowline that manages this host")
		}
		h.Fence.Close()
		if on.Lost != nil {
			on.Lost()
		}
		log.Error(nil, "Lost the host lock; blocking calls until reacquired")
		if err := h.Claim.Release(WithFenceBypass(ctx)); err != nil {
			log.V(1).Info("Failed to release the lost lock", "err", err)
		}
		claim, err := h.acquire(ctx, true)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		h.Claim = claim
		log.Info("Reacquired the host lock")
		if on.Reacquired != nil {
			on.Reacquired()
		}
	}
}

// Record writes the witnesses of the cluster to the owner file. It waits while the host's lock is
// not held.
func (h *Holder) Record(ctx context.Context, seen owner.Witnesses) error {
	done := make(chan error, 1)
	select {
	case h.updates <- update{seen, done}:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// acquire takes the claim. It believes only after lockPatience that another process holds a
// remote host's lock. If this process held the claim before, it waits for the link without limit.
func (h *Holder) acquire(ctx context.Context, before bool) (Claim, error) {
	var held time.Time // since when another process has been seen to hold it
	var logged time.Time
	for {
		connection := 0
		if h.Fence != nil {
			connection = h.Fence.connection()
		}
		claim, err := h.Take(WithFenceBypass(ctx))
		if h.Fence == nil || err == nil && h.Fence.open(connection) {
			return claim, err
		}
		var refused *owner.RefusedError
		switch {
		case err == nil:
			// The connection changed meanwhile: the locks may be held by two connections, one of
			// which has ended.
			if err = claim.Release(WithFenceBypass(ctx)); err != nil {
				klog.FromContext(ctx).V(1).Info("Failed to release the claim of two connections", "err", err)
			}
			err = host.ErrUnreachable
		case ctx.Err() != nil:
			return nil, err
		case errors.As(err, &refused) && refused.Decision.Kind == owner.HeldByOther:
			if held.IsZero() {
				held = time.Now()
			}
			if time.Since(held) > lockPatience {
				return nil, err
			}
		case refused != nil || !before:
			return nil, err
		default:
			held = time.Time{}
		}
		if time.Since(logged) > logInterval {
			klog.FromContext(ctx).Error(err, "Failed to acquire the host, will retry every second", hint.With(err)...)
			logged = time.Now()
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(cmp.Or(h.Pause, lockPause)):
		}
	}
}
