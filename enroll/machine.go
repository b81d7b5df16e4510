package enroll

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

// Machine is what is asked of a machine before there is a Host: *SSH.
type Machine interface {
	// Scan reads the host keys that the machine presents.
	Scan(ctx context.Context) ([]ssh.PublicKey, error)
	// Known are those of these keys that the person's own known_hosts have; none where
	// they do not know the machine. An *endpoint.HostKeyError: they know other keys of it.
	Known(keys []ssh.PublicKey) ([]ssh.PublicKey, error)
	// Try logs in by a private key. An *endpoint.AuthError: it is refused.
	Try(ctx context.Context, key []byte, hostKeys []string) error
	// Own names the person's own access, or is empty: there is none.
	Own() string
	// Flags are those by which the "host" commands come to the machine as this one did.
	Flags() []string
	// Install puts a line into the login's authorized_keys, by the person's own access;
	// false: the key is there already.
	Install(ctx context.Context, line string, hostKeys []string) (bool, error)
	// Check is the preflight, by a private key.
	Check(ctx context.Context, key []byte, hostKeys []string) (*hostcheck.Report, error)
}

// SSH is a machine by ssh.
type SSH struct {
	// Endpoint is ssh://user@host[:port]/socket.
	Endpoint string
	// Access is the person's own: an agent, or keys. The zero value is none.
	Access endpoint.Credentials
	// Expose is the port of the machine at which the node is to be found; 0: elsewhere.
	Expose int
	// Keys of the person's beside Access; a missing file is passed over.
	Keys []string
	// KnownHosts are the person's files; a missing one is passed over.
	KnownHosts []string
	// KeyFile is that of the key which was given for Bowline, or empty.
	KeyFile string
	// Jumps are the way to it.
	Jumps []endpoint.Jump
}

const (
	dialTime    = 10 * time.Second // of the TCP connection
	loginTime   = 15 * time.Second // of the login
	installTime = 30 * time.Second // of the script
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

// Flags implements Machine. An agent and the usual keys are found without a flag.
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
		flags = append(flags, "--jump", strings.Join(jumps, ","))
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
	return false, fmt.Errorf("write ~/.ssh/authorized_keys: the login's shell did not run the script to its end (%v): %q", err, answer)
}

// Check implements Machine.
func (m *SSH) Check(ctx context.Context, key []byte, hostKeys []string) (*hostcheck.Report, error) {
	target, err := endpoint.Resolve(m.Endpoint, endpoint.Options{Credentials: endpoint.Credentials{Key: key}, HostKeys: hostKeys, Jumps: m.Jumps})
	if err != nil {
		return nil, err
	}
	return hostcheck.Run(ctx, hostcheck.Config{Endpoint: m.Endpoint, Target: target, Socket: target.Socket, RootDir: rootDir, Expose: m.Expose}), nil
}

// client is a login to a machine, and to the jumps on the way.
type client struct {
	*ssh.Client
	way *way
}

// Close ends the logins, that to the machine first.
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

// way is a number of jumps that have been logged in to.
type way struct{ clients []*ssh.Client }

// travel logs in at each of the jumps, the first from here.
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

// Close ends the logins, the last first.
func (w *way) Close() {
	for i := len(w.clients) - 1; i >= 0; i-- {
		w.clients[i].Close()
	}
}

// dial goes from the last jump.
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
	auth, err := target.Client(ctx)
	if err != nil {
		return nil, err
	}
	defer auth.Close()
	conn, err := dial(ctx, "tcp", target.Address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, loginTime)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	c, channels, requests, err := ssh.NewClientConn(conn, target.HostKeyName, auth.Config)
	if !stop() {
		if err == nil {
			c.Close()
		}
		return nil, fmt.Errorf("login to %s: no answer within %s", target.Address, loginTime)
	}
	if err != nil {
		conn.Close()
		return nil, auth.Explain(err)
	}
	return ssh.NewClient(c, channels, requests), nil
}
