package local

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestDeadlineGivesUp: the caller returns at its deadline although the system call hangs, and
// what the call opens later is closed.
func TestDeadlineGivesUp(t *testing.T) {
	h := &Host{name: "test"}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	hang, closed := make(chan struct{}), make(chan struct{})
	_, err := call(h, ctx, "Hang", time.Hour, func(context.Context) (closer, error) {
		<-hang
		return func() error { close(closed); return nil }, nil
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	close(hang)
	testutil.Receive(t, closed, 10*time.Second, "what came too late stays open")
}

// TestDefaultDeadline: without a deadline in the context, that of the operation applies.
func TestDefaultDeadline(t *testing.T) {
	err := run(&Host{name: "test"}, context.Background(), "Hang", 10*time.Millisecond, func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
}

type closer func() error

func (c closer) Close() error { return c() }

// fakeV2 makes a directory with the files of a cgroup2 mount.
func fakeV2(t *testing.T, dirs ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, d := range append([]string{""}, dirs...) {
		p := filepath.Join(root, d)
		testutil.Must(t, os.MkdirAll(p, 0o755))
		for file, content := range map[string]string{"cgroup.controllers": "cpu io memory pids misc\n", "cgroup.subtree_control": "",
			"cpu.weight": "100\n", "cpu.max": "max 100000\n", "memory.max": "max\n", "pids.max": "max\n"} {
			testutil.Must(t, os.WriteFile(filepath.Join(p, file), []byte(content), 0o644))
		}
	}
	return root
}

func TestEnsureV2(t *testing.T) {
	root := fakeV2(t, "kubepods", "kubepods/pod1")
	r := host.CgroupResources{CPUShares: 1024, CPUQuotaUS: 20_000, MemoryBytes: 1 << 20, PidsMax: 7, HugePageBytes: map[string]int64{"2MB": 1}}
	testutil.Must(t, ensureV2(root, "/kubepods/pod1", r))
	for file, want := range map[string]string{
		"cgroup.subtree_control": "+cpu +io +memory +pids", "kubepods/cgroup.subtree_control": "+cpu +io +memory +pids",
		"kubepods/pod1/cgroup.subtree_control": "", "kubepods/pod1/cpu.weight": "39", "kubepods/pod1/cpu.max": "20000 100000",
		"kubepods/pod1/memory.max": "1048576", "kubepods/pod1/pids.max": "7", "kubepods/memory.max": "max\n",
	} {
		got, err := os.ReadFile(filepath.Join(root, file))
		// A plain file keeps the tail of longer content; cgroupfs does not.
		if err != nil || !strings.HasPrefix(string(got), want) || want == "" && len(got) > 0 {
			t.Errorf("%s holds %q, %v; want %q", file, got, err, want)
		}
	}
	// The parents of pod cgroups: the limit of all pods, and a share that changes.
	root = fakeV2(t, "kubepods", "kubepods/burstable", "kubepods/pod1")
	for _, c := range []struct {
		path string
		r    host.CgroupResources
	}{
		{"/kubepods", host.CgroupResources{CPUShares: 2048, MemoryBytes: 7 << 30, PidsMax: 32768}},
		{"/kubepods/burstable", host.CgroupResources{CPUShares: 3072}},
		{"/kubepods/burstable", host.CgroupResources{CPUShares: 100_000}},
	} {
		testutil.Must(t, ensureV2(root, c.path, c.r))
	}
	for file, want := range map[string]string{"kubepods/cpu.weight": "79", "kubepods/memory.max": "7516192768", "kubepods/pids.max": "32768",
		"kubepods/burstable/cpu.weight": "3815", "kubepods/burstable/memory.max": "max\n", "kubepods/cgroup.subtree_control": "+cpu +io +memory +pids"} {
		got, err := os.ReadFile(filepath.Join(root, file))
		if err != nil || !strings.HasPrefix(string(got), want) {
			t.Errorf("%s holds %q, %v; want %q", file, got, err, want)
		}
	}
	testutil.Must(t, os.WriteFile(filepath.Join(root, "kubepods/pod1/cgroup.controllers"), []byte("pids"), 0o644))
	if err := ensureV2(root, "/kubepods/pod1", r); err == nil || !strings.Contains(err.Error(), "cpu controller") {
		t.Errorf("without the cpu controller: %v", err)
	}
}

// TestOpenDirAt: with and without openat2, the walk refuses links and does not create missing
// directories.
func TestOpenDirAt(t *testing.T) {
	dir := t.TempDir()
	testutil.Must(t, errors.Join(os.Mkdir(dir+"/d", 0o755), os.Symlink("d", dir+"/l"), os.Symlink("/etc", dir+"/out")))
	parent, err := os.Open(dir)
	testutil.Must(t, err)
	defer parent.Close()
	for how, open := range map[string]func(name string) (*os.File, error){
		"new": func(name string) (*os.File, error) { return openDirAt(int(parent.Fd()), name, name) },
		"old": func(name string) (*os.File, error) {
			fd, err := openDirAtOld(int(parent.Fd()), name, openDirFlags)
			return os.NewFile(uintptr(fd), name), err
		},
	} {
		f, err := open("d")
		if err != nil {
			t.Fatalf("%s: %v", how, err)
		}
		f.Close()
		for _, link := range []string{"l", "out"} {
			if _, err := open(link); err == nil {
				t.Errorf("%s: the link %s was followed", how, link)
			}
		}
		if _, err := open("none"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: missing: %v", how, err)
		}
	}
	proc, err := os.Open("/")
	testutil.Must(t, err)
	defer proc.Close()
	if _, err := openDirAt(int(proc.Fd()), "proc", "/proc"); !errors.Is(err, host.ErrMountInside) {
		t.Errorf("a mount was entered: %v", err)
	}
	if _, err := openDirAtOld(int(proc.Fd()), "proc", openDirFlags); !errors.Is(err, unix.EXDEV) {
		t.Errorf("a mount was entered: %v", err)
	}
}

// TestLockOfRemovedFile: a lock on a file that its path no longer names would exclude no other
// process, so it is not taken.
func TestLockOfRemovedFile(t *testing.T) {
	h := &Host{name: "test", lockCheck: time.Hour}
	p := filepath.Join(t.TempDir(), "lock")
	f, err := os.Create(p)
	testutil.Must(t, err)
	defer f.Close()
	testutil.Must(t, os.Rename(p, p+".moved"))
	for _, replaced := range []bool{false, true} {
		if replaced {
			testutil.Must(t, os.WriteFile(p, nil, 0o600))
		}
		l, again, err := h.take(context.Background(), f, p, nil)
		if l != nil || !again || err != nil {
			t.Errorf("replaced %v: %v, %v, %v", replaced, l, again, err)
		}
	}
}
