package enroll

import (
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
	// Try logs in by a private key. An *endpoint.AuthError: it is refused.
	Try(ctx context.Context, key []byte, hostKeys []string) error
	// Own names the person's own access, or is empty: there is none.
	Own() string
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
}

const (
	dialTime    = 10 * time.Second // of the TCP connection
	loginTime   = 15 * time.Second // of the login
	installTime = 30 * time.Second // of the script
	rootDir     = "/var/lib/kubelet"
)

// Scan implements Machine.
func (m *SSH) Scan(ctx context.Context) ([]ssh.PublicKey, error) {
	target, err := endpoint.Resolve(m.Endpoint, endpoint.Options{})
	if err != nil {
		return nil, err
	}
	return endpoint.Scan(ctx, target.Address, (&net.Dialer{}).DialContext)
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
	case m.Access.AgentSocket != "":
		return "your ssh-agent"
	case len(m.Keys) > 0:
		return "your keys in ~/.ssh"
	}
	return ""
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
	target, err := endpoint.Resolve(m.Endpoint, endpoint.Options{Credentials: endpoint.Credentials{Key: key}, HostKeys: hostKeys})
	if err != nil {
		return nil, err
	}
	return hostcheck.Run(ctx, hostcheck.Config{Endpoint: m.Endpoint, Target: target, Socket: target.Socket, RootDir: rootDir, Expose: m.Expose}), nil
}

func (m *SSH) login(ctx context.Context, o endpoint.Options, keys []string) (*ssh.Client, error) {
	target, err := endpoint.Resolve(m.Endpoint, o)
	if err != nil {
		return nil, err
	}
	target.IdentityFiles = append(target.IdentityFiles, keys...)
	auth, err := target.Client(ctx)
	if err != nil {
		return nil, err
	}
	defer auth.Close()
	dialer := net.Dialer{Timeout: dialTime}
	conn, err := dialer.DialContext(ctx, "tcp", target.Address)
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
