// Package link keeps the SSH connections to one host: a control connection, which is up whenever
// the host can be reached, and a bulk connection, made on first use, so that a copy does not
// delay a probe. Both are checked with keepalives and made again with back-off and jitter.
//
//	  ┌────────── fail: wait 1 s … 30 s ─────────┐
//	  ▼        (a refused login: 10 s … 5 min)   │
//	down ── one attempt at a time per host ─── connect
//	  ▲                                          │
//	  └── nothing heard for 9 s, or cut ── up ◄──┘
//
// golang.org/x/crypto/ssh does not support contexts: a call of it that hangs continues until its
// connection counts as dead, but the caller returns as soon as its context ends. Neither blocks
// for ever.
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
	// Target is the host; see endpoint.Resolve.
	Target *endpoint.Target
	// Hook sees every attempt and call, by the labels ssh/Connect, ssh/Keepalive, ssh/Start,
	// ssh/Subsystem, ssh/Dial and ssh/Listen.
	Hook host.Hook
	// Dial makes the TCP connection to the host or to its first jump host; a net.Dialer by
	// default.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Wait is how long a call waits for a link that is down, unless its context ends first; 10 s
	// by default.
	Wait time.Duration
	// MaxDelay bounds the wait between two attempts to connect; by default it grows to 30 s, and
	// to 5 min if the login is refused.
	MaxDelay time.Duration
	// Budget counts the channels that the host does not close; may be nil.
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

// State is the state of the link, which is that of the control connection.
type State struct {
	Up    bool
	Since time.Time // of the last change of Up; of New if Run has not connected yet
	// Err is the reason why the link is not up: nil before the first attempt has ended.
	// errors.As finds an *endpoint.HostKeyError or *endpoint.AuthError.
	Err error
	// RTT is the round trip of the last keepalive; 0 before the first.
	RTT time.Duration
	// Heard is when the host last sent anything; zero while not Up.
	Heard time.Time
	// Connection counts the control connections: the number of the current one, or of the last
	// one. See Only.
	Connection int
	// Read and Written are the bytes of all connections so far.
	Read, Written int64
	// HostKey is the fingerprint of the host key that the host presented for that connection,
	// "SHA256:…"; empty before the first.
	HostKey string
}

// Link is the SSH link to one host. It is safe for concurrent use.
type Link struct {
	target        *endpoint.Target
	hook          host.Hook
	budget        *budget.Account
	dial          dialFunc
	limits        limits
	control, bulk *keeper
	traffic       traffic
	required      atomic.Value // fingerprint, a string: see Require

	// slot is held by the one attempt in progress; memory belongs to its holder.
	slot   chan struct{}
	memory map[string][]string

	mu      sync.Mutex
	backoff backoff
	next    time.Time // no attempt before it
	stop    context.CancelCauseFunc
	closed  bool
	done    chan struct{} // closed when Run has returned; nil before it runs
}

// New makes a link that is down; Run connects it.
func New(cfg Config) (*Link, error) {
	if cfg.Target == nil {
		return nil, errors.New("ssh link: no target is given")
	}
	l := &Link{target: cfg.Target, hook: cfg.Hook, budget: cfg.Budget, dial: cfg.Dial, limits: defaultLimits,
		slot: make(chan struct{}, 1), memory: map[string][]string{}}
	if l.dial == nil {
		l.dial = new(net.Dialer).DialContext
	}
	l.dial = l.traffic.counted(l.dial)
	if cfg.Wait > 0 {
		l.limits.wait = cfg.Wait
	}
	if cfg.MaxDelay > 0 {
		l.limits.delay = cfg.MaxDelay
	}
	l.control, l.bulk = newKeeper(l, "control"), newKeeper(l, "bulk")
	return l, nil
}

// Run keeps the connections up until ctx ends or Close is called, and returns when they are
// closed. It can run once, and not after Close. Before it runs, calls wait as for a link that is
// down.
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
	for _, n := range []*keeper{l.control, l.bulk} {
		lanes.Go(func() {
			defer l.budget.Recover("an SSH connection")
			n.run(ctx)
		})
	}
	lanes.Wait()
	return nil
}

// Close ends both connections and waits for Run to return. From then on calls fail.
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

// Require makes the host present the host key with this fingerprint (State.HostKey) for every
// connection from now on, even if others are pinned too. It cuts connections with another key
// before it returns.
func (l *Link) Require(hostKey string) {
	l.required.Store(hostKey)
	for _, n := range []*keeper{l.control, l.bulk} {
		n.mu.Lock()
		if n.conn != nil {
			l.hold(n.conn)
		}
		n.mu.Unlock()
	}
}

// requires is the fingerprint of the only accepted host key; empty: any pinned key.
func (l *Link) requires() string {
	hostKey, _ := l.required.Load().(string)
	return hostKey
}

// hold cuts c if its host key is not the required one. The caller holds the keeper's mu, so that
// no connection slips through between an attempt and Require.
func (l *Link) hold(c *connection) {
	if key := l.requires(); key != "" && key != c.hostKey {
		c.closeHops()
	}
}

// State returns the current state of the link.
func (l *Link) State() State {
	n := l.control
	n.mu.Lock()
	defer n.mu.Unlock()
	s := State{Up: n.conn != nil, Since: n.since, Err: n.cause, RTT: time.Duration(n.rtt.Load()), Connection: n.number, HostKey: n.hostKey,
		Read: l.traffic.read.Load(), Written: l.traffic.written.Load()}
	if s.Up {
		s.Heard = time.Now().Add(-n.conn.top.silence())
	}
	return s
}

// Changed is closed at the next change of Up or Err. Call it before State, so that no change is
// lost:
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
