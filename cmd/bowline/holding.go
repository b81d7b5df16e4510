package main

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/syncloop/owner"
)

// holding is the claim of a machine while it is driven. That of a far machine is
// lost with its link, and taken anew before anything more is driven.
type holding struct {
	take  func(ctx context.Context) (claim, error)
	fence *fence        // nil: the machine is near, and a lost claim is lost for good
	back  func()        // called when a claim has been taken anew; may be nil
	lost  func()        // called when a claim that may be taken anew was lost; may be nil
	pause time.Duration // between tries; lockPause by default
	claim claim
	// lessons are for the holder of the machine to write down; keep takes them.
	lessons chan lesson
}

// lesson is what has been seen of the cluster since the claim.
type lesson struct {
	seen owner.Witnesses
	done chan<- error // has room for one
}

// claim is what is needed of an owner.Claim.
type claim interface {
	Lost() <-chan struct{}
	Release(ctx context.Context) error
	Stamp() string
	Learn(ctx context.Context, seen owner.Witnesses) error
}

const (
	// learnTime bounds one write of the owner file.
	learnTime = 30 * time.Second
	// The far end gives a lock back 15 s after it last heard of who held it, and may
	// find only then that a link has gone. So long a lock that is held by another is
	// asked for again before that is believed.
	lockPatience = 25 * time.Second
	lockPause    = time.Second
	// tellAgain is how often the log says why a machine is not held.
	tellAgain = 30 * time.Second
)

// hold takes the machine for the first time.
func (h *holding) hold(ctx context.Context) (err error) {
	h.claim, err = h.patiently(ctx, false)
	return err
}

// drives says whether the machine is held now, as far as this process knows.
func (h *holding) drives() bool { return h.fence == nil || !h.fence.shut.Load() }

// keep holds the machine until ctx ends or it is another's.
func (h *holding) keep(ctx context.Context) error {
	log := klog.FromContext(ctx)
	var writing sync.WaitGroup
	defer writing.Wait()
	for {
		select {
		case <-ctx.Done():
			return nil
		case l := <-h.lessons:
			// Aside: a claim that is lost meanwhile is to be noticed at once.
			claim := h.claim
			writing.Add(1)
			budget.From(ctx).Go("write what is known of the cluster", func() {
				defer writing.Done()
				err := budget.ErrPanicked
				defer func() { l.done <- err }()
				ctx, cancel := context.WithTimeout(ctx, learnTime)
				defer cancel()
				err = claim.Learn(ctx, l.seen)
			})
			continue
		case <-h.claim.Lost():
		}
		if h.fence == nil {
			return errors.New("the machine is no longer ours: another process may hold its lock; nothing more is driven from here")
		}
		h.fence.shut.Store(true)
		if h.lost != nil {
			h.lost()
		}
		log.Info("The lock of the machine went with the link; nothing is driven before it is held again")
		if err := h.claim.Release(pass(ctx)); err != nil {
			log.V(1).Info("The lost lock could not be given back", "err", err)
		}
		claim, err := h.patiently(ctx, true)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		h.claim = claim
		log.Info("The lock of the machine is held again")
		if h.back != nil {
			h.back()
		}
	}
}

// learn has it written on the machine what is seen of the cluster now; while the machine
// is not held it waits.
func (h *holding) learn(ctx context.Context, seen owner.Witnesses) error {
	done := make(chan error, 1)
	select {
	case h.lessons <- lesson{seen, done}:
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

// patiently takes the claim: it believes a far machine's lock to be another's only
// after a while, and waits for its link for ever where it was ours before.
func (h *holding) patiently(ctx context.Context, before bool) (claim, error) {
	var held time.Time // since when another has been seen to hold it
	var told time.Time
	for {
		connection := 0
		if h.fence != nil {
			connection = h.fence.connection()
		}
		claim, err := h.take(pass(ctx))
		if h.fence == nil || err == nil && h.fence.open(connection) {
			return claim, err
		}
		var refused *owner.RefusedError
		switch {
		case err == nil:
			// The connection changed meanwhile: the locks may be of two, of which one is over.
			if err = claim.Release(pass(ctx)); err != nil {
				klog.FromContext(ctx).V(1).Info("A claim of two connections could not be given back", "err", err)
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
		if time.Since(told) > tellAgain {
			klog.FromContext(ctx).Info("The machine cannot be taken yet; it is tried again each second", "err", err)
			told = time.Now()
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(cmp.Or(h.pause, lockPause)):
		}
	}
}
