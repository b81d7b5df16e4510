// Package connect opens hosts: the local one, or a remote one over SSH, and the container runtime on
// it. Every call to an opened remote host passes the fence of package ownership.
package connect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"time"

	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/cri/stream"
	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/host/local"
	"github.com/bowline-k8s/bowline/host/ssh"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/host/ssh/link"
	"github.com/bowline-k8s/bowline/hosts"
	"github.com/bowline-k8s/bowline/ownership"
)

// Host is the host that an endpoint names: the local one, or a remote one and the link to it.
type Host struct {
	host.Host
	// Streams opens connections that may carry much data, apart from those of probes.
	Streams stream.Dial
	Link    *link.Link       // nil if the host is local
	Address string           // "host:port" of the link's peer
	Hook    host.Hook        // wraps every call to the host and to its runtime
	Fence   *ownership.Fence // nil if the host is local
	// hostKey is the fingerprint of the host key that the link requires; set only for the host of a
	// Host object.
	hostKey string
	// user is the login on a remote host, empty on the local one; socket is the runtime's.
	user, socket string
	// Expose makes a remote host listen for the node's API; nil if the host is local.
	Expose exposer
}

// exposer is the part of ssh.Host that host.Host does not have.
type exposer interface {
	Expose(ctx context.Context, address string) (net.Listener, error)
	ReconnectExposure()
}

// firstLink is how long a remote host may take to answer for the first time.
const firstLink = 30 * time.Second

func Open(ctx context.Context, cfg *config.Host, hook host.Hook) (*Host, error) {
	if !cfg.Remote() {
		h, err := local.New(local.Config{Name: cfg.Name, Hook: hook, CgroupRoot: cfg.CgroupRoot, RootDir: cfg.RootDirectory})
		if err != nil {
			return nil, err
		}
		return &Host{Host: h, Streams: h.Dial, Hook: hook, socket: cfg.SocketPath()}, nil
	}
	login, err := credentials(cfg)
	if err != nil {
		return nil, err
	}
	target, err := endpoint.Resolve(cfg.Endpoint, endpoint.Options{
		ConfigFile: cfg.SSH.ConfigFile, KnownHosts: cfg.SSH.KnownHosts, HostKeys: cfg.SSH.HostKeys, ProxyJump: cfg.SSH.ProxyJump,
		Jumps: config.Way(cfg.SSH.Jumps), Credentials: login,
	})
	if err != nil {
		return nil, fmt.Errorf("endpoint: %w", err)
	}
	if cfg.SSH.CertificateFile != "" {
		target.CertificateFiles = append(target.CertificateFiles, cfg.SSH.CertificateFile)
	}
	return OpenSSH(ctx, cfg, hook, link.Config{Target: target})
}

// OpenSSH opens a remote host over a new link.
func OpenSSH(ctx context.Context, cfg *config.Host, hook host.Hook, over link.Config) (*Host, error) {
	over.Hook, over.Budget = hook, budget.From(ctx)
	target := over.Target
	l, err := link.New(over)
	if err != nil {
		return nil, err
	}
	// It ends with Close and not with ctx: releasing the host needs it.
	budget.From(ctx).Go("the link", func() { _ = l.Run(context.WithoutCancel(ctx)) })
	m := &Host{Link: l, user: target.User, socket: cfg.SocketPath(), Fence: ownership.NewFence(hook, func() int { return l.State().Connection })}
	m.Hook = m.Fence.Hook
	if err := awaitLink(ctx, l, target.Address); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	if cfg.HostObject != "" {
		// Before anything runs there: the host that this key identifies is the one to manage.
		m.hostKey = l.State().HostKey
		l.Require(m.hostKey)
	}
	access, err := ssh.Rights(ctx, l, target.User, cfg.SocketPath())
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	h, err := ssh.New(ctx, ssh.Config{
		Name: cfg.Name, Hook: m.Hook, CgroupRoot: cfg.CgroupRoot, RootDir: cfg.RootDirectory, Transport: l, Sudo: access.Sudo, Relay: access.Relay,
		Budget: budget.From(ctx),
	})
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	// Bulk streams pass the fence and the hook, like every other call.
	m.Host, m.Address, m.Expose = h, target.Address, h
	m.Streams = func(ctx context.Context, network, address string) (net.Conn, error) {
		if network == "unix" && access.Relay != "" {
			return h.Dial(ctx, network, address)
		}
		var c net.Conn
		err := m.Hook.Do(ctx, "host/DialBulk", func(ctx context.Context) (err error) {
			c, err = l.DialBulk(ctx, network, address)
			return err
		})
		if err != nil && c != nil { // the hook withheld it
			c.Close()
			c = nil
		}
		return c, err
	}
	return m, nil
}

// Recognizer decides whether a machine may be managed, before anything of a node is placed there.
type Recognizer func(ctx context.Context, machine v1alpha1.MachineStatus) error

// Recognized asks r, unless it is nil, about the machine with these facts.
func (m *Host) Recognized(ctx context.Context, facts host.Facts, r Recognizer) error {
	if r == nil {
		return nil
	}
	found := hosts.Machine(facts.MachineID, m.hostKey)
	found.User, found.Socket = m.user, m.socket
	return r(ctx, found)
}

// awaitLink waits until the link is up. It returns at once if the host refuses the login or
// presents a wrong host key, which an operator must fix.
func awaitLink(ctx context.Context, l *link.Link, address string) error {
	ctx, cancel := context.WithTimeout(ctx, firstLink)
	defer cancel()
	logged := false
	for {
		changed := l.Changed()
		state := l.State()
		var key *endpoint.HostKeyError
		var login *endpoint.AuthError
		switch {
		case state.Up:
			return nil
		case errors.As(state.Err, &key), errors.As(state.Err, &login):
			return state.Err
		case state.Err != nil && !logged:
			klog.FromContext(ctx).Error(state.Err, "Failed to connect to the host, will retry", hint.With(state.Err)...)
			logged = true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if state.Err != nil {
				return state.Err
			}
			return fmt.Errorf("ssh: no answer from %s within %s", address, firstLink)
		}
	}
}

const (
	// lateLink is the link's round trip from which a probe's time-out says nothing about the
	// container.
	lateLink = 500 * time.Millisecond
	// keepalive is the interval of keepalives on an idle link.
	keepalive = 3 * time.Second
	// remoteDial is how long opening a channel to a remote host may take beyond a probe's own
	// time-out.
	remoteDial = 10 * time.Second
)

// Late reports whether the link is down or slow now.
func (m *Host) Late() bool {
	if m.Link == nil {
		return false
	}
	state := m.Link.State()
	return !state.Up || state.RTT > lateLink || time.Since(state.Heard) > keepalive+lateLink
}

func (m *Host) DialSlack() time.Duration {
	if m.Link == nil {
		return 0
	}
	return remoteDial
}

// lookupTimeout bounds the DNS lookup of the API server's name.
const lookupTimeout = 10 * time.Second

// Published returns the address by which the API server reaches this process: the configured one,
// or else the local address of a route to the API server.
func Published(cfg *config.Host, apiServer *url.URL) (string, error) {
	if cfg.Server.PublishedAddress != "" {
		return cfg.Server.PublishedAddress, nil
	}
	if ip := net.ParseIP(cfg.Server.Address); !ip.IsUnspecified() {
		return cfg.Server.Address, nil
	}
	// UDP sends nothing; the kernel only selects the local address. The DNS lookup is what takes
	// time.
	port := cmp.Or(apiServer.Port(), "443")
	c, err := (&net.Dialer{Timeout: lookupTimeout}).Dial("udp", net.JoinHostPort(apiServer.Hostname(), port))
	if err != nil {
		return "", hint.Add(fmt.Errorf("find the address by which the API server reaches this process: %w", err), "set server.publishedAddress")
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).IP.String(), nil
}
