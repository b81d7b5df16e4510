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
	"github.com/bowline-k8s/bowline/pod"
)

// Hint is a runtime event reduced to what it says of one container or sandbox.
type Hint struct {
	ID string // of a container or a sandbox
	// Expect is what a look should show once the runtime has handled the event.
	Expect Expect
}

// Expect is what becomes of the container or sandbox that a Hint names.
type Expect int

const (
	Started Expect = iota // it is running
	Ended                 // it is not running
)

// Config of a Generator.
type Config struct {
	Runtime Runtime
	Files   Files
	// Owner is the value of pod.LabelOwner on what is ours.
	Owner string
	// ClockOffset is the machine's clock minus ours.
	ClockOffset func() time.Duration
	// ClockDoubt hears that the runtime told a time that cannot be true by ClockOffset;
	// it must not block.
	ClockDoubt func()
	// IsNotFound tells the runtime's "no such object" from other errors.
	IsNotFound func(error) bool
	// IsTransport tells "the runtime was not reached" from an answer. An answer
	// that fails concerns one pod alone, whose observation becomes stale; without
	// IsTransport every error counts as blindness.
	IsTransport func(error) bool
	// Hints opens the runtime's event stream; the channel closes with the stream.
	// Nil, or an error, means that there is none for now.
	Hints func(ctx context.Context) (<-chan Hint, error)
	// Relist is the pause between relists without events (1 s), RelistWithEvents
	// with them (60 s).
	Relist, RelistWithEvents time.Duration
	// Budget counts what the runtime shows; nil keeps to the default limits.
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
	if c.Relist == 0 {
		c.Relist = time.Second
	}
	if c.RelistWithEvents == 0 {
		c.RelistWithEvents = time.Minute
	}
	return nil
}

// unhealthyAfter is how long the node stays ready without a relist.
const unhealthyAfter = 3 * time.Minute

// Generator keeps the Cache true.
type Generator struct {
	cfg   Config
	cache *Cache

	events     atomic.Bool // the event stream is open
	opened     moment      // when it was opened
	partial    atomic.Bool // the last relist could not look at some pod
	whole      atomic.Bool // a relist knew the ranges of users of every pod, once
	lastRelist moment      // when the last relist that succeeded began
	kick       chan struct{}

	mu      sync.Mutex
	byID    map[string]types.UID   // container and sandbox IDs of the cache
	changed map[types.UID]struct{} // not yet handed out
	looking map[types.UID]struct{} // looks that a relist or a hint began, and that are under way
	notify  chan struct{}
}

// New makes a Generator; Run drives it.
func New(c Config) (*Generator, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	return &Generator{
		cfg: c, cache: newCache(),
		kick:    make(chan struct{}, 1),
		byID:    map[string]types.UID{},
		changed: map[types.UID]struct{}{},
		looking: map[types.UID]struct{}{},
		notify:  make(chan struct{}, 1),
	}, nil
}

// Cache is what the generator writes.
func (g *Generator) Cache() *Cache { return g.cache }

// Notify fires when TakeChanged has something; it never fills up.
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

// moment is when something last happened. It keeps the reading of the monotonic clock,
// which timers follow: what is computed of it knows no sleep and no clock that is set.
type moment struct{ at atomic.Pointer[time.Time] }

// set reports whether it is the first.
func (m *moment) set(at time.Time) (first bool) { return m.at.Swap(&at) == nil }

// time is zero where there was none.
func (m *moment) time() time.Time {
	if at := m.at.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// Healthy says whether a relist succeeded within the last three minutes, and when the
// last one did; zero for none. The minutes are of the clock that relists go by.
func (g *Generator) Healthy(now time.Time) (bool, time.Time) {
	last := g.lastRelist.time()
	return now.Sub(last) < unhealthyAfter, last
}

// Whole says whether Cache.Users has the range of every sandbox that the runtime had at
// our start: a relist succeeds also where some pod could not be looked at.
func (g *Generator) Whole() bool { return g.whole.Load() }

// Kick brings the next relist forward.
func (g *Generator) Kick() {
	select {
	case g.kick <- struct{}{}:
	default:
	}
}

// Run relists until ctx ends. The event stream, where there is one, is reopened
// when it closes; relists follow each opening for a while, because what happened
// between two streams was not told.
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
			// Somebody's List may have been one since.
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

// left is what is left of a pause since the last relist.
func (g *Generator) left(pause time.Duration, now time.Time) time.Duration {
	return pause - now.Sub(g.lastRelist.time())
}

// pause is how long the next relist waits, after one that ended with err.
func (g *Generator) pause(err error, now time.Time) time.Duration {
	// An exit that was told before the stream was open may show in the lists
	// only after the relist that follows the opening.
	settled := now.Sub(g.opened.time()) > settleLimit
	if err == nil && g.events.Load() && settled && !g.partial.Load() {
		return g.cfg.RelistWithEvents
	}
	return g.cfg.Relist
}

// Relist looks at everything.
func (g *Generator) Relist(ctx context.Context) error {
	_, _, err := g.List(ctx)
	return err
}

// List is a relist that gives what the runtime has, whosever it is, to one who would
// ask the same; the next relist comes that much later.
func (g *Generator) List(ctx context.Context) ([]*runtimeapi.PodSandbox, []*runtimeapi.Container, error) {
	seq, at := g.cache.NextSeq(), time.Now()
	all, err := g.list(ctx, "")
	if err == nil {
		err = g.relisted(ctx, all, seq, at)
	} else {
		err = g.failed(ctx, err)
	}
	if err != nil {
		return nil, nil, err
	}
	return all.sandboxes, all.containers, nil
}

// relisted brings the cache to what a look at everything, begun at seq, has shown.
func (g *Generator) relisted(ctx context.Context, all lists, seq uint64, at time.Time) error {
	seen, partial, users := make(map[types.UID]bool, len(all.byUID)), false, true
	for uid, l := range all.byUID {
		seen[uid] = true
		old := g.cache.Get(uid)
		if !g.cache.staleAlone(uid) && unchanged(l, old) && g.cache.touch(uid, old.Seq, seq, at) {
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
	first := g.lastRelist.set(at)
	if users && !g.whole.Swap(true) {
		first = true
	}
	if seesAgain || first {
		g.announceAll()
	}
	return nil
}

// Changed names what was just changed of a pod, where that is known: its status is
// asked for beside the lists instead of after them.
type Changed struct{ Sandbox, Container string }

// Observe looks at one pod now and returns what the cache then holds.
func (g *Generator) Observe(ctx context.Context, ref pod.Ref, changed Changed) (pod.Observed, error) {
	seq, at := g.cache.NextSeq(), time.Now()
	told := make(chan foretold, 1)
	g.cfg.Budget.Go("read what has changed", func() {
		var f foretold // nothing, if it cannot be read
		defer func() { told <- f }()
		f = g.foretell(ctx, changed)
	})
	all, err := g.list(ctx, ref.UID)
	statuses := <-told
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
	return g.cache.Get(ref.UID), nil
}

func (g *Generator) look(ctx context.Context, l *listed, old pod.Observed, told foretold, seq uint64, at time.Time) error {
	o := pod.Observed{Ref: l.ref, Seq: seq, At: at}
	var err error
	if o.Sandboxes, err = g.sandboxes(ctx, l, old, told); err != nil {
		return err
	}
	if err := g.affordable(o); err != nil {
		return err
	}
	// The status of a container may fail or never come, and what the sandboxes hold of
	// the machine is known.
	g.cache.hear(l, o.Sandboxes, seq)
	if o.Containers, err = g.containers(ctx, l, old, told); err != nil {
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

// failedOne marks one pod's observation stale: the runtime answers, but not about
// this pod. The others go on.
func (g *Generator) failedOne(ctx context.Context, ref pod.Ref, seq uint64, err error) {
	if !g.cache.staleOne(ref, seq, err.Error()) {
		return
	}
	klog.FromContext(ctx).Info("The runtime does not tell the state of a pod; nothing is decided for it until it does",
		"pod", klog.KRef(ref.Namespace, ref.Name), "uid", ref.UID, "err", err)
	g.announce(ref.UID)
	g.Kick()
}

// failed marks the cache stale; what ctx itself cut off says nothing.
func (g *Generator) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if g.cache.stale(err.Error()) {
		klog.FromContext(ctx).Info("Lost sight of the runtime; nothing is decided until it answers", "err", err)
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
	g.mu.Lock()
	g.changed[uid] = struct{}{}
	g.mu.Unlock()
	select {
	case g.notify <- struct{}{}:
	default:
	}
}

// All stands in TakeChanged for every pod, those that the runtime lacks too.
const All types.UID = "*"

func (g *Generator) announceAll() { g.announce(All) }
