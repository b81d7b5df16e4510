// Package sshtest runs a real local sshd on a loopback port, for tests that need OpenSSH's
// behaviour.
package sshtest

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// Server is an sshd that lets root log in with the key, and with the keys in
// .ssh/authorized_keys below Dir, which is the home of the login.
type Server struct {
	Address string // 127.0.0.1:port
	Dir     string // of its files and the key; removed after the test
	KeyFile string
	HostKey string // line of the public key
}

// start bounds the start of an sshd on a busy host.
const start = time.Minute

// Run starts an sshd with additional lines of configuration, until the test ends. It skips the
// test if there is no sshd or no one could log in.
func Run(t testing.TB, more ...string) *Server {
	t.Helper()
	const program = "/usr/sbin/sshd"
	if _, err := os.Stat(program); err != nil {
		t.Skip("there is no " + program + " here")
	}
	if os.Getuid() != 0 {
		t.Skip("sshd lets no one log in unless root runs it")
	}
	if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
		t.Skipf("sshd needs /run/sshd: %v", err)
	}
	s := &Server{Dir: t.TempDir()}
	s.KeyFile = s.path("key")
	for _, name := range []string{"host_key", "key"} {
		if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", s.path(name)).CombinedOutput(); err != nil {
			t.Skipf("ssh-keygen: %v: %s", err, out)
		}
	}
	pin := testutil.ReadFile(t, s.path("host_key.pub"))
	s.HostKey = strings.TrimSpace(string(pin))
	// Another program may take the port between our check and sshd: then try again.
	for try := 1; ; try++ {
		said, ok := s.serve(t, program, more)
		if ok {
			return s
		}
		if try == 5 {
			t.Fatalf("sshd does not listen: %s", said)
		}
	}
}

func (s *Server) path(name string) string { return filepath.Join(s.Dir, name) }

func (s *Server) serve(t testing.TB, program string, more []string) (string, bool) {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.Must(t, err)
	s.Address = free.Addr().String()
	free.Close()
	_, port, _ := net.SplitHostPort(s.Address)
	// HOME keeps the startup files of this host's root out of the test.
	config := append([]string{"SetEnv HOME=" + s.Dir, "ListenAddress 127.0.0.1", "Port " + port, "PidFile none", "StrictModes no", "UsePAM no",
		"PasswordAuthentication no", "PermitRootLogin yes", "AuthorizedKeysFile " + s.path("key.pub") + " " + s.path(".ssh/authorized_keys"),
		"Subsystem sftp internal-sftp", "MaxStartups 100", "HostKey " + s.path("host_key")}, more...)
	testutil.Must(t, os.WriteFile(s.path("sshd_config"), []byte(strings.Join(config, "\n")+"\n"), 0o600))
	cmd := exec.Command(program, "-D", "-e", "-f", s.path("sshd_config"))
	stderr, err := cmd.StderrPipe()
	testutil.Must(t, err)
	testutil.Must(t, cmd.Start())
	var mu sync.Mutex
	var lines bytes.Buffer
	said := func() string {
		mu.Lock()
		defer mu.Unlock()
		return lines.String()
	}
	up, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for l := bufio.NewScanner(stderr); l.Scan(); {
			mu.Lock()
			fmt.Fprintln(&lines, l.Text())
			mu.Unlock()
			if strings.HasPrefix(l.Text(), "Server listening") {
				close(up)
			}
		}
	}()
	stop := func() {
		_ = cmd.Process.Signal(syscall.SIGKILL)
		_ = cmd.Wait()
	}
	select {
	case <-up:
	case <-ended:
		stop()
		return said(), false
	case <-time.After(start):
		stop()
		return said(), false
	}
	t.Cleanup(func() {
		stop()
		if t.Failed() {
			t.Logf("sshd:\n%s", said())
		}
	})
	return "", true
}

// URL returns the URL of a socket on the host, for root.
func (s *Server) URL(socket string) string { return "ssh://root@" + s.Address + socket }

// Options log in with the key and know the host key.
func (s *Server) Options() endpoint.Options {
	return endpoint.Options{Credentials: endpoint.Credentials{KeyFile: s.KeyFile}, HostKeys: []string{s.HostKey}}
}

// Admit lets the key of another server log in here as well.
func (s *Server) Admit(t testing.TB, other *Server) {
	t.Helper()
	key, err := os.ReadFile(other.KeyFile + ".pub")
	if err == nil {
		err = os.MkdirAll(s.path(".ssh"), 0o700)
	}
	if err == nil {
		err = os.WriteFile(s.path(".ssh/authorized_keys"), key, 0o600)
	}
	testutil.Must(t, err)
}
