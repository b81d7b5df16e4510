// Package link keeps the SSH connections of one machine: a control connection,
// which is up whenever the machine can be reached, and a bulk connection, made on
// first use, so that a copy does not make a probe late. Both are watched by
// keepalives and made again with back-off and jitter.
//
//	  ┌────────── fail: wait 1 s … 30 s ─────────┐
//	  ▼        (a refused login: 10 s … 5 min)   │
//	down ── one attempt in flight a machine ── connect
//	  ▲                                          │
//	  └── nothing heard for 9 s, or cut ── up ◄──┘
//
// The golang.org/x/crypto/ssh below knows no contexts: a call of it that hangs goes
// on until its connection is judged dead, while the caller's context lets the
// caller go at once. Neither blocks for ever.
package link

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
)

type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// Config of a Link.
type Config struct {
	// Target is the machine; see endpoint.Resolve.
	Target *endpoint.Target
	// Hook sees every attempt and call, by the labels ssh/Connect, ssh/Keepalive,
	// ssh/Start, ssh/Subsystem, ssh/Dial and ssh/Listen.
	Hook host.Hook
	// Dial makes the TCP connection to the machine or to its first jump; a
	// net.Dialer by default.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Wait is how long a call waits for a link that is down, where its context
	// does not end first; 10 s by default.
	Wait time.Duration
}

// limits are the times of a link.
type limits struct {
	wait      time.Duration // of a call, for the link to come up
	call      time.Duration // of a call whose context has no deadline
	dial      time.Duration // of the TCP connection of each hop
	handshake time.Duration // of the login at each hop
	write     time.Duration // of one write to the socket
	interval  time.Duration // between keepalives
	silence   time.Duration // after which the link is dead
}

var defaultLimits = limits{
	wait:      10 * time.Second,
	call:      30 * time.Second,
	dial:      10 * time.Second,
	handshake: 10 * time.Second,
	write:     15 * time.Second,
	interval:  3 * time.Second,
	silence:   9 * time.Second,
}

// State is what is known of the link, as told by the control connection.
type State struct {
	Up    bool
	Since time.Time // of Up or not Up; New where Run has not connected yet
	// Err is why the link is not up: nil before the first attempt has ended.
	// errors.As finds an *endpoint.HostKeyError or *endpoint.AuthError.
	Err error
	// RTT is the round trip of the last keepalive; 0 before the first.
	RTT time.Duration
}

// Link is the way to one machine. It is safe for concurrent use.
type Link struct {
	target        *endpoint.Target
	hook          host.Hook
	dial          dialFunc
	limits        limits
	control, bulk *lane

	// slot is held by the one attempt in flight; memory belongs to its holder.
	slot   chan struct{}
	memory map[string][]string

	mu      sync.Mutex
	backoff backoff
	next    time.Time // no attempt before it
	stop    context.CancelCauseFunc
	closed  bool
	done    chan struct{} // closed when Run has returned; nil before it runs
}

// New makes a link that is down; Run makes it.
func New(cfg Config) (*Link, error) {
	if cfg.Target == nil {
		return nil, errors.New("ssh link: no target is given")
	}
	l := &Link{target: cfg.Target, hook: cfg.Hook, dial: cfg.Dial, limits: defaultLimits,
		slot: make(chan struct{}, 1), memory: map[string][]string{}}
	if l.dial == nil {
		l.dial = new(net.Dialer).DialContext
	}
	if cfg.Wait > 0 {
		l.limits.wait = cfg.Wait
	}
	l.control, l.bulk = newLane(l, "control"), newLane(l, "bulk")
	return l, nil
}

// Run keeps the connections until ctx ends or Close is called, and returns when
// they are closed. It runs once. Before it runs, calls wait as for a link that is down.
func (l *Link) Run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	l.mu.Lock()
	if l.closed || l.done != nil {
		l.mu.Unlock()
		return errors.New("ssh link: Run after Close or a second time")
	}
	l.stop, l.done = stop, make(chan struct{})
	l.mu.Unlock()
	defer close(l.done)

	var lanes sync.WaitGroup
	lanes.Go(func() { l.control.run(ctx) })
	lanes.Go(func() { l.bulk.run(ctx) })
	lanes.Wait()
	return nil
}

// Close ends both connections and waits for Run to return. Calls fail from then on.
func (l *Link) Close() error {
	l.mu.Lock()
	l.closed = true
	stop, done := l.stop, l.done
	l.mu.Unlock()
	if done == nil {
		l.control.shut()
		l.bulk.shut()
		return nil
	}
	stop(errClosed)
	<-done
	return nil
}

// State is the state of the link now.
func (l *Link) State() State {
	n := l.control
	n.mu.Lock()
	defer n.mu.Unlock()
	return State{Up: n.conn != nil, Since: n.since, Err: n.cause, RTT: time.Duration(n.rtt.Load())}
}

// Changed is closed at the next change of Up or Err. Take it before State, so that
// no change is lost:
//
//	for {
//		changed := l.Changed()
//		use(l.State())
//		<-changed
//	}
func (l *Link) Changed() <-chan struct{} {
	l.control.mu.Lock()
	defer l.control.mu.Unlock()
	return l.control.changed
}

// lane is one of the two connections. Its run owns it.
type lane struct {
	link *Link
	name string
	rtt  atomic.Int64 // of the last keepalive, nanoseconds
	want chan struct{}

	mu      sync.Mutex
	conn    *connection // nil while down
	since   time.Time
	cause   error // of the last failure, while down
	over    bool  // run has ended
	changed chan struct{}
}

func newLane(l *Link, name string) *lane {
	return &lane{link: l, name: name, want: make(chan struct{}, 1), since: time.Now(), changed: make(chan struct{})}
}

func (n *lane) run(ctx context.Context) {
	defer n.shut()
	logger := klog.FromContext(ctx).WithValues("address", n.link.target.Address, "connection", n.name)
	for ctx.Err() == nil {
		if n == n.link.bulk && !n.wanted(ctx) {
			return
		}
		c, err := n.link.attempt(ctx, n)
		if ctx.Err() != nil {
			if c != nil {
				c.closeHops()
				<-c.ended
			}
			return
		}
		if err != nil {
			if n.set(nil, err) {
				logger.Error(err, "No SSH connection")
			}
			continue
		}
		began := time.Now()
		n.set(c, nil)
		logger.Info("SSH connection is up")
		err = c.watch(ctx, func(ctx context.Context, call func(context.Context) error) error {
			return n.link.hook.Do(ctx, "ssh/Keepalive", call)
		}, func(rtt time.Duration) { n.rtt.Store(int64(rtt)) })
		if ctx.Err() != nil {
			return
		}
		n.link.lost(time.Since(began), err)
		n.set(nil, err)
		logger.Error(err, "SSH connection went down")
	}
}

// wanted waits until someone uses the bulk connection and the control connection is
// up: without that an attempt would only stand in its way.
func (n *lane) wanted(ctx context.Context) bool {
	select {
	case <-n.want:
	case <-ctx.Done():
		return false
	}
	for {
		changed := n.link.Changed()
		if n.link.State().Up {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// set is the only place where the state of a lane changes; false if nothing did.
func (n *lane) set(c *connection, cause error) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	flipped := (c != nil) != (n.conn != nil)
	if !flipped && n.cause != nil && cause != nil && n.cause.Error() == cause.Error() {
		return false
	}
	if flipped {
		n.since = time.Now()
	}
	n.conn, n.cause = c, cause
	n.announce()
	return true
}

// shut ends the lane for good.
func (n *lane) shut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.over {
		return
	}
	if n.conn != nil {
		n.since = time.Now()
	}
	n.over, n.conn, n.cause = true, nil, errClosed
	n.announce()
}

func (n *lane) announce() {
	close(n.changed)
	n.changed = make(chan struct{})
}

// attempt makes one connection when it is time to. Its failure has been counted.
func (l *Link) attempt(ctx context.Context, n *lane) (*connection, error) {
	for {
		if err := sleepUntil(ctx, l.nextTry()); err != nil {
			return nil, err
		}
		select {
		case l.slot <- struct{}{}:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if time.Now().Before(l.nextTry()) {
			<-l.slot // the other one failed meanwhile
			continue
		}
		break
	}
	defer func() { <-l.slot }()
	var c *connection
	err := l.hook.Do(ctx, "ssh/Connect", func(ctx context.Context) error {
		var err error
		c, err = connect(ctx, l.target, l.dial, &l.limits, l.memory)
		return err
	})
	if err != nil && c != nil { // the hook's own error
		c.closeHops()
		<-c.ended
		c = nil
	}
	if err == nil && c == nil {
		err = errors.New("no attempt was made")
	}
	if err != nil {
		l.mu.Lock()
		l.next = time.Now().Add(l.backoff.fail(time.Now(), err, rand.Float64()))
		l.mu.Unlock()
	}
	return c, err
}

// lost counts a connection that is over.
func (l *Link) lost(up time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next = time.Now().Add(l.backoff.lost(time.Now(), up, err, rand.Float64()))
}

func (l *Link) nextTry() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.next
}

func sleepUntil(ctx context.Context, t time.Time) error {
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// get waits for the connection. The error wraps host.ErrUnreachable.
func (n *lane) get(ctx context.Context) (*connection, error) {
	until := time.Now().Add(n.link.limits.wait)
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	for {
		n.mu.Lock()
		c, changed, over := n.conn, n.changed, n.over
		n.mu.Unlock()
		if c != nil && !c.isBroken() {
			return c, nil
		}
		down := n.down()
		if over {
			return nil, down
		}
		select {
		case n.want <- struct{}{}:
		default:
		}
		// After a refused login the next attempt may be minutes away.
		if c == nil && n.link.nextTry().After(until) {
			return nil, down
		}
		select {
		case <-changed:
		case <-timer.C:
			return nil, down
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", down, context.Cause(ctx))
		}
	}
}

// down is why n has no connection. The bulk connection is made when it is wanted:
// how long it has been down says something only while the control connection is too.
func (n *lane) down() *DownError {
	down := &DownError{Address: n.link.target.Address}
	n.mu.Lock()
	if down.Cause = n.cause; n.conn != nil {
		down.Cause = errCut // it just went, and run has not said so yet
	} else {
		down.For = time.Since(n.since)
	}
	n.mu.Unlock()
	if n != n.link.bulk {
		return down
	}
	if control := n.link.control.down(); !n.link.State().Up {
		return control
	}
	down.For = 0
	return down
}
