package link

import (
	"context"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestSSHDLogins logs in with each kind of credential and pin.
func TestSSHDLogins(t *testing.T) {
	m := newMachine(t)
	socket := m.path("agent.sock")
	keys := agent.NewKeyring()
	testutil.Must(t, keys.Add(agent.AddedKey{PrivateKey: m.key}))
	serveAgent(t, keys, socket)

	// A key that is accepted only with a certificate.
	certified := newKey(t)
	cert := &ssh.Certificate{Key: signer(t, certified).PublicKey(), CertType: ssh.UserCert, KeyId: "test",
		ValidPrincipals: []string{"root"}, ValidBefore: ssh.CertTimeInfinity,
		Permissions: ssh.Permissions{Extensions: map[string]string{"permit-port-forwarding": ""}}}
	testutil.Must(t, cert.SignCert(rand.Reader, m.ca))
	m.write(t, "certified", privateKey(t, certified))
	m.write(t, "certified-cert.pub", ssh.MarshalAuthorizedKey(cert))

	host, port, _ := net.SplitHostPort(m.address)
	pub, _, _, _, err := ssh.ParseAuthorizedKey([]byte(m.hostKey(t, "ecdsa")))
	testutil.Must(t, err)
	m.write(t, "known_hosts", []byte(knownhosts.Line([]string{knownhosts.HashHostname(knownhosts.Normalize(m.address))}, pub)+"\n"))
	m.write(t, "config", fmt.Appendf(nil, `
Host far
  HostName %s
  Port %s
  User root
  IdentityFile %s
  ProxyJump near
Host near
  HostName %s
  Port %s
  User root
  IdentityFile %s
Host *
  UserKnownHostsFile %s
`, host, port, m.path("key"), host, port, m.path("certified"), m.path("known_hosts")))

	rsa, err := exec.Command("ssh-keygen", "-lf", m.path("host_rsa.pub")).Output()
	testutil.Must(t, err)
	key := endpoint.Credentials{KeyFile: m.path("key")}
	for name, c := range map[string]struct {
		url string
		o   endpoint.Options
	}{
		"key bytes":   {m.url, endpoint.Options{Credentials: endpoint.Credentials{Key: privateKey(t, m.key)}, HostKeys: []string{m.hostKey(t, "ed25519")}}},
		"certificate": {m.url, endpoint.Options{Credentials: endpoint.Credentials{KeyFile: m.path("certified")}, KnownHosts: []string{m.path("known_hosts")}}},
		"agent":       {m.url, endpoint.Options{Credentials: endpoint.Credentials{AgentSocket: socket}, HostKeys: []string{m.hostKey(t, "rsa")}}},
		"fingerprint": {m.url, endpoint.Options{Credentials: key, HostKeys: []string{strings.Fields(string(rsa))[1]}}},
		"jump":        {"ssh://far" + m.path("echo.sock"), endpoint.Options{ConfigFile: m.path("config"), Home: m.dir}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			l := run(t, c.url, c.o)
			p, err := l.Start(ctx, "exit 3")
			testutil.Must(t, err)
			if code, err := p.Wait(); code != 3 || err != nil {
				t.Errorf("got %d, %v", code, err)
			}
		})
	}

	t.Run("source", func(t *testing.T) {
		// With a passphrase, and asked again for each connection.
		block, err := ssh.MarshalPrivateKeyWithPassphrase(m.key, "", []byte("word"))
		testutil.Must(t, err)
		asked := make(chan struct{}, 10)
		l := run(t, m.url, endpoint.Options{HostKeys: []string{m.hostKey(t, "rsa")}, Credentials: endpoint.Credentials{
			Source: func(context.Context) (endpoint.Login, error) {
				asked <- struct{}{}
				return endpoint.Login{Key: pem.EncodeToMemory(block), Passphrase: endpoint.Secret("word")}, nil
			}}})
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if p, err := l.Start(ctx, "exit 3"); err != nil {
			t.Fatal(err)
		} else if code, err := p.Wait(); code != 3 || err != nil {
			t.Errorf("got %d, %v", code, err)
		}
		if p, err := l.Subsystem(ctx, "sftp"); err != nil { // on the other connection
			t.Error(err)
		} else {
			p.Close()
		}
		if n := len(asked); n < 2 { // more if a login took too long and was tried again
			t.Errorf("asked %d times for two connections", n)
		}
	})
	t.Run("too many keys", func(t *testing.T) {
		many := agent.NewKeyring()
		for range 8 { // sshd checks six
			testutil.Must(t, many.Add(agent.AddedKey{PrivateKey: newKey(t)}))
		}
		serveAgent(t, many, m.path("many.sock"))
		l := run(t, m.url, endpoint.Options{Credentials: endpoint.Credentials{AgentSocket: m.path("many.sock")}, HostKeys: []string{m.hostKey(t, "rsa")}})
		until := time.After(time.Minute)
		for changed := l.Changed(); l.State().Err == nil; changed = l.Changed() {
			select {
			case <-changed:
			case <-until:
				t.Fatal("no attempt has ended")
			}
		}
		var auth *endpoint.AuthError
		if err := l.State().Err; !errors.As(err, &auth) || !strings.Contains(err.Error(), "Too many authentication failures") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("scan", func(t *testing.T) {
		found, err := endpoint.Scan(t.Context(), m.address, new(net.Dialer).DialContext)
		testutil.Must(t, err)
		var got []string
		for _, k := range found {
			got = append(got, strings.TrimSpace(string(ssh.MarshalAuthorizedKey(k))))
		}
		for i, kind := range []string{"ed25519", "ecdsa", "rsa"} {
			if len(got) != 3 || !strings.HasPrefix(m.hostKey(t, kind), got[i]) {
				t.Errorf("scan found %q", got)
			}
		}
	})
}

// serveAgent plays ssh-agent.
func serveAgent(t *testing.T, keys agent.Agent, socket string) {
	t.Helper()
	ln, err := net.Listen("unix", socket)
	testutil.Must(t, err)
	testutil.Serve(t, ln, func(c net.Conn) { _ = agent.ServeAgent(keys, c) })
}
