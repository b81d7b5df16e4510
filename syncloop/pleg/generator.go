package pleg

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/notify"
	"github.com/bowline-k8s/bowline/pod"
)

// Hint is a runtime event, reduced to its statement about one container or sandbox.
type Hint struct {
	ID string // of a container or a sandbox
	// Expect is the state that a look should show once the runtime has handled the event.
	Expect Expect
}

// Expect is the state of a Hint's container or sandbox after the event.
type Expect int

const (
	Started Expect = iota // it is running
	Ended                 // it is not running
)

// Config of a Generator.
type Config struct {
	Runtime Runtime
	Files   Files
	// Owner is the value of pod.LabelOwner on our sandboxes and containers.
	Owner string
	// ClockOffset returns the host's clock minus ours.
	ClockOffset func() time.Duration
	// ClockDoubt is called if the runtime reports a time that is impossible under ClockOffset. It
	// must not block.
	ClockDoubt func()
	// IsNotFound reports whether an error is the runtime's "no such object".
	IsNotFound func(error) bool
	// IsTransport reports whether an error means that the runtime was not reached. An error that
	// the runtime answers with makes only one pod's observation stale. If IsTransport is nil, every
	// error makes all observations stale.
	IsTransport func(error) bool
	// Hints opens the runtime's event stream; the channel closes with the stream. If Hints is nil
	// or fails, there is no stream for now.
	Hints func(ctx context.Context) (<-chan Hint, error)
	// Relist is the pause between relists without an event stream (default 1 s), RelistWithEvents
	// with one (default 60 s).
	Relist, RelistWithEvents time.Duration
	// Relisted is called after each full list for which the runtime answered every request: with its
	// duration and, after the first one, the time since the previous list began. It must not block.
	Relisted func(took, interval time.Duration)
	// Looked is called after each successful Observe with its duration, and Dropped for each hint that
	// was dropped because too many were pending. They must not block.
	Looked  func(took time.Duration)
	Dropped func()
	// Budget limits how much the runtime may report; nil means the default limits.
	Budget *budget.Account
}

func (c *Config) validate() error {
	if c.Runtime == nil || c.Files == nil || c.Owner == "" || c.IsNotFound == nil {
		return errors.New("pleg: Runtime, Files, Owner and IsNotFound are required")
	}
	if c.ClockOffset == nil {
		c.ClockOffset = func() time.Duration { return 0 }
	}
	if c.ClockDoubt == nil {
		c.ClockDoubt = func() {}
	}
	if c.IsTransport == nil {
		c.IsTransport = func(error) bool { return true }
	}
	if c.Relisted == nil {
		c.Relisted = func(time.Duration, time.Duration) {}
	}
	if c.Looked == nil {
		c.Looked = func(time.Duration) {}
	}
	if c.Dropped == nil {
		c.Dropped = func() {}
	}
	if c.Relist == 0 {
		c.Relist = time.Second
	}
	if c.RelistWithEvents == 0 {
		c.RelistWithEvents = time.Minute
	}
	return nil
}

// unhealthyAfter is how long the node stays ready without a successful relist.
const unhealthyAfter = 3 * time.Minute

// Generator keeps the Cache up to date.
type Generator struct {
	cfg   Config
	cache *Cache

	events     atomic.Bool  // the event stream is open
	opened     moment       // when the event stream was last opened
	changedAt  moment       // when the runtime last reported anything new
	partial    atomic.Bool  // the last relist failed to look at some pod
	whole      atomic.Bool  // a relist has once known the user ID ranges of every pod
	lastRelist moment       // start of the last successful relist
	listed     atomic.Int64 // sandboxes and containers in the last full list
	kick       notify.Signal

	mu      sync.Mutex
	byID    map[string]types.UID   // container and sandbox IDs in the cache
	changed map[types.UID]struct{} // not yet returned by TakeChanged
	looking map[types.UID]struct{} // pods with a look under way that a relist or a hint began
	notify  notify.Signal
}

// New returns a Generator. It does nothing until Run is called.
func New(c Config) (*Generator, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	return &Generator{
		cfg: c, cache: newCache(),
		kick:    notify.New(),
		byID:    map[string]types.UID{},
		changed: map[types.UID]struct{}{},
		looking: map[types.UID]struct{}{},
		notify:  notify.New(),
	}, nil
}

// Cache returns the cache that the generator writes.
func (g *Generator) Cache() *Cache { return g.cache }

// RelistedAt returns when the last successful relist began; zero: none has succeeded.
func (g *Generator) RelistedAt() time.Time { return g.lastRelist.time() }

// Notify returns a channel that receives when TakeChanged has something. Senders never block on it.
func (g *Generator) Notify() <-chan struct{} { return g.notify }

// TakeChanged returns the pods whose observation changed since the last call.
func (g *Generator) TakeChanged() []types.UID {
	g.mu.Lock()
	defer g.mu.Unlock()
	uids := make([]types.UID, 0, len(g.changed))
	for uid := range g.changed {
		uids = append(uids, uid)
	}
	clear(g.changed)
	return uids
}

// moment holds the time at which something last happened. It keeps the monotonic reading, which
// timers follow too, so durations since a moment ignore system sleep and changes of the wall clock.
type moment struct{ at atomic.Pointer[time.Time] }

// set stores at and reports whether it is the first time that was set.
func (m *moment) set(at time.Time) (first bool) { return m.at.Swap(&at) == nil }

// time returns the last time that was set, or zero.
func (m *moment) time() time.Time {
	if at := m.at.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// Quiet reports that the runtime has reported nothing new since a time: its event stream has been
// open for all of it, and has shown no event.
func (g *Generator) Quiet(since time.Time) bool {
	opened, changed := g.opened.time(), g.changedAt.time()
	return g.events.Load() && !g.partial.Load() && !opened.IsZero() && opened.Add(settleLimit).Before(since) && changed.Before(since)
}

// Healthy reports whether a relist succeeded within the last three minutes, and when the last
// successful one began (zero if none). It uses the monotonic clock, as the relist timer does.
func (g *Generator) Healthy(now time.Time) (bool, time.Time) {
	last := g.lastRelist.time()
	return now.Sub(last) < unhealthyAfter, last
}

// Whole reports whether Cache.Users has the range of every sandbox that the runtime had when we
// started. A successful relist is not enough: it also succeeds if the look at some pod fails.
func (g *Generator) Whole() bool { return g.whole.Load() }

// Kick makes the next relist happen now.
func (g *Generator) Kick() { g.kick.Send() }

// Run relists until ctx ends. If there is an event stream, Run reopens it when it closes. After
// each opening it keeps the short relist pause for a while, because events between two streams are
// lost.
func (g *Generator) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	if g.cfg.Hints != nil {
		wg.Add(1)
		g.cfg.Budget.Go("follow the runtime's events", func() { defer wg.Done(); g.follow(ctx) })
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	pause := time.Duration(0)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
			// A caller of List may have done a relist meanwhile.
			if left := g.left(pause, time.Now()); left > 0 {
				timer.Reset(left)
				continue
			}
		case <-g.kick:
		}
		err := g.Relist(ctx)
		pause = g.pause(err, time.Now())
		timer.Reset(pause)
	}
}

// left returns the remainder of a pause that began with the last relist.
func (g *Generator) left(pause time.Duration, now time.Time) time.Duration {
	return pause - now.Sub(g.lastRelist.time())
}

// pause returns how long to wait before the next relist, after one that ended with err.
func (g *Generator) pause(err error, now time.Time) time.Duration {
	// The relist that follows the opening of the stream may not yet show an exit whose event came
	// before the opening.
	settled := now.Sub(g.opened.time()) > settleLimit
	if err == nil && g.events.Load() && settled && !g.partial.Load() {
		return g.cfg.RelistWithEvents
	}
	return g.cfg.Relist * time.Duration(1+g.listed.Load()/itemsAtOnce)
}

// itemsAtOnce is the number of sandboxes and containers up to which the short pause between relists
// stays the same. It is more than a node has. A host that lists tens of thousands would otherwise keep
// a core busy that it shares with other hosts.
const itemsAtOnce = 2048

// Relist lists everything and looks at each pod that changed.
func (g *Generator) Relist(ctx context.Context) error {
	_, _, err := g.List(ctx)
	return err
}

// List is a Relist that also returns the runtime's lists, including sandboxes and containers of
// other owners, so that its callers need not list again. It postpones the next timed relist.
func (g *Generator) List(ctx context.Context) ([]*runtimeapi.PodSandbox, []*runtimeapi.Container, error) {
	seq, at := g.cache.NextSeq(), time.Now()
	all, err := g.list(ctx, "")
	if err == nil {
		g.listed.Store(int64(len(all.sandboxes) + len(all.containers)))
		err = g.relisted(ctx, all, seq, at)
	} else {
		err = g.failed(ctx, err)
	}
	if err != nil {
		return nil, nil, err
	}
	return all.sandboxes, all.containers, nil
}

// relisted updates the cache from a full list that was begun at seq.
func (g *Generator) relisted(ctx context.Context, all lists, seq uint64, at time.Time) error {
	seen, partial, users := make(map[types.UID]bool, len(all.byUID)), false, true
	for uid, l := range all.byUID {
		seen[uid] = true
		old := g.cache.Get(uid)
		if !g.cache.StaleAlone(uid) && unchanged(l, old) && g.cache.touch(uid, old.Seq, seq, at) {
			continue
		}
		whole, err := g.lookPatiently(ctx, l, old, seq, at)
		if err != nil {
			return err
		}
		partial = partial || !whole
		users = users && (whole || g.cache.knowsUsers(l))
	}
	g.partial.Store(partial)
	gone, seesAgain := g.cache.relisted(seq, at, seen, all.foreign)
	for _, ref := range gone {
		g.forget(ref.UID)
		g.announce(ref.UID)
	}
	last := g.lastRelist.time()
	first := g.lastRelist.set(at)
	interval := time.Duration(0)
	if !first {
		interval = at.Sub(last)
	}
	g.cfg.Relisted(time.Since(at), interval)
	if users && !g.whole.Swap(true) {
		first = true
	}
	if seesAgain || first {
		g.announceAll()
	}
	return nil
}

// Changed names the sandbox or container that the caller just changed, if known. Observe then
// requests its status in parallel with the lists instead of after them.
type Changed struct{ Sandbox, Container string }

// Observe looks at one pod now and returns the cached observation.
func (g *Generator) Observe(ctx context.Context, ref pod.Ref, changed Changed) (pod.Observed, error) {
	seq, at := g.cache.NextSeq(), time.Now()
	early := make(chan prefetched, 1)
	g.cfg.Budget.Go("read what has changed", func() {
		var f prefetched // stays empty if the status cannot be read
		defer func() { early <- f }()
		f = g.prefetch(ctx, changed)
	})
	all, err := g.list(ctx, ref.UID)
	statuses := <-early
	if err != nil {
		return pod.Observed{}, g.failed(ctx, err)
	}
	l := all.byUID[ref.UID]
	if l == nil {
		l = &listed{ref: ref}
	}
	if err := g.look(ctx, l, g.cache.Get(ref.UID), statuses, seq, at); err != nil {
		_, err = g.lookFailed(ctx, ref, seq, err)
		return pod.Observed{}, err
	}
	g.cfg.Looked(time.Since(at))
	return g.cache.Get(ref.UID), nil
}

func (g *Generator) look(ctx context.Context, l *listed, old pod.Observed, early prefetched, seq uint64, at time.Time) error {
	o := pod.Observed{Ref: l.ref, Seq: seq, At: at}
	var err error
	g.cache.hearList(l, seq)
	if o.Sandboxes, err = g.sandboxes(ctx, l, old, early); err != nil {
		return err
	}
	if err := g.affordable(o); err != nil {
		return err
	}
	// The container statuses may fail or hang, but the sandboxes' user ID ranges are already known.
	g.cache.hear(l, o.Sandboxes, seq)
	if o.Containers, err = g.containers(ctx, l, old, early); err != nil {
		return err
	}
	if err := g.affordable(o); err != nil {
		return err
	}
	kept, seesAgain := g.cache.put(o)
	if seesAgain {
		g.announceAll()
	}
	if !kept {
		return nil
	}
	g.mu.Lock()
	for _, s := range old.Sandboxes {
		delete(g.byID, s.ID)
	}
	for _, c := range old.Containers {
		delete(g.byID, c.ID)
	}
	for _, s := range o.Sandboxes {
		g.byID[s.ID] = o.Ref.UID
	}
	for _, c := range o.Containers {
		g.byID[c.ID] = o.Ref.UID
	}
	g.mu.Unlock()
	g.announce(o.Ref.UID)
	return nil
}

// failedOne marks one pod's observation stale: the runtime answers, but not about this pod. Other
// pods are not affected.
func (g *Generator) failedOne(ctx context.Context, ref pod.Ref, seq uint64, err error) {
	if !g.cache.staleOne(ref, seq, err.Error()) {
		return
	}
	klog.FromContext(ctx).Error(err, "Failed to get the pod's status from the runtime",
		"pod", klog.KRef(ref.Namespace, ref.Name), "uid", ref.UID)
	g.announce(ref.UID)
	g.Kick()
}

// failed marks the whole cache stale, unless ctx itself ended: that says nothing about the runtime.
func (g *Generator) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if g.cache.stale(err.Error()) {
		klog.FromContext(ctx).Error(err, "Failed to relist; pod workers wait")
		g.announceAll()
		g.Kick()
	}
	return err
}

func (g *Generator) forget(uid types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for id, u := range g.byID {
		if u == uid {
			delete(g.byID, id)
		}
	}
}

func (g *Generator) announce(uid types.UID) {
	g.changedAt.set(time.Now())
	g.mu.Lock()
	g.changed[uid] = struct{}{}
	g.mu.Unlock()
	g.notify.Send()
}

// All in the result of TakeChanged means every pod, including pods that the runtime does not have.
const All types.UID = "*"

func (g *Generator) announceAll() { g.announce(All) }
