package hostcheck

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/bowline-k8s/bowline/hint"
	sshhost "github.com/bowline-k8s/bowline/host/ssh"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/host/ssh/link"
)

const (
	dialTime  = 6 * time.Second // for the TCP connection of each hop
	loginTime = 8 * time.Second // for the login at each hop
	linkTime  = 12 * time.Second
)

// remoteWay reaches a remote host over SSH: first hop by hop, so that each hop has its line, and then
// by the link that a node uses.
type remoteWay struct {
	target  *endpoint.Target
	rootDir string
	link    *link.Link
	ended   chan struct{} // closed when link.Run has returned
	by      *sshhost.Host // opens sockets by a relay; nil: sshd does
}

type dialer func(ctx context.Context, network, address string) (net.Conn, error)

func (w *remoteWay) come(ctx context.Context, r *Report) bool {
	if !w.walk(ctx, r) {
		return false
	}
	l, err := link.New(link.Config{Target: w.target})
	if err != nil {
		r.add(Line{Failure, Login, err.Error(), cmp.Or(hint.Of(err), "correct the endpoint")})
		return false
	}
	w.link, w.ended = l, make(chan struct{})
	go func() {
		defer close(w.ended)
		_ = l.Run(context.WithoutCancel(ctx)) // until close
	}()
	soon, cancel := context.WithTimeout(ctx, linkTime)
	defer cancel()
	for {
		changed := l.Changed()
		if l.State().Up {
			return true
		}
		select {
		case <-changed:
		case <-soon.Done():
			r.add(Line{Failure, Login, fmt.Sprintf("the first connection to %s succeeded, the second failed: %v", w.target.Address, l.State().Err),
				"read the log of sshd (MaxStartups, MaxSessions):\njournalctl -u ssh"})
			return false
		}
	}
}

// walk logs in to each jump and to the machine, and adds their lines.
func (w *remoteWay) walk(ctx context.Context, r *Report) bool {
	dial := dialer(new(net.Dialer).DialContext)
	for i := range w.target.Jumps {
		jump := &w.target.Jumps[i]
		client := login(ctx, r, jump, dial, jumpName+jump.Address)
		if client == nil {
			return false
		}
		defer client.Close()
		dial = client.DialContext
	}
	client := login(ctx, r, w.target, dial, w.target.Address)
	if client == nil {
		return false
	}
	_ = client.Close()
	return true
}

// login logs in to one hop and adds its lines. It returns nil after a failure.
func login(ctx context.Context, r *Report, t *endpoint.Target, dial dialer, name string) *ssh.Client {
	var without []string
	var first error
	for {
		a := attempt(ctx, t, dial, without)
		if a.again != nil {
			// The pinned key may be of another type. The error of the first attempt names the key
			// that the server prefers.
			if without = a.again; first == nil {
				first = a.err
			}
			continue
		}
		var key *endpoint.HostKeyError
		if first != nil && errors.As(a.err, &key) {
			a.err = first
		}
		r.add(checkHop(name, t, a)...)
		return a.client
	}
}

// hop is the result of an attempt to log in to one machine.
type hop struct {
	took   time.Duration // for the TCP connection
	dialed bool
	key    ssh.PublicKey // the accepted host key, or nil
	err    error
	again  []string // types of host keys to leave out of the next attempt
	client *ssh.Client
}

func attempt(ctx context.Context, t *endpoint.Target, dial dialer, without []string) (a hop) {
	began := time.Now()
	dialCtx, cancel := context.WithTimeout(ctx, dialTime)
	conn, err := dial(dialCtx, "tcp", t.Address)
	cancel()
	if err != nil {
		a.err = err
		return a
	}
	a.dialed, a.took = true, time.Since(began)
	// A connection through a jump has no deadlines, so a timeout closes it.
	ctx, cancel = context.WithTimeout(ctx, loginTime)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	auth, err := t.Client(ctx, without...)
	if err != nil {
		conn.Close()
		a.err = err
		return a
	}
	defer auth.Close()
	check := auth.Config.HostKeyCallback
	auth.Config.HostKeyCallback = func(name string, addr net.Addr, key ssh.PublicKey) error {
		err := check(name, addr, key)
		if err == nil {
			a.key = key
		}
		return err
	}
	c, channels, requests, err := ssh.NewClientConn(conn, t.HostKeyName, auth.Config)
	if !stop() {
		if err == nil {
			c.Close()
		}
		err = fmt.Errorf("no answer in %s", loginTime)
	}
	if err != nil {
		conn.Close()
		a.err = auth.Explain(err)
		a.again = auth.HostKeyTypes(a.err, without)
		return a
	}
	a.client = ssh.NewClient(c, channels, requests)
	return a
}

// shared is the link, used by two hosts (with and without sudo), neither of which closes it.
type shared struct{ *link.Link }

func (shared) Close() error { return nil }

func (w *remoteWay) open(ctx context.Context, sudo bool) (Machine, error) {
	h, err := sshhost.New(ctx, sshhost.Config{Name: w.target.Name, RootDir: w.rootDir, Transport: shared{w.link}, Sudo: sudo})
	if err != nil {
		return nil, err
	}
	return h, nil
}

func (w *remoteWay) relay(ctx context.Context, user, socket string) (string, error) {
	access, err := sshhost.Rights(ctx, w.link, user, socket)
	if err != nil || access.Relay == "" {
		return "", err
	}
	w.by, err = sshhost.New(ctx, sshhost.Config{Name: w.target.Name, RootDir: w.rootDir, Transport: shared{w.link}, Sudo: true, Relay: access.Relay})
	if err != nil {
		return "", err
	}
	return access.Relay, nil
}

func (w *remoteWay) dial(ctx context.Context, socket string) (net.Conn, error) {
	if w.by != nil {
		return w.by.Dial(ctx, "unix", socket)
	}
	return w.link.Dial(ctx, "unix", socket)
}

func (w *remoteWay) close() {
	if w.by != nil {
		_ = w.by.Close()
	}
	if w.link != nil {
		_ = w.link.Close()
		<-w.ended
	}
}
