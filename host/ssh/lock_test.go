package ssh_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/local"
	"github.com/bowline-k8s/bowline/host/ssh"
	"github.com/bowline-k8s/bowline/host/ssh/internal/shtest"
	"github.com/bowline-k8s/bowline/host/ssh/sshtest"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestLockSessionDies: when the lock's process ends, the lock is lost at once and free.
func TestLockSessionDies(t *testing.T) {
	ctx := context.Background()
	tr := &shtest.Transport{}
	h := open(t, ssh.Config{Transport: tr})
	closeHost(t, h)
	p := t.TempDir() + "/lock"
	l, err := h.Lock(ctx, p, []byte("one"))
	testutil.Must(t, err)
	sessions := tr.Sessions()
	sessions[len(sessions)-1].Process.Kill()
	testutil.Receive(t, l.Lost(), patience, "the lock is not lost")
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	again, err := h.Lock(ctx, p, []byte("two"))
	testutil.Must(t, err)
	if err := again.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(p + ".session"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the record of the session stays: %v", err)
	}
}

// TestTakeover: Takeover ends the session of another driver and nothing else.
func TestTakeover(t *testing.T) {
	ctx := context.Background()
	one, two := open(t, ssh.Config{}), open(t, ssh.Config{})
	closeHost(t, one)
	closeHost(t, two)
	p := t.TempDir() + "/lock"
	if err := two.Takeover(ctx, p); err != nil {
		t.Errorf("of no lock: %v", err)
	}
	l, err := one.Lock(ctx, p, []byte("one"))
	testutil.Must(t, err)
	if _, err := two.Lock(ctx, p, []byte("two")); !errors.Is(err, host.ErrLocked) {
		t.Fatalf("error %v", err)
	}
	testutil.Must(t, two.Takeover(ctx, p))
	testutil.Receive(t, l.Lost(), patience, "the former driver keeps its lock")
	l2, err := two.Lock(ctx, p, []byte("two"))
	testutil.Must(t, err)
	// A record that names another process kills no process.
	victim := exec.Command("sleep", "1000")
	testutil.Must(t, victim.Start())
	defer func() { victim.Process.Kill(); victim.Wait() }()
	stat := testutil.ReadFile(t, fmt.Sprintf("/proc/%d/stat", victim.Process.Pid))
	_, rest, _ := strings.Cut(string(stat), ") ")
	testutil.Must(t, os.WriteFile(p+".session", fmt.Appendf(nil, "v1 %d %s 0 0\n", victim.Process.Pid, strings.Fields(rest)[19]), 0o600))
	if err := one.Takeover(ctx, p); err == nil {
		t.Error("a lock was taken over from an unknown process")
	}
	if err := victim.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the victim: %v", err)
	}
	if err := l2.Close(); err != nil {
		t.Error(err)
	}
	near, err := local.New(local.Config{})
	testutil.Must(t, err)
	l3, err := near.Lock(ctx, p, []byte("near"))
	testutil.Must(t, err)
	defer l3.Close()
	os.Remove(p + ".session")
	if err := one.Takeover(ctx, p); err == nil {
		t.Error("a lock of host/local was taken over")
	}
}

// TestLockBesideAnotherRecord: a record of a session that this version cannot read may name a
// connection that still acts on the host, so no lock is taken beside it and the record stays. A power
// cut can leave a record of zero bytes, which names none.
func TestLockBesideAnotherRecord(t *testing.T) {
	h := open(t, ssh.Config{})
	p := t.TempDir() + "/lock"
	for record, want := range map[string]string{
		"":                                   "",
		"\x00\x00\x00\x00":                   "",
		"v1 2 3 0 0\n":                       "",
		"v2 2 3 0 0 more\n":                  "has version v2, and this version of Bowline reads v1",
		"2 3 0 0\n":                          "does not name a process",
		"v1 2 3 0\n":                         "does not name a process",
		"v1 2 3 0 x\n":                       "does not name a process",
		"* * * * *\n":                        "does not name a process",
		strings.Repeat("v1 ", 20_000) + "\n": "does not name a process",
	} {
		testutil.Must(t, os.WriteFile(p+".session", []byte(record), 0o600))
		l, err := h.Lock(t.Context(), p, []byte("one"))
		if want == "" {
			testutil.Must(t, err)
			testutil.Must(t, l.Close())
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: error %v, want %q", record, err, want)
		}
		if now := testutil.ReadFile(t, p+".session"); string(now) != record {
			t.Errorf("%.20q became %.20q", record, now)
		}
	}
}

// TestLockPaused: a driver whose beats do not arrive loses the lock on its own side before the
// host releases it.
func TestLockPaused(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 15 s")
	}
	t.Parallel()
	ctx := context.Background()
	tr := &shtest.Transport{}
	one, two := open(t, ssh.Config{Transport: tr}), open(t, ssh.Config{})
	closeHost(t, one)
	closeHost(t, two)
	p := t.TempDir() + "/lock"
	l, err := one.Lock(ctx, p, []byte("one"))
	testutil.Must(t, err)
	sessions := tr.Sessions()
	sessions[len(sessions)-1].Process.Signal(syscall.SIGSTOP) // no answers from now on
	began := time.Now()
	testutil.Receive(t, l.Lost(), patience, "the lock is not lost")
	if took := time.Since(began); took < 5*time.Second || took > 15*time.Second {
		t.Errorf("lost after %s", took)
	}
	sessions[len(sessions)-1].Process.Signal(syscall.SIGCONT)
	testutil.Eventually(t, "the lock is free", func() bool {
		l2, err := two.Lock(ctx, p, []byte("two"))
		if err == nil {
			err = l2.Close()
		}
		return err == nil
	})
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// A lock that is removed while it is held leaves no file beside it.
func TestLockRemoved(t *testing.T) {
	ctx := context.Background()
	h := open(t, ssh.Config{})
	closeHost(t, h)
	dir := t.TempDir() + "/own"
	l, err := h.Lock(ctx, dir+"/lock", []byte("us"))
	testutil.Must(t, err)
	for _, p := range []string{dir + "/lock", dir} {
		if err := h.Remove(ctx, p); err != nil {
			t.Error(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something stays: %v", err)
	}
}

// TestLockShells: a lock is kept, and given back, by bash and by a host's shell where there is no
// bash; bash starts no process for a beat.
func TestLockShells(t *testing.T) {
	t.Parallel()
	without := t.TempDir()
	for _, dir := range []string{"/usr/bin", "/bin", "/usr/sbin"} {
		tools, err := os.ReadDir(dir)
		testutil.Must(t, err)
		for _, tool := range tools {
			if tool.Name() != "bash" {
				_ = os.Symlink(dir+"/"+tool.Name(), without+"/"+tool.Name()) // it may be there already
			}
		}
	}
	for name, c := range map[string]struct{ path, comm string }{"bash": {"", "bash"}, "no bash": {without, "sh"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			tr := &shtest.Transport{}
			h := open(t, ssh.Config{Transport: tr, Path: c.path})
			closeHost(t, h)
			p := t.TempDir() + "/lock"
			l, err := h.Lock(ctx, p, []byte("us"))
			testutil.Must(t, err)
			sessions := tr.Sessions()
			pid := sessions[len(sessions)-1].Process.Pid
			if comm := strings.TrimSpace(string(testutil.ReadFile(t, fmt.Sprintf("/proc/%d/comm", pid)))); comm != c.comm {
				t.Errorf("%s keeps the lock", comm)
			}
			children := func() string { return string(testutil.ReadFile(t, fmt.Sprintf("/proc/%d/task/%[1]d/children", pid))) }
			if c.comm == "bash" {
				if started := children(); started != "" {
					t.Errorf("bash waits for a process: %s", started)
				}
			} else {
				first := children()
				testutil.Eventually(t, "a beat was answered", func() bool { now := children(); return now != "" && now != first })
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
			if data := testutil.ReadFile(t, p); len(data) > 0 {
				t.Errorf("the lock's file keeps %q", data)
			}
			if _, err := os.Stat(p + ".session"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the record of the session stays: %v", err)
			}
		})
	}
}

// TestLockReadsNoStartupFile: sshd starts the login's shell, which may read ~/.bashrc, for each
// session. The bash that keeps the lock does not read it once more: it may take seconds, and it may
// read from standard input.
func TestLockReadsNoStartupFile(t *testing.T) {
	t.Parallel()
	server := sshtest.Run(t)
	h := login(t, server)
	// Each bash that reads the file leaves a line: its process and its parent's name.
	readers := filepath.Join(server.Dir, "readers")
	text := "read -r parent </proc/$PPID/comm\necho \"$$ $parent\" >>" + readers + "\n"
	testutil.Must(t, os.WriteFile(filepath.Join(server.Dir, ".bashrc"), []byte(text), 0o600))
	l, err := h.Lock(patiently(t), t.TempDir()+"/lock", []byte("us"))
	testutil.Must(t, err)
	testutil.Must(t, l.Close())
	seen := map[string]bool{}
	for line := range strings.Lines(string(testutil.ReadFile(t, readers))) {
		if !strings.Contains(line, " sshd") || seen[line] {
			t.Errorf("a bash other than the login's shell reads .bashrc: process and parent are %s", line)
		}
		seen[line] = true
	}
}
