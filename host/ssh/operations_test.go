package ssh_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/ssh"
	"github.com/bowline-k8s/bowline/host/ssh/internal/shtest"
	"github.com/bowline-k8s/bowline/host/ssh/link"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// patience is enough for a very busy host.
const patience = time.Minute

func closeHost(t testing.TB, h *ssh.Host) {
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestConfigIsChecked(t *testing.T) {
	tr := &shtest.Transport{}
	for _, c := range []ssh.Config{{}, {Name: "x"}, {Transport: tr}, {Name: "x", Transport: tr, CgroupRoot: "y"},
		{Name: "x", Transport: tr, RootDir: "/x/../y"}} {
		if _, err := ssh.New(context.Background(), c); err == nil {
			t.Errorf("%+v was taken", c)
		}
	}
	if n := len(tr.Sessions()); n != 0 {
		t.Errorf("%d sessions", n)
	}
}

// TestMissingTools: one error lists all missing tools and names the host.
func TestMissingTools(t *testing.T) {
	dir := t.TempDir()
	for _, tool := range []string{"cat", "dd", "timeout", "id", "grep", "sh"} {
		p, err := exec.LookPath(tool)
		if err != nil {
			t.Skip(err)
		}
		testutil.Must(t, os.Symlink(p, filepath.Join(dir, tool)))
	}
	_, err := ssh.New(context.Background(), ssh.Config{Name: "bare.example", Transport: &shtest.Transport{}, Path: dir})
	if err == nil || errors.Is(err, host.ErrUnreachable) {
		t.Fatalf("error %v", err)
	}
	for _, part := range []string{"bare.example", "flock", "stat", "xargs", dir} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%s is not in %q", part, err)
		}
	}
	os.Remove(filepath.Join(dir, "timeout"))
	_, err = ssh.New(context.Background(), ssh.Config{Name: "bare.example", Transport: &shtest.Transport{}, Path: dir})
	if err == nil || !strings.Contains(err.Error(), "timeout is not to be found") {
		t.Errorf("error %v", err)
	}
}

// TestHook: every operation passes through the hook with its label and a deadline, and does not
// run if the hook does not call it.
func TestHook(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	var mu sync.Mutex
	seen := map[string]bool{}
	fault := errors.New("injected")
	inject := false
	h := open(t, ssh.Config{Hook: func(ctx context.Context, label string, call func(context.Context) error) error {
		if _, has := ctx.Deadline(); !has {
			t.Errorf("%s has no deadline", label)
		}
		mu.Lock()
		seen[label] = true
		mu.Unlock()
		if inject {
			return fault
		}
		return call(ctx)
	}})
	closeHost(t, h)
	inject = true
	file := dir + "/file"
	for name, op := range map[string]func() error{
		"WriteFile": func() error { return h.WriteFile(ctx, file, []byte("x"), 0o644) },
		"ReadFile":  func() error { _, err := h.ReadFile(ctx, file, 10); return err },
		"ReadTail":  func() error { _, err := h.ReadTail(ctx, file, 10); return err },
		"WriteTree": func() error { return h.WriteTree(ctx, dir+"/t", host.Tree{}) },
		"MkdirAll":  func() error { return h.MkdirAll(ctx, dir+"/d", 0o755, nil) },
		"Make": func() error {
			_, err := h.Make(ctx, host.Entry{Path: dir + "/made", Mode: fs.ModeDir | 0o755})
			return err
		},
		"Symlink":      func() error { return h.Symlink(ctx, "x", dir+"/l") },
		"Stat":         func() error { _, err := h.Stat(ctx, file); return err },
		"List":         func() error { _, err := h.List(ctx, dir); return err },
		"Remove":       func() error { return h.Remove(ctx, file) },
		"RemoveTree":   func() error { return h.RemoveTree(ctx, dir) },
		"ChownGroup":   func() error { return h.ChownGroup(ctx, dir, 0, true) },
		"Open":         func() error { _, err := h.Open(ctx, file); return err },
		"Mount":        func() error { return h.Mount(ctx, host.Mount{Source: "tmpfs", Target: dir, Type: "tmpfs"}) },
		"Unmount":      func() error { return h.Unmount(ctx, dir) },
		"ListMounts":   func() error { _, err := h.ListMounts(ctx, dir); return err },
		"BindSubPath":  func() error { return h.BindSubPath(ctx, host.SubPath{Root: dir, Path: "x", Target: dir + "/t"}) },
		"EnsureCgroup": func() error { return h.EnsureCgroup(ctx, "/bowline-x", host.CgroupResources{}) },
		"RemoveCgroup": func() error { return h.RemoveCgroup(ctx, "/bowline-x", true) },
		"ListCgroups":  func() error { _, err := h.ListCgroups(ctx, "/"); return err },
		"Run": func() error {
			_, err := h.Run(ctx, host.Command{Args: []string{"touch", dir + "/ran"}, Timeout: time.Minute})
			return err
		},
		"Start":       func() error { _, err := h.Start(ctx, "touch", dir+"/started"); return err },
		"Facts":       func() error { _, err := h.Facts(ctx); return err },
		"ClockOffset": func() error { _, _, err := h.ClockOffset(ctx); return err },
		"Lock":        func() error { _, err := h.Lock(ctx, dir+"/lock", nil); return err },
		"Takeover":    func() error { return h.Takeover(ctx, dir+"/lock") },
		"Listen":      func() error { _, err := h.Listen(ctx, "unix", dir+"/s"); return err },
		"Dial":        func() error { _, err := h.Dial(ctx, "unix", dir+"/s"); return err },
	} {
		clear(seen)
		if err := op(); !errors.Is(err, fault) || !seen["host/"+name] {
			t.Errorf("%s: %v, the hook saw %v", name, err, seen)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("the hook was passed by: %v, %v", left, err)
	}
}

// TestErrors: messages of tools become the errors that a system call would return, and name the
// host.
func TestErrors(t *testing.T) {
	ctx := context.Background()
	h := open(t, ssh.Config{})
	closeHost(t, h)
	d := t.TempDir()
	os.WriteFile(d+"/file", nil, 0o600)
	os.MkdirAll(d+"/full/x", 0o755)
	for name, c := range map[string]struct{ got, want error }{
		"missing":      {h.Remove(ctx, d+"/none"), fs.ErrNotExist},
		"not empty":    {h.Remove(ctx, d+"/full"), syscall.ENOTEMPTY},
		"below a file": {h.MkdirAll(ctx, d+"/file/x", 0o755, nil), syscall.ENOTDIR},
		"write below":  {h.WriteFile(ctx, d+"/file/x", nil, 0o644), syscall.ENOTDIR},
		"long name":    {h.MkdirAll(ctx, d+"/"+strings.Repeat("n", 300), 0o755, nil), syscall.ENAMETOOLONG},
	} {
		if !errors.Is(c.got, c.want) || !strings.Contains(c.got.Error(), h.Name()) {
			t.Errorf("%s: %v, want %v", name, c.got, c.want)
		}
	}
	_, err := h.Run(ctx, host.Command{Args: []string{"no-such-program"}, Timeout: time.Minute})
	if !errors.Is(err, fs.ErrNotExist) || errors.Is(err, host.ErrUnreachable) {
		t.Errorf("a missing program: %v", err)
	}
	_, err = h.Run(ctx, host.Command{Args: []string{"true"}, Dir: d + "/none", Timeout: time.Minute})
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing directory: %v", err)
	}
}

// TestUnreachable: a failed link is distinguished from an answer.
func TestUnreachable(t *testing.T) {
	ctx := context.Background()
	tr := &shtest.Transport{}
	h := open(t, ssh.Config{Transport: tr})
	p := t.TempDir() + "/started"
	done := make(chan error, 1)
	go func() {
		_, err := h.Run(ctx, host.Command{Args: []string{"sh", "-c", `: >"$1"; sleep 1000`, "sh", p}, Timeout: 3 * time.Second})
		done <- err
	}()
	testutil.Eventually(t, "the command runs", func() bool { _, err := os.Stat(p); return err == nil })
	tr.Close()
	if err := <-done; !errors.Is(err, host.ErrUnreachable) {
		t.Errorf("error %v", err)
	}
	h.Close()
	if _, err := h.Stat(ctx, "/"); !errors.Is(err, host.ErrUnreachable) {
		t.Errorf("after Close: %v", err)
	}
}

// split counts the programs of each connection.
type split struct {
	shtest.Transport
	control, bulk atomic.Int64
}

func (s *split) Start(ctx context.Context, command string) (link.Session, error) {
	s.control.Add(1)
	return s.Transport.Start(ctx, command)
}

func (s *split) StartBulk(ctx context.Context, command string) (link.Session, error) {
	s.bulk.Add(1)
	return s.Transport.Start(ctx, command)
}

// TestStartedProgramIsBulk: a program may print gigabytes, such as a journal. On the control connection
// they would delay the keepalives and the calls of the runtime.
func TestStartedProgramIsBulk(t *testing.T) {
	tr := &split{}
	h := open(t, ssh.Config{Transport: tr})
	closeHost(t, h)
	before := tr.control.Load()
	p, err := h.Start(t.Context(), "echo", "the journal")
	testutil.Must(t, err)
	defer p.Close()
	if all, err := io.ReadAll(p); err != nil || string(all) != "the journal\n" {
		t.Errorf("it printed %q, %v", all, err)
	}
	if control, bulk := tr.control.Load()-before, tr.bulk.Load(); control != 0 || bulk != 1 {
		t.Errorf("%d programs on the control connection, %d on the bulk one", control, bulk)
	}
}

// TestStartedProgramUnreachable: when the connection ends, the program does not count as ended.
func TestStartedProgramUnreachable(t *testing.T) {
	tr := &shtest.Transport{}
	h := open(t, ssh.Config{Transport: tr})
	p, err := h.Start(context.Background(), "cat")
	testutil.Must(t, err)
	if _, err := p.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	tr.Close()
	if _, err := p.Read(make([]byte, 1)); !errors.Is(err, host.ErrUnreachable) {
		t.Errorf("error %v", err)
	}
	h.Close()
}

// TestNothingSecretInArguments: no process has payload in its arguments.
func TestNothingSecretInArguments(t *testing.T) {
	ctx := context.Background()
	h := open(t, ssh.Config{})
	closeHost(t, h)
	d := t.TempDir()
	const secret = "correct-horse-battery-staple"
	stop, found := make(chan struct{}), make(chan string, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
			for _, f := range files {
				if data, err := os.ReadFile(f); err == nil && strings.Contains(string(data), secret) {
					select {
					case found <- string(data):
					default:
					}
				}
			}
		}
	})
	for range 20 {
		if err := errors.Join(
			h.WriteFile(ctx, d+"/f", []byte(secret), 0o600),
			h.WriteTree(ctx, d+"/t", host.Tree{"a": {Data: []byte(secret + fmt.Sprint(rand.Int64())), Mode: 0o600}}),
		); err != nil {
			t.Fatal(err)
		}
		if _, err := h.Run(ctx, host.Command{Args: []string{"sleep", "0.01"}, Env: []string{"SECRET=" + secret}, Stdin: []byte(secret), Timeout: time.Minute}); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	wg.Wait()
	select {
	case args := <-found:
		t.Errorf("seen in %q", args)
	default:
	}
}

// TestListenReplacesADeadSocket, and leaves a live one.
func TestListenReplacesADeadSocket(t *testing.T) {
	ctx := context.Background()
	h := open(t, ssh.Config{})
	closeHost(t, h)
	p := t.TempDir() + "/s"
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	testutil.Must(t, err)
	testutil.Must(t, errors.Join(syscall.Bind(fd, &syscall.SockaddrUnix{Name: p}), syscall.Close(fd)))
	l, err := h.Listen(ctx, "unix", p)
	testutil.Must(t, err)
	defer l.Close()
	if second, err := h.Listen(ctx, "unix", p); err == nil {
		second.Close()
		t.Error("a live socket was replaced")
	}
}

// TestSudo: commands run with sudo, and so do ranged reads, because SFTP would run as the login
// user.
func TestSudo(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	fake := "#!/bin/sh\n[ \"$1\" = -n ] || exit 1\nshift\necho run >>" + dir + "/sudo.log\nexec \"$@\"\n"
	testutil.Must(t, os.WriteFile(dir+"/sudo", []byte(fake), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	tr := &shtest.Transport{}
	h := open(t, ssh.Config{Transport: tr, Sudo: true})
	closeHost(t, h)
	p := dir + "/file"
	testutil.Must(t, h.WriteFile(ctx, p, []byte("content"), 0o600))
	f, err := h.Open(ctx, p)
	testutil.Must(t, err)
	defer f.Close()
	buf := make([]byte, 4)
	if n, err := f.ReadAt(buf, 3); err != nil || string(buf[:n]) != "tent" {
		t.Errorf("read %q, %v", buf[:n], err)
	}
	l, err := h.Lock(ctx, dir+"/lock", nil)
	testutil.Must(t, err)
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	log, err := os.ReadFile(dir + "/sudo.log")
	if n := len(tr.Sessions()); err != nil || strings.Count(string(log), "run\n") != n || n != 2 {
		t.Errorf("%d sessions, by sudo: %q, %v", n, log, err)
	}
}
