package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
)

// connection is one SSH connection to the host, through all jump hosts.
type connection struct {
	client  *ssh.Client
	top     *socket // to the host itself
	hops    []*hop  // everything to be closed, in the order of dialling
	limits  *limits
	address string
	hostKey string // fingerprint of the key of the host itself
	number  int    // in its keeper; set before the keeper hands it out

	hadSession atomic.Bool // the host has opened a session

	// globals holds one token: global requests are sent one at a time. A channel instead of a
	// mutex, because the wait for the turn ends with the context.
	globals  chan struct{}
	forwards forwards
	channels channels
	budget   *budget.Account
	ended    chan struct{} // closed once the connection is over
}

type hop struct {
	socket *socket
	client *ssh.Client
	// hostKey is the fingerprint of the accepted host key.
	hostKey string
}

// connect makes a connection: through each jump host, then to the host. It returns within the
// timeouts of l for each hop, and at once when ctx ends. If hostKey is not empty, the host
// itself must present that key.
func connect(ctx context.Context, t *endpoint.Target, dial dialFunc, l *limits, memory map[string][]string, hostKey string, a *budget.Account) (_ *connection, err error) {
	c := &connection{limits: l, budget: a, address: t.Address, globals: make(chan struct{}, 1), ended: make(chan struct{})}
	defer func() {
		if err != nil {
			c.closeHops()
		}
	}()
	for i := range t.Jumps {
		jump := &t.Jumps[i]
		if err := c.addHop(ctx, jump, dial, memory, ""); err != nil {
			return nil, fmt.Errorf("jump %s: %w", jump.Address, err)
		}
		through := c.hops[i].client
		dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			raw, err := waitFor(ctx, a, func() (net.Conn, error) { return through.Dial(network, address) }, func(c net.Conn) { c.Close() })
			var refused *ssh.OpenChannelError
			if errors.As(err, &refused) {
				return nil, refusal("tcp", "dial "+address+" from the jump "+jump.Address, refused)
			}
			if err != nil {
				return nil, fmt.Errorf("dial %s from the jump %s: %w", address, jump.Address, err)
			}
			if channel, ok := raw.(ssh.Channel); ok {
				a.Go("a jump's channel", func() { c.silence(channel.Stderr()) })
			}
			same := func(err error) error { return err }
			return newConn(raw, same, same), nil
		}
	}
	if err := c.addHop(ctx, t, dial, memory, hostKey); err != nil {
		return nil, err
	}
	last := c.hops[len(c.hops)-1]
	c.client, c.top, c.hostKey = last.client, last.socket, last.hostKey
	c.top.unread.mu.Lock()
	c.top.unread.budget, c.top.unread.over = a, func() {
		_ = a.Exceed(budget.Memory, "what an SSH connection has sent to channels that are read too slowly")
		c.closeHops()
	}
	c.top.unread.mu.Unlock()
	a.Go("an SSH connection", func() {
		defer close(c.ended)
		c.client.Wait()
		// The hops below it are of no more use.
		c.closeHops()
		for _, h := range c.hops {
			h.client.Wait()
		}
	})
	return c, nil
}

// addHop dials and logs in to t. memory keeps, by address, which host key types not to ask for,
// so that the next connection does not need additional attempts to find that out.
func (c *connection) addHop(ctx context.Context, t *endpoint.Target, dial dialFunc, memory map[string][]string, hostKey string) error {
	var first error
	for {
		err := c.login(ctx, t, dial, memory[t.Address], hostKey)
		var again *otherTypes
		var key *endpoint.HostKeyError
		switch {
		case errors.As(err, &again):
			memory[t.Address] = again.without
			if first == nil {
				first = again.err
			}
			continue
		case errors.As(err, &key):
			delete(memory, t.Address)
			if first != nil {
				return first // it names the key that the server prefers
			}
		}
		return err
	}
}

// otherTypes requests another attempt, without some types of host keys.
type otherTypes struct {
	without []string
	err     error
}

func (e *otherTypes) Error() string { return e.err.Error() }

func (c *connection) login(ctx context.Context, t *endpoint.Target, dial dialFunc, without []string, hostKey string) error {
	auth, err := t.Client(ctx, without...)
	if err != nil {
		return err
	}
	defer auth.Close()
	auth.Require(hostKey)
	dialCtx, cancel := context.WithTimeout(ctx, c.limits.dial)
	raw, err := dial(dialCtx, "tcp", t.Address)
	cancel()
	if err != nil {
		if ctx.Err() == nil && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)) {
			err = fmt.Errorf("dial %s: no answer within %d s: %w", t.Address, c.limits.dial/time.Second, os.ErrDeadlineExceeded)
		}
		return err
	}
	s := newSocket(raw, c.limits.write)
	// Close the socket at the deadline, because each write of the handshake sets its own
	// deadline.
	timeout := time.AfterFunc(c.limits.handshake, func() { s.Close() })
	stop := context.AfterFunc(ctx, func() { s.Close() })
	conn, channels, requests, err := ssh.NewClientConn(s, t.HostKeyName, auth.Config)
	inTime, wanted := timeout.Stop(), stop()
	if err == nil && inTime && wanted {
		c.hops = append(c.hops, &hop{s, ssh.NewClient(conn, channels, requests), auth.HostKey()})
		return nil
	}
	s.Close()
	switch {
	case err == nil:
		ssh.NewClient(conn, channels, requests).Close() // this ends its goroutines
		err = errors.New("the login timed out")
	case !wanted:
	default:
		explained := auth.Explain(err)
		if types := auth.HostKeyTypes(explained, without); types != nil {
			return &otherTypes{types, explained}
		}
		if err = explained; errors.Is(err, io.EOF) {
			err = hint.Add(fmt.Errorf("%s ended the connection before the login: %w", t.Address, io.EOF),
				"read the log of sshd, which does so above MaxStartups, and to a source that failed often")
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if !inTime {
		return fmt.Errorf("login to %s: no answer within %d s: %w", t.Address, c.limits.handshake/time.Second, os.ErrDeadlineExceeded)
	}
	return err
}

// closeHops closes the socket to the host, then those that carry it. It does not wait.
func (c *connection) closeHops() {
	for i := len(c.hops) - 1; i >= 0; i-- {
		c.hops[i].socket.Close()
	}
}

// waitFor runs a call that does not support contexts. When ctx ends first, the call continues
// until its connection ends, and its result is dropped.
func waitFor[T any](ctx context.Context, a *budget.Account, call func() (T, error), drop func(T)) (T, error) {
	type result struct {
		value T
		err   error
	}
	var none T
	done := make(chan result)
	a.Go("an SSH connection", func() {
		r := result{err: budget.ErrPanicked}
		defer func() {
			select {
			case done <- r:
			case <-ctx.Done():
				if r.err == nil {
					drop(r.value)
				}
			}
		}()
		r.value, r.err = call()
	})
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
}

// request sends a global request when it is its turn, and waits for the answer.
func request[T any](ctx context.Context, c *connection, call func() (T, error), drop func(T)) (T, error) {
	var none T
	select {
	case c.globals <- struct{}{}:
	case <-ctx.Done():
		return none, context.Cause(ctx)
	case <-c.ended:
		return none, io.EOF
	}
	return waitFor(ctx, c.budget, func() (T, error) {
		defer func() { <-c.globals }()
		return call()
	}, drop)
}

// watch sends keepalives until the connection ends, or nothing has arrived from the host for too
// long. Any data counts, so a busy link is alive. pinged receives the round trip of each
// keepalive. watch returns the reason after the connection is closed and has ended.
func (c *connection) watch(ctx context.Context, ping func(context.Context, func(context.Context) error) error, pinged func(time.Duration)) error {
	tick := time.NewTicker(c.limits.interval)
	defer tick.Stop()
	silent := time.NewTimer(c.limits.silence)
	defer silent.Stop()
	pings, cancel := context.WithCancel(ctx)
	answered := make(chan struct{}, 1)
	pending := false
	var err error
	for err == nil {
		select {
		case <-tick.C:
			if pending {
				continue
			}
			pending = true
			c.budget.Go("a keepalive", func() {
				defer func() { answered <- struct{}{} }()
				began := time.Now()
				if err := ping(pings, func(ctx context.Context) error {
					_, err := request(ctx, c, func() (bool, error) {
						// Any answer counts; OpenSSH refuses this request.
						_, _, err := c.client.SendRequest("keepalive@openssh.com", true, nil)
						return true, err
					}, func(bool) {})
					return err
				}); err == nil {
					pinged(time.Since(began))
				}
			})
		case <-answered:
			pending = false
		case <-silent.C:
			quiet := c.top.silence()
			if quiet >= c.limits.silence {
				err = &silentError{quiet}
				break
			}
			silent.Reset(c.limits.silence - quiet)
		case <-c.ended:
			err = c.client.Wait()
			if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
				err = errCut
			}
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	c.closeHops()
	cancel()
	if pending {
		<-answered
	}
	<-c.ended
	return err
}
