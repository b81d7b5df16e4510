package pleg

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/pod"
)

// follow turns runtime events into looks at single pods.
func (g *Generator) follow(ctx context.Context) {
	log := klog.FromContext(ctx)
	first := wait.Backoff{Duration: time.Second, Factor: 2, Steps: 10, Cap: time.Minute}
	for retry := first; ctx.Err() == nil; {
		hints, err := g.cfg.Hints(ctx)
		if err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(retry.Step()):
			}
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
			log.V(1).Info("Lost the runtime's event stream; relisting every second")
		}
		// Back off if the stream ends right after it opens.
		if time.Since(opened) > time.Second {
			retry = first
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(retry.Step()):
		}
	}
}

// debounce is how long to gather hints before looking at their pods: the start and exit of a
// container come as bursts of events. The runtime sends the event of an exit before its own lists
// show the exit, so a look that does not show the announced state is repeated, each time after
// twice the pause.
const (
	debounce    = 20 * time.Millisecond
	settleLimit = 5 * time.Second // of all looks together, about
)

// looks are the pauses before the looks for one hint; the last is half of settleLimit.
var looks = wait.Backoff{Duration: debounce, Factor: 2, Steps: 8}

// promise is a hint that no look has confirmed yet.
type pendingHint struct {
	Hint
	looks wait.Backoff // those that are left
	due   time.Time
}

func (g *Generator) drain(ctx context.Context, hints <-chan Hint) {
	open := map[Hint]*pendingHint{}
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
			g.changedAt.set(time.Now())
			if len(open) >= maxPendingHints {
				g.cfg.Dropped()
				g.Kick()
				continue
			}
			// An unknown ID may be foreign, or belong to a look under way that saw less than the
			// event reports: keep the hint for a while.
			if g.uidOf(h.ID) != "" && g.confirmed(h) {
				continue
			}
			p := &pendingHint{Hint: h, looks: looks}
			p.due = time.Now().Add(p.looks.Step())
			open[h] = p
		case now := <-timer.C:
			g.lookAgain(ctx, open, now)
		}
		if next := earliest(open); !next.IsZero() {
			timer.Reset(max(time.Until(next), 0))
		}
	}
}

// lookAgain looks once at each pod that has due hints, and postpones hints that the look did not
// confirm.
func (g *Generator) lookAgain(ctx context.Context, open map[Hint]*pendingHint, now time.Time) {
	looked := map[types.UID]bool{}
	for h, p := range open {
		if p.due.After(now) {
			continue
		}
		uid := g.uidOf(h.ID)
		if uid != "" && !looked[uid] && !g.confirmed(h) {
			looked[uid] = true
			// The cache records an error as staleness, and the relist retries.
			ref, changed := g.cache.Get(uid).Ref, g.changedBy(h)
			g.within(uid, func() { _, _ = g.Observe(ctx, ref, changed) })
		}
		if uid != "" && g.confirmed(h) || p.looks.Steps == 0 {
			delete(open, h)
			continue
		}
		p.due = time.Now().Add(p.looks.Step())
	}
}

// changedBy returns the object that a hint is about. The cache must know the hint's ID.
func (g *Generator) changedBy(h Hint) Changed {
	if findSandbox(g.cache.Get(g.uidOf(h.ID)).Sandboxes, h.ID) != nil {
		return Changed{Sandbox: h.ID}
	}
	return Changed{Container: h.ID}
}

func earliest(open map[Hint]*pendingHint) time.Time {
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

// confirmed reports whether the cache shows the state that the hint announced, or cannot show it
// because the object is foreign.
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
			return true // it has already ended
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
