package ssh_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/local"
	"github.com/bowline-k8s/bowline/host/ssh"
	"github.com/bowline-k8s/bowline/host/ssh/internal/shtest"
)

const patience = 20 * time.Second

// eventually polls until cond holds.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline, tick := time.After(patience), time.NewTicker(5*time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-deadline:
			t.Fatalf("not yet: %s", what)
		case <-tick.C:
		}
	}
}

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

// TestMissingTools: one error lists them all and names the machine.
func TestMissingTools(t *testing.T) {
	dir := t.TempDir()
	for _, tool := range []string{"cat", "dd", "timeout", "id", "grep", "sh"} {
		p, err := exec.LookPath(tool)
		if err != nil {
			t.Skip(err)
		}
		if err := os.Symlink(p, filepath.Join(dir, tool)); err != nil {
			t.Fatal(err)
		}
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

// TestHook: every operation passes the hook under its label and with a deadline, and
// is not done where the hook does not call it.
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
		"WriteFile":    func() error { return h.WriteFile(ctx, file, []byte("x"), 0o644) },
		"ReadFile":     func() error { _, err := h.ReadFile(ctx, file, 10); return err },
		"ReadTail":     func() error { _, err := h.ReadTail(ctx, file, 10); return err },
		"WriteTree":    func() error { return h.WriteTree(ctx, dir+"/t", host.Tree{}) },
		"MkdirAll":     func() error { return h.MkdirAll(ctx, dir+"/d", 0o755, nil) },
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
		"EnsureCgroup": func() error { return h.EnsureCgroup(ctx, "/bowline-x", host.CgroupResources{}) },
		"RemoveCgroup": func() error { return h.RemoveCgroup(ctx, "/bowline-x", true) },
		"ListCgroups":  func() error { _, err := h.ListCgroups(ctx, "/"); return err },
		"Run": func() error {
			_, err := h.Run(ctx, host.Command{Args: []string{"touch", dir + "/ran"}, Timeout: time.Minute})
			return err
		},
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

// TestErrors: what tools say becomes the error that a system call would give, and
// names the machine.
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

// TestUnreachable: a link that fails is told from an answer.
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
	eventually(t, "the command runs", func() bool { _, err := os.Stat(p); return err == nil })
	tr.Close()
	if err := <-done; !errors.Is(err, host.ErrUnreachable) {
		t.Errorf("error %v", err)
	}
	h.Close()
	if _, err := h.Stat(ctx, "/"); !errors.Is(err, host.ErrUnreachable) {
		t.Errorf("after Close: %v", err)
	}
}

// TestNothingSecretInArguments: payload is in the arguments of no process.
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

// TestTreeShellKilled: the writer's shell is killed at random moments; ..data always
// shows one whole version, and the next writer takes the rest away.
func TestTreeShellKilled(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir() + "/volume"
	version := func(n int) host.Tree {
		w := host.Tree{}
		for f := range 20 {
			w[fmt.Sprintf("d%d/f", f)] = host.TreeFile{Data: []byte(strings.Repeat(fmt.Sprintln("version", n), 500)), Mode: 0o644}
		}
		return w
	}
	whole := func() {
		t.Helper()
		contents := map[string]bool{}
		for f := range 20 {
			got, err := os.ReadFile(fmt.Sprintf("%s/..data/d%d/f", dir, f))
			if err != nil {
				t.Fatal(err)
			}
			contents[string(got)] = true
		}
		if len(contents) != 1 {
			t.Fatalf("%d versions are mixed", len(contents))
		}
	}
	survivor := open(t, ssh.Config{})
	closeHost(t, survivor)
	if err := survivor.WriteTree(ctx, dir, version(0)); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := survivor.WriteTree(ctx, dir, version(1)); err != nil {
		t.Fatal(err)
	}
	usual := time.Since(began)
	killed := 0
	for n := range 30 {
		tr := &shtest.Transport{}
		h := open(t, ssh.Config{Transport: tr})
		timer := time.AfterFunc(time.Duration(rand.Int64N(int64(usual))), func() {
			// The loop's children are in groups of their own: the script, too, dies.
			s := tr.Sessions()[0]
			out, _ := exec.Command("pgrep", "-P", fmt.Sprint(s.Process.Pid)).Output()
			s.Process.Kill()
			for _, pid := range strings.Fields(string(out)) {
				exec.Command("kill", "-KILL", "-"+pid).Run()
			}
		})
		if err := h.WriteTree(ctx, dir, version(2+n)); err != nil {
			if !errors.Is(err, host.ErrUnreachable) && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error %v", err)
			}
			killed++
		}
		timer.Stop()
		h.Close()
		whole()
	}
	t.Logf("%d of 30 writers were killed", killed)
	if err := survivor.WriteTree(ctx, dir, version(100)); err != nil {
		t.Fatal(err)
	}
	whole()
	left, err := filepath.Glob(dir + "/..2*")
	if err != nil || len(left) != 1 {
		t.Errorf("versions left: %v, %v", left, err)
	}
}

// TestTreeBytes: all bytes in content and odd names.
func TestTreeBytes(t *testing.T) {
	ctx := context.Background()
	h := open(t, ssh.Config{})
	closeHost(t, h)
	dir := t.TempDir()
	all := make([]byte, 0, 70_000)
	for i := range 70_000 {
		all = append(all, byte(i*7))
	}
	tree := host.Tree{"-n": {Data: []byte("-n"), Mode: 0o640}, "a\nb/it's %s\\": {Data: all, Mode: 0o600}, "ü $(x) `y`": {Data: []byte("%d\\n'#end"), Mode: 0o644},
		"#end": {Mode: 0o644}}
	for range 2 {
		if err := h.WriteTree(ctx, dir, tree); err != nil {
			t.Fatal(err)
		}
		for p, f := range tree {
			if got, err := os.ReadFile(filepath.Join(dir, p)); err != nil || !slices.Equal(got, f.Data) {
				t.Errorf("%q: %d bytes, %v; want %d", p, len(got), err, len(f.Data))
			}
		}
	}
}

// TestChownGroupKeepsSetuid, as the kubelet does.
func TestChownGroupKeepsSetuid(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root gives files away")
	}
	h := open(t, ssh.Config{})
	closeHost(t, h)
	p := t.TempDir() + "/tool"
	if err := errors.Join(os.WriteFile(p, nil, 0o755), os.Chmod(p, 0o755|fs.ModeSetuid)); err != nil {
		t.Fatal(err)
	}
	if err := h.ChownGroup(context.Background(), p, 4321, false); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(p); err != nil || st.Mode() != 0o775|fs.ModeSetuid {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
}

// TestLockSessionDies: the lock is lost at once when its process goes, and free.
func TestLockSessionDies(t *testing.T) {
	ctx := context.Background()
	tr := &shtest.Transport{}
	h := open(t, ssh.Config{Transport: tr})
	closeHost(t, h)
	p := t.TempDir() + "/lock"
	l, err := h.Lock(ctx, p, []byte("one"))
	if err != nil {
		t.Fatal(err)
	}
	sessions := tr.Sessions()
	sessions[len(sessions)-1].Process.Kill()
	select {
	case <-l.Lost():
	case <-time.After(patience):
		t.Fatal("the lock is not lost")
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	again, err := h.Lock(ctx, p, []byte("two"))
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(p + ".session"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the record of the session stays: %v", err)
	}
}

// TestTakeover ends the session of another driver and nothing else.
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
	if err != nil {
		t.Fatal(err)
	}
	if _, err := two.Lock(ctx, p, []byte("two")); !errors.Is(err, host.ErrLocked) {
		t.Fatalf("error %v", err)
	}
	if err := two.Takeover(ctx, p); err != nil {
		t.Fatal(err)
	}
	select {
	case <-l.Lost():
	case <-time.After(patience):
		t.Error("the former driver keeps its lock")
	}
	l2, err := two.Lock(ctx, p, []byte("two"))
	if err != nil {
		t.Fatal(err)
	}
	// A record that names another process kills nobody.
	victim := exec.Command("sleep", "1000")
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { victim.Process.Kill(); victim.Wait() }()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", victim.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	if err := os.WriteFile(p+".session", fmt.Appendf(nil, "%d %s\n", victim.Process.Pid, strings.Fields(rest)[19]), 0o600); err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	l3, err := near.Lock(ctx, p, []byte("near"))
	if err != nil {
		t.Fatal(err)
	}
	defer l3.Close()
	os.Remove(p + ".session")
	if err := one.Takeover(ctx, p); err == nil {
		t.Error("a lock of host/local was taken over")
	}
}

// TestLockPaused: a driver whose beats do not arrive loses the lock on its own side
// before the machine gives it away.
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
	if err != nil {
		t.Fatal(err)
	}
	sessions := tr.Sessions()
	sessions[len(sessions)-1].Process.Signal(syscall.SIGSTOP) // no answers any more
	began := time.Now()
	select {
	case <-l.Lost():
	case <-time.After(patience):
		t.Fatal("the lock is not lost")
	}
	if took := time.Since(began); took < 5*time.Second || took > 12*time.Second {
		t.Errorf("lost after %s", took)
	}
	sessions[len(sessions)-1].Process.Signal(syscall.SIGCONT)
	eventually(t, "the lock is free", func() bool {
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

// TestListenReplacesADeadSocket and leaves a live one.
func TestListenReplacesADeadSocket(t *testing.T) {
	ctx := context.Background()
	h := open(t, ssh.Config{})
	closeHost(t, h)
	p := t.TempDir() + "/s"
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(syscall.Bind(fd, &syscall.SockaddrUnix{Name: p}), syscall.Close(fd)); err != nil {
		t.Fatal(err)
	}
	l, err := h.Listen(ctx, "unix", p)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if second, err := h.Listen(ctx, "unix", p); err == nil {
		second.Close()
		t.Error("a live socket was replaced")
	}
}

// BenchmarkWriteTree: 1 MiB in 1000 keys, on host/ssh and host/local.
func BenchmarkWriteTree(b *testing.B) {
	ctx := context.Background()
	near, err := local.New(local.Config{})
	if err != nil {
		b.Fatal(err)
	}
	far := open(b, ssh.Config{})
	closeHost(b, far)
	content := strings.Repeat("0123456789abcde\n", 64)
	tree := func(n int, keys int) host.Tree {
		w := host.Tree{}
		for k := range keys {
			w[fmt.Sprintf("key-%d", k)] = host.TreeFile{Data: []byte(fmt.Sprintf("%08d", n) + content[8:]), Mode: 0o644}
		}
		return w
	}
	for name, h := range map[string]host.Host{"local": near, "ssh": far} {
		for _, keys := range []int{3, 1000} {
			b.Run(fmt.Sprintf("changed/%d/%s", keys, name), func(b *testing.B) {
				dir, n := b.TempDir(), 0
				for b.Loop() {
					n++
					if err := h.WriteTree(ctx, dir, tree(n, keys)); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run(fmt.Sprintf("same/%d/%s", keys, name), func(b *testing.B) {
				dir := b.TempDir()
				for b.Loop() {
					if err := h.WriteTree(ctx, dir, tree(0, keys)); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkOperations(b *testing.B) {
	ctx := context.Background()
	h := open(b, ssh.Config{})
	closeHost(b, h)
	d := b.TempDir()
	p := d + "/file"
	if err := h.WriteFile(ctx, p, []byte("content"), 0o644); err != nil {
		b.Fatal(err)
	}
	f, err := h.Open(ctx, p)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	cgroup := "/bowline-bench"
	defer h.RemoveCgroup(ctx, cgroup, true)
	for name, op := range map[string]func() error{
		"Stat":       func() error { _, err := h.Stat(ctx, p); return err },
		"List":       func() error { _, err := h.List(ctx, d); return err },
		"ReadFile":   func() error { _, err := h.ReadFile(ctx, p, 100); return err },
		"ReadTail":   func() error { _, err := h.ReadTail(ctx, p, 100); return err },
		"WriteFile":  func() error { return h.WriteFile(ctx, p, []byte("content"), 0o644) },
		"MkdirAll":   func() error { return h.MkdirAll(ctx, d+"/x/y", 0o755, nil) },
		"Symlink":    func() error { return h.Symlink(ctx, "x", d+"/l") },
		"RemoveTree": func() error { return h.RemoveTree(ctx, d+"/none") },
		"ListMounts": func() error { _, err := h.ListMounts(ctx, d); return err },
		"Unmount":    func() error { return h.Unmount(ctx, d) },
		"Ensure": func() error {
			return h.EnsureCgroup(ctx, cgroup, host.CgroupResources{CPUShares: 100, MemoryBytes: 1 << 30})
		},
		"Facts": func() error { _, err := h.Facts(ctx); return err },
		"Run": func() error {
			_, err := h.Run(ctx, host.Command{Args: []string{"true"}, Timeout: time.Minute})
			return err
		},
		"ReadAt": func() error { _, err := f.ReadAt(make([]byte, 4), 0); return err },
		"LockAndClose": func() error {
			l, err := h.Lock(ctx, d+"/lock", nil)
			if err == nil {
				err = l.Close()
			}
			return err
		},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if err := op(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
