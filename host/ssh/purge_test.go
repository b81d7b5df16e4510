package ssh_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/ssh"
	"github.com/bowline-k8s/bowline/host/ssh/link"
	"github.com/bowline-k8s/bowline/host/ssh/link/linktest"
	"github.com/bowline-k8s/bowline/host/ssh/sshtest"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// login returns a host over an sshd, with a link of its own.
func login(t *testing.T, s *sshtest.Server) *ssh.Host {
	t.Helper()
	return loginBy(t, s, nil)
}

// loginBy is login over connections that dial makes; nil: the default.
func loginBy(t *testing.T, s *sshtest.Server, dial func(context.Context, string, string) (net.Conn, error)) *ssh.Host {
	t.Helper()
	h := open(t, ssh.Config{Transport: linktest.Run(t, s, link.Config{Dial: dial})})
	closeHost(t, h)
	return h
}

// forked starts a request of h that does not end: the shell of a command that removes our
// variables from its environment, and a child of it. It waits until both run.
func forked(t *testing.T, h *ssh.Host, dir string) (pids []int, ended chan error) {
	t.Helper()
	file := filepath.Join(dir, "pids")
	ended = make(chan error, 1)
	go func() {
		_, err := h.Run(context.Background(), host.Command{Timeout: time.Hour, Args: []string{"env", "-i", "/bin/sh", "-c",
			`setsid sleep 1000 & echo $$ $! >"$1.part"; mv "$1.part" "$1"; wait`, "sh", file}})
		ended <- err
	}()
	testutil.Eventually(t, "the request runs", func() bool { _, err := os.Stat(file); return err == nil })
	data := testutil.ReadFile(t, file)
	for _, word := range strings.Fields(string(data)) {
		pid, err := strconv.Atoi(word)
		if err != nil || pid < 2 || !runs(pid) {
			t.Fatalf("process %q, %v", word, err)
		}
		pids = append(pids, pid)
		t.Cleanup(func() {
			if t.Failed() { // else the test has seen it end
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		})
	}
	_ = os.Remove(file)
	return pids, ended
}

func runs(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

func wantDead(t *testing.T, when string, pids []int, ended chan error) {
	t.Helper()
	for _, pid := range pids {
		if runs(pid) {
			t.Errorf("%s: process %d of a former request runs", when, pid)
		}
	}
	select {
	case err := <-ended:
		if !errors.Is(err, host.ErrUnreachable) {
			t.Errorf("%s: the request ended with %v", when, err)
		}
	case <-time.After(patience):
		t.Errorf("%s: the request does not end", when)
	}
}

// TestPurgeEndsRequests: after a lock has changed hands, nothing that was started over the
// connection of the former holder runs any more, however that lost the lock.
func TestPurgeEndsRequests(t *testing.T) {
	server := sshtest.Run(t)
	ctx := t.Context()
	t.Run("taken over", func(t *testing.T) {
		one, two := login(t, server), login(t, server)
		p := t.TempDir() + "/lock"
		l, err := one.Lock(ctx, p, []byte("one"))
		testutil.Must(t, err)
		pids, ended := forked(t, one, t.TempDir())
		others, _ := forked(t, two, t.TempDir())
		testutil.Must(t, two.Takeover(ctx, p))
		wantDead(t, "after the takeover", pids, ended)
		for _, pid := range others {
			if !runs(pid) {
				t.Errorf("process %d of the new driver was ended", pid)
			}
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		l2, err := two.Lock(ctx, p, []byte("two"))
		testutil.Must(t, err)
		testutil.Receive(t, l.Lost(), patience, "the former driver has its lock")
		if err := l2.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Run("its connection went", func(t *testing.T) {
		one, two := login(t, server), login(t, server)
		p := t.TempDir() + "/lock"
		l, err := one.Lock(ctx, p, []byte("one"))
		testutil.Must(t, err)
		pids, ended := forked(t, one, t.TempDir())
		// The sshd of the connection ends, and the lock with it; the programs that it started
		// continue.
		data := testutil.ReadFile(t, p+".session")
		words := strings.Fields(string(data))
		sshd, err := strconv.Atoi(words[3])
		if err != nil || sshd < 2 {
			t.Fatalf("the session is recorded as %q", data)
		}
		testutil.Must(t, syscall.Kill(sshd, syscall.SIGKILL))
		<-l.Lost()
		var l2 host.Lock
		testutil.Eventually(t, "the lock is taken", func() bool { l2, err = two.Lock(ctx, p, []byte("two")); return err == nil })
		wantDead(t, "when the next has the lock", pids, ended)
		if err := l2.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Run("silent", func(t *testing.T) {
		if testing.Short() {
			t.Skip("takes 15 s")
		}
		one := login(t, server)
		p := t.TempDir() + "/lock"
		l, err := one.Lock(ctx, p, []byte("one"))
		testutil.Must(t, err)
		pids, ended := forked(t, one, t.TempDir())
		data, err := os.ReadFile(p + ".session")
		testutil.Must(t, err)
		// A stopped sshd forwards no beats, so the shell that holds the lock misses them.
		sshd, _ := strconv.Atoi(strings.Fields(string(data))[3])
		testutil.Must(t, syscall.Kill(sshd, syscall.SIGSTOP))
		testutil.Eventually(t, "the silent one's connection is ended", func() bool { return !runs(sshd) })
		two := login(t, server)
		var l2 host.Lock
		testutil.Eventually(t, "the lock is taken", func() bool { l2, err = two.Lock(ctx, p, []byte("two")); return err == nil })
		wantDead(t, "when the next has the lock", pids, ended)
		<-l.Lost()
		if err := l2.Close(); err != nil {
			t.Error(err)
		}
	})
}
