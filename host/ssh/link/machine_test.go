package link

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
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

// newMachine starts sshd with additional lines of configuration. It skips the test if there is
// no sshd or no one could log in.
func newMachine(t *testing.T, more ...string) *machine {
	t.Helper()
	sshd, err := exec.LookPath("/usr/sbin/sshd")
	if err != nil {
		t.Skip("there is no /usr/sbin/sshd here")
	}
	if os.Getuid() != 0 {
		t.Skip("sshd lets no one log in unless root runs it")
	}
	if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
		t.Skipf("sshd needs /run/sshd: %v", err)
	}
	m := &machine{dir: t.TempDir()}
	hostKeys := []string{"ed25519", "ecdsa", "rsa"}
	for _, kind := range hostKeys {
		if out, err := exec.Command("ssh-keygen", "-q", "-t", kind, "-N", "", "-f", m.path("host_"+kind)).CombinedOutput(); err != nil {
			t.Skipf("ssh-keygen: %v: %s", err, out)
		}
	}
	m.key = newKey(t)
	m.ca = signer(t, newKey(t))
	m.write(t, "authorized_keys", ssh.MarshalAuthorizedKey(signer(t, m.key).PublicKey()))
	m.write(t, "ca.pub", ssh.MarshalAuthorizedKey(m.ca.PublicKey()))
	m.write(t, "key", privateKey(t, m.key))

	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m.address = free.Addr().String()
	free.Close()
	_, port, _ := net.SplitHostPort(m.address)
	config := append([]string{"SetEnv HOME=/", "ListenAddress 127.0.0.1", "Port " + port, "PidFile none", "StrictModes no", "UsePAM no",
		"PasswordAuthentication no", "PermitRootLogin yes", "AuthorizedKeysFile " + m.path("authorized_keys"),
		"TrustedUserCAKeys " + m.path("ca.pub"), "Subsystem sftp internal-sftp", "MaxStartups 100"}, more...)
	for _, kind := range hostKeys {
		config = append(config, "HostKey "+m.path("host_"+kind))
	}
	m.write(t, "sshd_config", []byte(strings.Join(config, "\n")+"\n"))
	m.url = "ssh://root@" + m.address + m.path("echo.sock")

	cmd := exec.Command(sshd, "-D", "-e", "-f", m.path("sshd_config"))
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var log sync.Mutex
	var lines bytes.Buffer
	up, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for s := bufio.NewScanner(stderr); s.Scan(); {
			log.Lock()
			fmt.Fprintln(&lines, s.Text())
			log.Unlock()
			if strings.HasPrefix(s.Text(), "Server listening") {
				close(up)
			}
		}
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if log.Lock(); t.Failed() {
			t.Logf("sshd:\n%s", lines.String())
		}
		log.Unlock()
	})
	select {
	case <-up:
	case <-ended:
		t.Fatal("sshd ended at once")
	case <-time.After(time.Minute):
		t.Fatal("sshd does not listen")
	}
	return m
}

func (m *machine) path(name string) string { return filepath.Join(m.dir, name) }

func (m *machine) write(t *testing.T, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(m.path(name), data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// hostKey is the line of a public host key.
func (m *machine) hostKey(t *testing.T, kind string) string {
	t.Helper()
	data, err := os.ReadFile(m.path("host_" + kind + ".pub"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

func newKey(t *testing.T) ed25519.PrivateKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func signer(t *testing.T, key ed25519.PrivateKey) ssh.Signer {
	t.Helper()
	s, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func privateKey(t *testing.T, key ed25519.PrivateKey) []byte {
	t.Helper()
	block, err := ssh.MarshalPrivateKey(key, "")
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(block)
}

// echo serves connections and sends back what arrives, until the end of each.
func echo(t *testing.T, network, address string) net.Listener {
	t.Helper()
	ln, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.Copy(c, c)
			}()
		}
	}()
	return ln
}

// run makes a link and keeps it until the end of the test.
func run(t *testing.T, raw string, o endpoint.Options) *Link {
	t.Helper()
	target, err := endpoint.Resolve(raw, o)
	if err != nil {
		t.Fatal(err)
	}
	l, err := New(Config{Target: target})
	if err != nil {
		t.Fatal(err)
	}
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
