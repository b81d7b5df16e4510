package link

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/host/ssh/sshtest"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

func TestMain(m *testing.M) {
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	os.Exit(m.Run())
}

// machine is a local sshd, on a port of its own.
type machine struct {
	dir     string
	address string // 127.0.0.1:port
	key     ed25519.PrivateKey
	ca      ssh.Signer
	url     string
}

// newMachine starts an sshd with three host keys, and a CA whose certificates may log in.
func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{dir: t.TempDir(), ca: signer(t, newKey(t))}
	m.write(t, "ca.pub", ssh.MarshalAuthorizedKey(m.ca.PublicKey()))
	more := []string{"TrustedUserCAKeys " + m.path("ca.pub")}
	for _, kind := range []string{"ecdsa", "rsa"} {
		if out, err := exec.Command("ssh-keygen", "-q", "-t", kind, "-N", "", "-f", m.path("host_"+kind)).CombinedOutput(); err != nil {
			t.Skipf("ssh-keygen: %v: %s", err, out)
		}
		more = append(more, "HostKey "+m.path("host_"+kind))
	}
	s := sshtest.Run(t, more...)
	m.write(t, "host_ed25519.pub", []byte(s.HostKey))
	data := testutil.ReadFile(t, s.KeyFile)
	m.write(t, "key", data)
	key, err := ssh.ParseRawPrivateKey(data)
	testutil.Must(t, err)
	m.key = *key.(*ed25519.PrivateKey)
	m.address, m.url = s.Address, s.URL(m.path("echo.sock"))
	return m
}

func (m *machine) path(name string) string { return filepath.Join(m.dir, name) }

func (m *machine) write(t *testing.T, name string, data []byte) {
	t.Helper()
	testutil.Must(t, os.WriteFile(m.path(name), data, 0o600))
}

// hostKey is the line of a public host key.
func (m *machine) hostKey(t *testing.T, kind string) string {
	t.Helper()
	data := testutil.ReadFile(t, m.path("host_"+kind+".pub"))
	return strings.TrimSpace(string(data))
}

func newKey(t *testing.T) ed25519.PrivateKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	testutil.Must(t, err)
	return key
}

func signer(t *testing.T, key ed25519.PrivateKey) ssh.Signer {
	t.Helper()
	s, err := ssh.NewSignerFromKey(key)
	testutil.Must(t, err)
	return s
}

func privateKey(t *testing.T, key ed25519.PrivateKey) []byte {
	t.Helper()
	block, err := ssh.MarshalPrivateKey(key, "")
	testutil.Must(t, err)
	return pem.EncodeToMemory(block)
}

// echo serves connections and sends back what arrives, until the end of each.
func echo(t *testing.T, network, address string) net.Listener {
	t.Helper()
	ln, err := net.Listen(network, address)
	testutil.Must(t, err)
	testutil.Serve(t, ln, func(c net.Conn) { io.Copy(c, c) })
	return ln
}

// run makes a link and keeps it until the end of the test.
func run(t *testing.T, raw string, o endpoint.Options) *Link {
	t.Helper()
	target, err := endpoint.Resolve(raw, o)
	testutil.Must(t, err)
	l, err := New(Config{Target: target})
	testutil.Must(t, err)
	start(t, l)
	return l
}

func start(t *testing.T, l *Link) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- l.Run(context.Background()) }()
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// says writes to a conn and expects the text back.
func says(t *testing.T, c net.Conn, text string) {
	t.Helper()
	c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != text {
		t.Fatalf("%q came back as %q, %v", text, got, err)
	}
	c.SetDeadline(time.Time{})
}
