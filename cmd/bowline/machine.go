package main

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
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/host/local"
	"github.com/bowline-k8s/bowline/host/ssh"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/host/ssh/link"
	"github.com/bowline-k8s/bowline/hosts"
)

// machine is what an endpoint names: this machine, or a far one and the link to it.
type machine struct {
	host.Host
	// streams opens connections that may carry much, apart from those of probes.
	streams stream.Dial
	link    *link.Link // nil: it is this machine
	address string     // "host:port" that link goes to
	hook    host.Hook  // of every call to the machine and to its runtime
	fence   *fence     // nil as link is
	// hostKey is the fingerprint of the host key that the link is held to; of the machine
	// of a Host object alone.
	hostKey string
	// user is the login there, empty on this machine; socket is the runtime's.
	user, socket string
	// expose has a far machine listen for the node's API; nil as link is.
	expose exposer
}

// exposer is what ssh.Host has beside host.Host.
type exposer interface {
	Expose(ctx context.Context, address string) (net.Listener, error)
	ExposeAnew()
}

// firstLink is how long a far machine may take to answer for the first time.
const firstLink = 30 * time.Second

func openMachine(ctx context.Context, cfg *config.Host, hook host.Hook) (*machine, error) {
	if !cfg.Far() {
		h, err := local.New(local.Config{Name: cfg.Name, Hook: hook, CgroupRoot: cfg.CgroupRoot, RootDir: cfg.RootDirectory})
		if err != nil {
			return nil, err
		}
		return &machine{Host: h, streams: h.Dial, hook: hook, socket: cfg.SocketPath()}, nil
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
	return openFar(ctx, cfg, hook, link.Config{Target: target})
}

// openFar opens a far machine over a link, which it makes.
func openFar(ctx context.Context, cfg *config.Host, hook host.Hook, over link.Config) (*machine, error) {
	over.Hook, over.Budget = hook, budget.From(ctx)
	target := over.Target
	l, err := link.New(over)
	if err != nil {
		return nil, err
	}
	// It ends with Close and not with ctx: the machine is given back over it.
	budget.From(ctx).Go("the link", func() { _ = l.Run(context.WithoutCancel(ctx)) })
	m := &machine{link: l, user: target.User, socket: cfg.SocketPath(), fence: newFence(hook, func() int { return l.State().Connection })}
	m.hook = m.fence.hook
	if err := awaitLink(ctx, l, target.Address); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	if cfg.HostObject != "" {
		// Before anything is run there: what is recognized by this key is what is driven.
		m.hostKey = l.State().HostKey
		l.Require(m.hostKey)
	}
	access, err := ssh.Rights(ctx, l, target.User, cfg.SocketPath())
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	h, err := ssh.New(ctx, ssh.Config{
		Name: cfg.Name, Hook: m.hook, CgroupRoot: cfg.CgroupRoot, RootDir: cfg.RootDirectory, Transport: l, Sudo: access.Sudo, Relay: access.Relay,
		Budget: budget.From(ctx),
	})
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	// Under the label of every other connection.
	m.Host, m.address, m.expose = h, target.Address, h
	m.streams = func(ctx context.Context, network, address string) (net.Conn, error) {
		if network == "unix" && access.Relay != "" {
			return h.Dial(ctx, network, address)
		}
		var c net.Conn
		err := m.hook.Do(ctx, "host/DialBulk", func(ctx context.Context) (err error) {
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

// recognize is asked whether a machine may be driven, before anything of a node goes there.
type recognize func(ctx context.Context, machine v1alpha1.MachineStatus) error

// recognized asks r, where there is something to ask, about the machine whose facts these are.
func (m *machine) recognized(ctx context.Context, facts host.Facts, r recognize) error {
	if r == nil {
		return nil
	}
	found := hosts.Machine(facts.MachineID, m.hostKey)
	found.User, found.Socket = m.user, m.socket
	return r(ctx, found)
}

// awaitLink waits for the link to be up; not for a machine that refuses us, which
// an operator has to mend.
func awaitLink(ctx context.Context, l *link.Link, address string) error {
	ctx, cancel := context.WithTimeout(ctx, firstLink)
	defer cancel()
	told := false
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
		case state.Err != nil && !told:
			klog.FromContext(ctx).Info("The machine does not answer yet", "err", state.Err)
			told = true
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
	// lateLink: a probe that runs out of time while the link answers as late as this
	// says nothing of the container.
	lateLink = 500 * time.Millisecond
	// keepalive is how often a link that is idle is heard of.
	keepalive = 3 * time.Second
	// farDial is what opening a channel to a far machine may take beside a probe's
	// own time.
	farDial = 10 * time.Second
)

// late tells whether the link does not answer in time just now.
func (m *machine) late() bool {
	if m.link == nil {
		return false
	}
	state := m.link.State()
	return !state.Up || state.RTT > lateLink || time.Since(state.Heard) > keepalive+lateLink
}

func (m *machine) dialSlack() time.Duration {
	if m.link == nil {
		return 0
	}
	return farDial
}

// lookupTimeout bounds the look-up of the API server's name.
const lookupTimeout = 10 * time.Second

// published is the address by which the API server reaches this process: where
// the configuration names none, the one from which it is reached itself.
func published(cfg *config.Host, apiServer *url.URL) (string, error) {
	if cfg.Server.PublishedAddress != "" {
		return cfg.Server.PublishedAddress, nil
	}
	if ip := net.ParseIP(cfg.Server.Address); !ip.IsUnspecified() {
		return cfg.Server.Address, nil
	}
	// UDP: nothing is sent, the kernel says which address it would send from. What takes
	// time is the name.
	port := cmp.Or(apiServer.Port(), "443")
	c, err := (&net.Dialer{Timeout: lookupTimeout}).Dial("udp", net.JoinHostPort(apiServer.Hostname(), port))
	if err != nil {
		return "", fmt.Errorf("find the address by which the API server reaches this process: %w; set server.publishedAddress", err)
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).IP.String(), nil
}
