package hostadmin

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"net"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/host/ssh/shell"
	"github.com/bowline-k8s/bowline/hostcheck"
)

// Machine is the access to a machine before there is a Host: *SSH.
type Machine interface {
	// Scan returns the host keys that the machine presents.
	Scan(ctx context.Context) ([]ssh.PublicKey, error)
	// Known returns those of keys that the user's known_hosts has, or none if the machine is
	// unknown there. It returns an *endpoint.HostKeyError if known_hosts has other keys of the
	// machine.
	Known(keys []ssh.PublicKey) ([]ssh.PublicKey, error)
	// Try logs in with a private key. It returns an *endpoint.AuthError if the key is refused.
	Try(ctx context.Context, key []byte, hostKeys []string) error
	// Own names the user's own access; empty: there is none.
	Own() string
	// Flags are the flags with which the "host" commands reach the machine in the same way.
	Flags() []string
	// Install adds a line to the login's authorized_keys, with the user's own access. It returns
	// false if the key is already there.
	Install(ctx context.Context, line string, hostKeys []string) (bool, error)
	// Check is the preflight check, logged in with a private key.
	Check(ctx context.Context, key []byte, hostKeys []string) (*hostcheck.Report, error)
}

// SSH is a machine reached over SSH.
type SSH struct {
	// Endpoint is ssh://user@host[:port]/socket.
	Endpoint string
	// Access is the user's own: an agent, or keys. The zero value is none.
	Access endpoint.Credentials
	// Expose is the port of the machine on which it listens for the node; 0: it does not.
	Expose int
	// AllowSwap is the opposite of the node's failSwapOn.
	AllowSwap bool
	// Keys of the user in addition to Access. Missing files are ignored.
	Keys []string
	// KnownHosts are the user's files. Missing ones are ignored.
	KnownHosts []string
	// KeyFile is the file of the key that was given for Bowline, or empty.
	KeyFile string
	// Jumps on the way to the machine.
	Jumps []endpoint.Jump
}

const (
	dialTime    = 10 * time.Second // for the TCP connection
	installTime = 30 * time.Second // for the script
	rootDir     = "/var/lib/kubelet"
)

// Scan implements Machine.
func (m *SSH) Scan(ctx context.Context) ([]ssh.PublicKey, error) {
	target, err := endpoint.Resolve(m.Endpoint, endpoint.Options{Credentials: m.Access, Jumps: m.Jumps})
	if err != nil {
		return nil, err
	}
	way, err := travel(ctx, target.Jumps, m.Keys)
	if err != nil {
		return nil, err
	}
	defer way.Close()
	return endpoint.Scan(ctx, target.Address, way.dial)
}

// Known implements Machine.
func (m *SSH) Known(keys []ssh.PublicKey) ([]ssh.PublicKey, error) {
	if len(m.KnownHosts) == 0 {
		return nil, nil
	}
	target, err := endpoint.Resolve(m.Endpoint, endpoint.Options{KnownHosts: m.KnownHosts})
	if err != nil {
		return nil, err
	}
	return target.Known(keys)
}

// Try implements Machine.
func (m *SSH) Try(ctx context.Context, key []byte, hostKeys []string) error {
	client, err := m.login(ctx, endpoint.Options{Credentials: endpoint.Credentials{Key: key}, HostKeys: hostKeys}, nil)
	if err == nil {
		client.Close()
	}
	return err
}

// Own implements Machine.
func (m *SSH) Own() string {
	switch {
	case m.Access.KeyFile != "":
		return "the key " + m.Access.KeyFile
	case m.Access.AgentSocket != "" && len(m.Keys) > 0:
		return "your ssh-agent and your keys in ~/.ssh"
	case m.Access.AgentSocket != "":
		return "your ssh-agent"
	case len(m.Keys) > 0:
		return "your keys in ~/.ssh"
	}
	return ""
}

// Flags implements Machine. An agent and the default keys need no flag.
func (m *SSH) Flags() (flags []string) {
	if file := cmp.Or(m.Access.KeyFile, m.KeyFile); file != "" && (m.Access.KeyFile != "" || m.Own() == "") {
		flags = append(flags, "--identity-file", file)
	}
	var jumps []string
	for _, j := range m.Jumps {
		jumps = append(jumps, j.String())
		for _, pin := range j.HostKeys {
			if key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(pin)); err == nil {
				flags = append(flags, "--jump-host-key", ssh.FingerprintSHA256(key))
			}
		}
	}
	if len(jumps) > 0 {
		flags = append(flags, "--proxy-jump", strings.Join(jumps, ","))
	}
	return flags
}

//go:embed install.sh
var installScript string

// Install implements Machine.
func (m *SSH) Install(ctx context.Context, line string, hostKeys []string) (bool, error) {
	client, err := m.login(ctx, endpoint.Options{Credentials: m.Access, HostKeys: hostKeys}, m.Keys)
	if err != nil {
		return false, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, installTime)
	defer cancel()
	defer context.AfterFunc(ctx, func() { client.Close() })()
	session, err := client.NewSession()
	if err != nil {
		return false, fmt.Errorf("begin a session: %w", err)
	}
	defer session.Close()
	var said, complained strings.Builder
	session.Stdout, session.Stderr = &said, &complained
	session.Stdin = strings.NewReader(installScript + line + "\n")
	err = session.Run(shell.Command("sh", false, len(installScript)))
	if ctx.Err() != nil {
		err = fmt.Errorf("no end within %s", installTime)
	}
	answer := strings.TrimSpace(said.String())
	switch {
	case err == nil && strings.HasSuffix(answer, "bowline: added"):
		return true, nil
	case err == nil && strings.HasSuffix(answer, "bowline: there"):
		return false, nil
	}
	if words := strings.TrimSpace(complained.String()); words != "" {
		return false, fmt.Errorf("write ~/.ssh/authorized_keys: %s", words)
	}
	return false, fmt.Errorf("write ~/.ssh/authorized_keys: the login shell did not complete the script (%v): %q", err, answer)
}

// Check implements Machine.
func (m *SSH) Check(ctx context.Context, key []byte, hostKeys []string) (*hostcheck.Report, error) {
	target, err := endpoint.Resolve(m.Endpoint, endpoint.Options{Credentials: endpoint.Credentials{Key: key}, HostKeys: hostKeys, Jumps: m.Jumps})
	if err != nil {
		return nil, err
	}
	return hostcheck.Run(ctx, hostcheck.Config{Endpoint: m.Endpoint, Target: target, Socket: target.Socket, RootDir: rootDir, Expose: m.Expose, AllowSwap: m.AllowSwap}), nil
}

// client is a login to a machine, and to the jumps on the way.
type client struct {
	*ssh.Client
	way *way
}

// Close ends the logins, the one to the machine first.
func (c *client) Close() error {
	err := c.Client.Close()
	c.way.Close()
	return err
}

func (m *SSH) login(ctx context.Context, o endpoint.Options, keys []string) (*client, error) {
	o.Jumps = m.Jumps
	target, err := endpoint.Resolve(m.Endpoint, o)
	if err != nil {
		return nil, err
	}
	way, err := travel(ctx, target.Jumps, keys)
	if err != nil {
		return nil, err
	}
	c, err := loginTo(ctx, target, keys, way.dial)
	if err != nil {
		way.Close()
		return nil, err
	}
	return &client{c, way}, nil
}

// way is the jumps that are logged in to, in order.
type way struct{ clients []*ssh.Client }

// travel logs in to each of the jumps in order.
func travel(ctx context.Context, jumps []endpoint.Target, keys []string) (*way, error) {
	w := &way{}
	for i := range jumps {
		c, err := loginTo(ctx, &jumps[i], keys, w.dial)
		if err != nil {
			w.Close()
			return nil, fmt.Errorf("jump %s: %w", jumps[i].Address, err)
		}
		w.clients = append(w.clients, c)
	}
	return w, nil
}

// Close ends the logins, the last one first.
func (w *way) Close() {
	for i := len(w.clients) - 1; i >= 0; i-- {
		w.clients[i].Close()
	}
}

// dial connects from the last jump.
func (w *way) dial(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	if len(w.clients) == 0 {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	return w.clients[len(w.clients)-1].DialContext(ctx, network, address)
}

func loginTo(ctx context.Context, target *endpoint.Target, keys []string, dial func(ctx context.Context, network, address string) (net.Conn, error)) (*ssh.Client, error) {
	target.IdentityFiles = append(target.IdentityFiles, keys...)
	return target.Login(ctx, dial)
}
