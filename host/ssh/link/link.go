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
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
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
	// MaxDelay bounds the wait between two attempts to connect; by default it grows to
	// 30 s, and to 5 min where the login is refused.
	MaxDelay time.Duration
	// Budget is where the channels are counted that the machine does not close; may be
	// nil.
	Budget *budget.Account
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
	delay     time.Duration // between attempts, at most
}

var defaultLimits = limits{
	wait:      10 * time.Second,
	call:      30 * time.Second,
	dial:      10 * time.Second,
	handshake: 10 * time.Second,
	write:     15 * time.Second,
	interval:  3 * time.Second,
	silence:   9 * time.Second,
	delay:     maxAuthDelay,
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
	// Heard is when the machine last sent anything; zero while not Up.
	Heard time.Time
	// Connection counts the control connections: the number of the one that is, or of
	// the last one. See Only.
	Connection int
	// HostKey is the fingerprint of the host key that the machine presented for that
	// connection, "SHA256:…"; empty before the first.
	HostKey string
}

// Link is the way to one machine. It is safe for concurrent use.
type Link struct {
	target        *endpoint.Target
	hook          host.Hook
	budget        *budget.Account
	dial          dialFunc
	limits        limits
	control, bulk *lane
	required      atomic.Value // string: see Require

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
	l := &Link{target: cfg.Target, hook: cfg.Hook, budget: cfg.Budget, dial: cfg.Dial, limits: defaultLimits,
		slot: make(chan struct{}, 1), memory: map[string][]string{}}
	if l.dial == nil {
		l.dial = new(net.Dialer).DialContext
	}
	if cfg.Wait > 0 {
		l.limits.wait = cfg.Wait
	}
	if cfg.MaxDelay > 0 {
		l.limits.delay = cfg.MaxDelay
	}
	l.control, l.bulk = newLane(l, "control"), newLane(l, "bulk")
	return l, nil
}

// Run keeps the connections until ctx ends or Close is called, and returns when
// they are closed. It runs once, and not after Close. Before it runs, calls wait as
// for a link that is down.
func (l *Link) Run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	l.mu.Lock()
	if l.closed || l.done != nil {
		ran := l.done != nil
		l.mu.Unlock()
		if ran {
			return errors.New("ssh link: Run runs once")
		}
		return nil
	}
	l.stop, l.done = stop, make(chan struct{})
	l.mu.Unlock()
	defer close(l.done)

	var lanes sync.WaitGroup
	for _, n := range []*lane{l.control, l.bulk} {
		lanes.Go(func() {
			defer l.budget.Recover("an SSH connection")
			n.run(ctx)
		})
	}
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

// Require has the machine present the host key with this fingerprint, State.HostKey, for
// every connection from now on, though others are pinned as well. A connection that was
// made by another key is cut before Require returns.
func (l *Link) Require(hostKey string) {
	l.required.Store(hostKey)
	for _, n := range []*lane{l.control, l.bulk} {
		n.mu.Lock()
		if n.conn != nil {
			l.hold(n.conn)
		}
		n.mu.Unlock()
	}
}

// requires is the fingerprint of the one host key to take; empty: any that is pinned.
func (l *Link) requires() string {
	hostKey, _ := l.required.Load().(string)
	return hostKey
}

// hold cuts c where its host key is not the required one. The lane's mu is held: so no
// connection slips between an attempt and Require.
func (l *Link) hold(c *connection) {
	if key := l.requires(); key != "" && key != c.hostKey {
		c.closeHops()
	}
}

// State is the state of the link now.
func (l *Link) State() State {
	n := l.control
	n.mu.Lock()
	defer n.mu.Unlock()
	s := State{Up: n.conn != nil, Since: n.since, Err: n.cause, RTT: time.Duration(n.rtt.Load()), Connection: n.number, HostKey: n.hostKey}
	if s.Up {
		s.Heard = time.Now().Add(-n.conn.top.silence())
	}
	return s
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
