package hostcheck

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/host/local"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/host/ssh/sshtest"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/syncloop/owner"
)

func TestMain(m *testing.M) {
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	os.Exit(m.Run())
}

// line is the worst line of a subject, which must have one.
func line(t *testing.T, r *Report, subject string) Line {
	t.Helper()
	var worst Line
	for _, l := range r.Lines {
		if l.Subject == subject && (worst.Level == "" || worst.Level == OK || l.Level == Failure) {
			worst = l
		}
	}
	if worst.Level == "" {
		t.Errorf("nothing is said of %s:\n%s", subject, r.Text(false))
	}
	return worst
}

// TestLocal checks the local machine, with a fake runtime on a real socket. It expects only what the
// test itself sets up.
func TestLocal(t *testing.T) {
	rt := fake.Run(t, fake.Config{})
	cfg := Config{Endpoint: "unix://" + rt.Socket, Socket: rt.Socket, RootDir: filepath.Join(t.TempDir(), "kubelet")}
	r := Run(t.Context(), cfg)
	if len(r.NotLookedAt) > 0 {
		t.Errorf("not looked at: %v", r.NotLookedAt)
	}
	for _, l := range r.Lines {
		if !slices.Contains(localSubjects, l.Subject) {
			t.Errorf("of this machine: %+v", l)
		}
	}
	for _, subject := range []string{Socket, Runtime, Network} {
		expect(t, subject, line(t, r, subject), OK)
	}
	if _, err := os.Stat(cfg.RootDir); err == nil {
		t.Error("the root directory was made")
	}

	if os.Getuid() != 0 {
		return // only root sees who holds locks
	}
	machine, err := local.New(local.Config{})
	testutil.Must(t, err)
	defer machine.Close()
	lock, err := machine.Lock(t.Context(), owner.LockPaths(cfg.RootDir, owner.RunDir, rt.Socket)[0], []byte(record))
	testutil.Must(t, err)
	if got := line(t, Run(t.Context(), cfg), Driver); got.Level != Failure || !strings.Contains(got.Found, "another Bowline") || !strings.Contains(got.Found, "n-1") {
		t.Errorf("while the lock is held: %+v", got)
	}
	select {
	case <-lock.Lost():
		t.Error("the check took the lock")
	default:
	}
	testutil.Must(t, lock.Close())
	if got := line(t, Run(t.Context(), cfg), Driver); strings.Contains(got.Found, "another Bowline") {
		t.Errorf("when it is free: %+v", got)
	}

	rt.Close()
	expect(t, "nothing listens", line(t, Run(t.Context(), cfg), Socket), Failure)
}

func remote(t *testing.T, address, socket string, o endpoint.Options) Config {
	t.Helper()
	raw := "ssh://root@" + address + socket
	target, err := endpoint.Resolve(raw, o)
	testutil.Must(t, err)
	return Config{Endpoint: raw, Target: target, Socket: target.Socket, RootDir: "/var/lib/kubelet"}
}

func TestSSHD(t *testing.T) {
	s := sshtest.Run(t)
	rt := fake.Run(t, fake.Config{})
	address, login, pins := s.Address, s.Options().Credentials, s.Options().HostKeys

	t.Run("whole", func(t *testing.T) {
		r := Run(t.Context(), remote(t, address, rt.Socket, endpoint.Options{Credentials: login, HostKeys: pins}))
		if len(r.NotLookedAt) > 0 {
			t.Errorf("not looked at: %v", r.NotLookedAt)
		}
		for _, subject := range []string{Reachability, HostKey, Login, Rights, Forwarding, Runtime, Network, Clock, Tools} {
			expect(t, subject, line(t, r, subject), OK)
		}
	})
	t.Run("not pinned", func(t *testing.T) {
		r := Run(t.Context(), remote(t, address, rt.Socket, endpoint.Options{Credentials: login}))
		expect(t, HostKey, line(t, r, HostKey), Failure, "bowline host scan "+address)
		if r.Fit || len(r.NotLookedAt) != len(remoteSubjects)-2 {
			t.Errorf("got\n%s", r.Text(false))
		}
	})
	t.Run("changed", func(t *testing.T) {
		other, err := os.ReadFile(s.KeyFile + ".pub")
		testutil.Must(t, err)
		r := Run(t.Context(), remote(t, address, rt.Socket, endpoint.Options{Credentials: login, HostKeys: []string{strings.TrimSpace(string(other))}}))
		expect(t, HostKey, line(t, r, HostKey), Failure, "has changed")
	})
	t.Run("refused login", func(t *testing.T) {
		r := Run(t.Context(), remote(t, address, rt.Socket, endpoint.Options{Credentials: endpoint.Credentials{Key: newKey(t)}, HostKeys: pins}))
		expect(t, Login, line(t, r, Login), Failure, "refuses the login")
	})
	t.Run("no socket", func(t *testing.T) {
		r := Run(t.Context(), remote(t, address, rt.Socket+".not", endpoint.Options{Credentials: login, HostKeys: pins}))
		expect(t, Forwarding, line(t, r, Forwarding), Failure, "there is no socket")
	})
	t.Run("jump", func(t *testing.T) {
		known := filepath.Join(t.TempDir(), "known_hosts")
		name, port, _ := net.SplitHostPort(address)
		testutil.Must(t, os.WriteFile(known, []byte("["+name+"]:"+port+",[localhost]:"+port+" "+s.HostKey+"\n"), 0o600))
		r := Run(t.Context(), remote(t, address, rt.Socket, endpoint.Options{Credentials: login, KnownHosts: []string{known}, ProxyJump: "root@localhost:" + port}))
		expect(t, Runtime, line(t, r, Runtime), OK)
		var order []string
		for _, l := range r.Lines[:7] {
			order = append(order, l.Subject)
		}
		if !strings.HasPrefix(r.Lines[0].Found, "jump localhost:"+port) ||
			strings.Join(order, " ") != "reachability host key login reachability host key login rights" {
			t.Errorf("got\n%s", r.Text(false))
		}
	})
}

func TestSSHDForbids(t *testing.T) {
	s := sshtest.Run(t, "AllowStreamLocalForwarding no")
	rt := fake.Run(t, fake.Config{})
	r := Run(t.Context(), remote(t, s.Address, rt.Socket, s.Options()))
	expect(t, Forwarding, line(t, r, Forwarding), Failure, "AllowStreamLocalForwarding yes")
	if strings.Join(r.NotLookedAt, " ") != "runtime network" {
		t.Errorf("got\n%s", r.Text(false))
	}
}

func newKey(t *testing.T) []byte {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	testutil.Must(t, err)
	block, err := ssh.MarshalPrivateKey(key, "")
	testutil.Must(t, err)
	return pem.EncodeToMemory(block)
}

// TestDead: machines that never answer are reported soon.
func TestDead(t *testing.T) {
	silent := func(context.Context, string, string) (net.Conn, error) {
		near, far := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, far) }()
		return near, nil
	}
	dropped := func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: ctx.Err()}
	}
	for name, dial := range map[string]dialer{"silent": silent, "dropped": dropped} {
		t.Run(name, func(t *testing.T) {
			target, err := endpoint.Resolve("ssh://root@10.0.0.7/run/c.sock", endpoint.Options{Credentials: endpoint.Credentials{Key: newKey(t)}})
			testutil.Must(t, err)
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				r := &Report{}
				if c := login(t.Context(), r, target, dial, target.Address); c != nil || len(r.Lines) != 1 {
					t.Fatalf("got %v, %+v", c, r)
				}
				expect(t, name, r.Lines[0], Failure)
				if r.Lines[0].Subject != Reachability || time.Since(began) > 15*time.Second {
					t.Errorf("after %s: %+v", time.Since(began), r.Lines[0])
				}
			})
		})
	}
	r := Run(t.Context(), remote(t, "127.0.0.1:1", "/run/c.sock", endpoint.Options{Credentials: endpoint.Credentials{Key: newKey(t)}}))
	if got := line(t, r, Reachability); got.Level != Failure || !strings.Contains(got.Found, syscall.ECONNREFUSED.Error()) {
		t.Errorf("got %+v", got)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	if r := Run(ctx, remote(t, "127.0.0.1:1", "/run/c.sock", endpoint.Options{})); r.Fit {
		t.Errorf("got\n%s", r.Text(false))
	}
}
