package link

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/logonce"
	"github.com/bowline-k8s/bowline/notify"
)

// keeper is one of the two connections. Its run owns it.
type keeper struct {
	link *Link
	name string
	rtt  atomic.Int64 // of the last keepalive, nanoseconds
	want notify.Signal

	mu       sync.Mutex
	conn     *connection // nil while down
	since    time.Time
	cause    error           // of the last failure, while down
	reported logonce.Failure // of cause: it is announced once
	over     bool            // run has ended
	number   int             // of conn or of the last one; the first is 1
	hostKey  string          // of conn or of the last one
	changed  chan struct{}
}

func newKeeper(l *Link, name string) *keeper {
	return &keeper{link: l, name: name, want: notify.New(), since: time.Now(), changed: make(chan struct{})}
}

func (n *keeper) run(ctx context.Context) {
	defer n.shut()
	// Only at level 2: users of State report what a failure means.
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
				logger.V(2).Info("Failed to open the SSH connection", hint.With(err, "err", err, "answer", answer(err))...)
			}
			continue
		}
		began := time.Now()
		n.set(c, nil)
		logger.V(2).Info("Opened the SSH connection")
		err = c.watch(ctx, func(ctx context.Context, call func(context.Context) error) error {
			return n.link.hook.Do(ctx, "ssh/Keepalive", call)
		}, func(rtt time.Duration) { n.rtt.Store(int64(rtt)) })
		if ctx.Err() != nil {
			return
		}
		n.link.lost(n, time.Since(began), err)
		n.set(nil, err)
		logger.V(2).Info("Lost the SSH connection", "err", err)
	}
}

// wanted waits until there is a call for the bulk connection and the control connection is up:
// before that, an attempt would only delay the control connection.
func (n *keeper) wanted(ctx context.Context) bool {
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

// set is the only place where the state of a keeper changes; it returns false if nothing changed.
func (n *keeper) set(c *connection, cause error) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	flipped := (c != nil) != (n.conn != nil)
	if changed := n.reported.Changed(cause); !flipped && cause != nil && !changed {
		return false
	}
	if flipped {
		n.since = time.Now()
	}
	n.conn, n.cause = c, cause
	if c != nil {
		n.number++
		c.number = n.number
		n.hostKey = c.hostKey
		n.link.hold(c)
	}
	n.announce()
	return true
}

// alive is the number of the connection if it is up, else 0.
func (n *keeper) alive() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.conn == nil || n.conn.isBroken() {
		return 0
	}
	return n.number
}

// shut ends the keeper for good.
func (n *keeper) shut() {
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

func (n *keeper) announce() {
	close(n.changed)
	n.changed = make(chan struct{})
}

// get waits for the connection. Its error wraps host.ErrUnreachable.
func (n *keeper) get(ctx context.Context) (*connection, error) {
	until := time.Now().Add(n.link.limits.wait)
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	for {
		n.mu.Lock()
		c, changed, over := n.conn, n.changed, n.over
		n.mu.Unlock()
		if err := n.replaced(ctx, c); err != nil {
			return nil, err
		}
		if c != nil && !c.isBroken() {
			number := c.number
			if n == n.link.bulk {
				number = n.link.control.alive()
			}
			if err := allows(ctx, number); err != nil {
				return nil, err
			}
			return c, nil
		}
		if over || n == n.link.control && allows(ctx, 0) != nil {
			return nil, n.down() // for Only, the next connection would be of no use
		}
		n.want.Send()
		// After a refused login the next attempt may be minutes away.
		if c == nil && n.link.nextTry().After(until) {
			return nil, n.down()
		}
		select {
		case <-changed:
		case <-timer.C:
			return nil, n.down()
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", n.down(), context.Cause(ctx))
		}
	}
}

// down returns why n has no connection. keeper dials the bulk connection on demand, so the time
// that it has been down means something only while the control connection is down too.
func (n *keeper) down() *DownError {
	down := &DownError{Address: n.link.target.Address}
	n.mu.Lock()
	if down.Cause = n.cause; n.conn != nil {
		down.Cause = errCut // it just went down, and run has not recorded it yet
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

// attempt waits until the next attempt is due and makes one connection. It counts its failures
// itself.
func (l *Link) attempt(ctx context.Context, n *keeper) (*connection, error) {
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
			<-l.slot // the other keeper failed in the meantime
			continue
		}
		if n == l.bulk && !l.State().Up {
			<-l.slot // it would only delay the control connection
			return nil, errors.New("the control connection went down")
		}
		break
	}
	defer func() { <-l.slot }()
	var c *connection
	err := l.hook.Do(ctx, "ssh/Connect", func(ctx context.Context) error {
		var err error
		c, err = connect(ctx, l.target, l.dial, &l.limits, l.memory, l.requires(), l.budget)
		return err
	})
	if err != nil && c != nil { // the error is the hook's
		c.closeHops()
		<-c.ended
		c = nil
	}
	if err == nil && c == nil {
		err = errors.New("no attempt was made")
	}
	if err != nil {
		l.mu.Lock()
		l.next = time.Now().Add(min(l.backoff.fail(time.Now(), err, rand.Float64()), l.limits.delay))
		l.mu.Unlock()
	}
	return c, err
}

// lost counts a connection that has ended.
func (l *Link) lost(n *keeper, up time.Duration, err error) {
	controlUp := l.State().Up
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	switch {
	case n == l.control || up < stable:
		l.next = now.Add(min(l.backoff.lost(now, up, err, rand.Float64()), l.limits.delay))
	case controlUp:
		l.backoff = backoff{}
	}
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

// answer returns the host's answer that the text of an error omits, for the log.
func answer(err error) string {
	var unexpected *endpoint.UnexpectedError
	if errors.As(err, &unexpected) {
		return fmt.Sprintf("%.500q", unexpected.Cause)
	}
	return ""
}
