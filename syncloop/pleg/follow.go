package pleg

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/pod"
)

// follow turns hints into looks at single pods.
func (g *Generator) follow(ctx context.Context) {
	log := klog.FromContext(ctx)
	pause := time.Second
	for ctx.Err() == nil {
		hints, err := g.cfg.Hints(ctx)
		if err != nil {
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
			pause = min(2*pause, time.Minute)
			continue
		}
		opened := time.Now()
		g.opened.set(opened)
		g.events.Store(true)
		g.Kick()
		g.drain(ctx, hints)
		g.events.Store(false)
		g.Kick()
		if ctx.Err() == nil {
			log.V(1).Info("Runtime event stream ended; relisting each second until it is back")
		}
		// One that ends as it begins is not opened in a tight loop.
		if time.Since(opened) > time.Second {
			pause = time.Second
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, time.Minute)
	}
}

// settle is how long hints are gathered before the pods they name are looked
// at: a container's start and exit come as bursts of events. The runtime tells
// of an exit before its own lists show it, so a look that does not show what the
// hint promised is repeated, each time after twice the pause.
const (
	settle      = 20 * time.Millisecond
	settleLimit = 5 * time.Second
)

// promise is a hint that no look has confirmed yet.
type promise struct {
	Hint
	pause time.Duration // to the next look
	due   time.Time
}

func (g *Generator) drain(ctx context.Context, hints <-chan Hint) {
	open := map[Hint]*promise{}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case h, more := <-hints:
			if !more {
				return
			}
			if len(open) >= maxPromises {
				g.Kick()
				continue
			}
			// An ID that is not known may be foreign, or of a look that is under
			// way and saw less than the event tells: it is kept for a while.
			if g.uidOf(h.ID) != "" && g.confirmed(h) {
				continue
			}
			open[h] = &promise{Hint: h, pause: settle, due: time.Now().Add(settle)}
		case now := <-timer.C:
			g.lookAgain(ctx, open, now)
		}
		if next := earliest(open); !next.IsZero() {
			timer.Reset(max(time.Until(next), 0))
		}
	}
}

// lookAgain looks at the pods whose hints are due, once each, and puts off what
// the look did not confirm.
func (g *Generator) lookAgain(ctx context.Context, open map[Hint]*promise, now time.Time) {
	looked := map[types.UID]bool{}
	for h, p := range open {
		if p.due.After(now) {
			continue
		}
		uid := g.uidOf(h.ID)
		if uid != "" && !looked[uid] && !g.confirmed(h) {
			looked[uid] = true
			// An error is in the cache as staleness, and the relist retries.
			ref, changed := g.cache.Get(uid).Ref, g.changedBy(h)
			g.within(uid, func() { _, _ = g.Observe(ctx, ref, changed) })
		}
		if p.pause *= 2; uid != "" && g.confirmed(h) || p.pause > settleLimit {
			delete(open, h)
			continue
		}
		p.due = time.Now().Add(p.pause)
	}
}

// changedBy is what a hint tells of; its ID is one of the cache's.
func (g *Generator) changedBy(h Hint) Changed {
	if findSandbox(g.cache.Get(g.uidOf(h.ID)).Sandboxes, h.ID) != nil {
		return Changed{Sandbox: h.ID}
	}
	return Changed{Container: h.ID}
}

func earliest(open map[Hint]*promise) time.Time {
	var first time.Time
	for _, p := range open {
		if first.IsZero() || p.due.Before(first) {
			first = p.due
		}
	}
	return first
}

func (g *Generator) uidOf(id string) types.UID {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.byID[id]
}

// confirmed says whether what is cached shows what the hint promised, or cannot
// show it, because the object is not one of ours.
func (g *Generator) confirmed(h Hint) bool {
	uid := g.uidOf(h.ID)
	if uid == "" {
		return true
	}
	o := g.cache.Get(uid)
	running, present := false, false
	if c := findContainer(o.Containers, h.ID); c != nil {
		running, present = c.State == pod.StateRunning, true
		if c.State == pod.StateExited && h.Expect == Started {
			return true // it has ended since
		}
	} else if s := findSandbox(o.Sandboxes, h.ID); s != nil {
		running, present = s.Ready, true
		if h.Expect == Started {
			return true
		}
	}
	if h.Expect == Started {
		return running || !present
	}
	return !running
}
