package local_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/hosttest"
	"github.com/bowline-k8s/bowline/host/local"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

func config() local.Config { return local.Config{LockCheck: 20 * time.Millisecond} }

func TestMain(m *testing.M) {
	hosttest.Main(m, func() (host.Host, error) { return local.New(config()) })
}

func open(t *testing.T, c local.Config) host.Host {
	t.Helper()
	h, err := local.New(c)
	testutil.Must(t, err)
	return h
}

func TestSuite(t *testing.T) {
	hosttest.Run(t, func(t *testing.T) host.Host { return open(t, config()) }, filepath.Join(t.TempDir(), "host"))
}

func TestLongRoots(t *testing.T) {
	hosttest.LongRoots(t, func(t *testing.T) host.Host { return open(t, config()) }, filepath.Join(t.TempDir(), "host"))
}

func TestSuiteBelowACgroupRoot(t *testing.T) {
	c := config()
	c.CgroupRoot = "/bowline-local-test/root"
	h := open(t, c)
	t.Cleanup(func() {
		if err := open(t, config()).RemoveCgroup(context.Background(), "/bowline-local-test", false); err != nil {
			t.Error(err)
		}
	})
	if err := h.EnsureCgroup(context.Background(), "/kubepods/x", host.CgroupResources{}); err != nil {
		t.Skipf("this machine lets us make no cgroup: %v", err)
	}
	for path, want := range map[string]string{"/": "kubepods", "/kubepods": "x"} {
		if got, err := h.ListCgroups(context.Background(), path); err != nil || strings.Join(got, " ") != want {
			t.Errorf("children of %s are %q, %v", path, got, err)
		}
	}
	if got, err := open(t, config()).ListCgroups(context.Background(), "/bowline-local-test/root"); err != nil || strings.Join(got, " ") != "kubepods" {
		t.Errorf("seen without the root: %q, %v", got, err)
	}
}

func TestConfigIsChecked(t *testing.T) {
	for _, c := range []local.Config{{CgroupRoot: "x"}, {CgroupRoot: "/x/../y"}, {RootDir: "x/"}, {LockCheck: -1}} {
		if _, err := local.New(c); err == nil {
			t.Errorf("%+v was taken", c)
		}
	}
}

// TestHook: every operation passes through the hook with its label and a deadline. It does not
// run if the hook does not call it, and it runs if the hook withholds the result.
func TestHook(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	var mu sync.Mutex
	seen := map[string]bool{}
	fault := errors.New("injected")
	mode := "pass"
	h := open(t, local.Config{LockCheck: time.Second, Hook: func(ctx context.Context, label string, call func(context.Context) error) error {
		mu.Lock()
		defer mu.Unlock()
		seen[label] = true
		if _, ok := ctx.Deadline(); !ok {
			t.Errorf("%s has no deadline", label)
		}
		switch mode {
		case "before":
			return fault
		case "after":
			return errors.Join(call(ctx), fault)
		}
		return call(ctx)
	}})
	file := dir + "/file"
	ops := map[string]func() error{
		"WriteFile": func() error { return h.WriteFile(ctx, file, []byte("x"), 0o644) },
		"ReadFile":  func() error { _, err := h.ReadFile(ctx, file, 10); return err },
		"ReadTail":  func() error { _, err := h.ReadTail(ctx, file, 10); return err },
		"WriteTree": func() error { return h.WriteTree(ctx, dir+"/tree", host.Tree{"a": {Mode: 0o644}}) },
		"MkdirAll":  func() error { return h.MkdirAll(ctx, dir+"/d", 0o755, nil) },
		"Make": func() error {
			_, err := h.Make(ctx, host.Entry{Path: dir + "/made", Mode: fs.ModeDir | 0o755})
			return err
		},
		"Symlink":    func() error { return h.Symlink(ctx, "x", dir+"/l") },
		"Stat":       func() error { _, err := h.Stat(ctx, file); return err },
		"List":       func() error { _, err := h.List(ctx, dir); return err },
		"Remove":     func() error { return h.Remove(ctx, dir+"/l") },
		"RemoveTree": func() error { return h.RemoveTree(ctx, dir+"/d") },
		"ChownGroup": func() error { return h.ChownGroup(ctx, dir+"/tree", int64(os.Getgid()), true) },
		"Open":       func() error { f, err := h.Open(ctx, file); closeAll(f); return err },
		"Mount": func() error {
			return unprivileged(h.Mount(ctx, host.Mount{Source: "x", Target: file + "/x", Type: "tmpfs"}))
		},
		"Unmount":    func() error { return h.Unmount(ctx, dir+"/d") },
		"ListMounts": func() error { _, err := h.ListMounts(ctx, dir); return err },
		"BindSubPath": func() error {
			return unprivileged(h.BindSubPath(ctx, host.SubPath{Root: file, Path: "x", Target: dir + "/t"}))
		},
		"EnsureCgroup": func() error { return unprivileged(h.EnsureCgroup(ctx, "/", host.CgroupResources{})) },
		"RemoveCgroup": func() error { return unprivileged(h.RemoveCgroup(ctx, "/", true)) },
		"ListCgroups":  func() error { _, err := h.ListCgroups(ctx, "/none-of-bowline"); return unprivileged(err) },
		"Run": func() error {
			_, err := h.Run(ctx, host.Command{Args: []string{"true"}, Timeout: time.Minute})
			return err
		},
		"Start":       func() error { p, err := h.Start(ctx, "cat"); closeAll(p); return err },
		"Facts":       func() error { _, err := h.Facts(ctx); return err },
		"ClockOffset": func() error { _, _, err := h.ClockOffset(ctx); return err },
		"Lock":        func() error { l, err := h.Lock(ctx, dir+"/lock", nil); closeAll(l); return err },
		"Listen":      func() error { l, err := h.Listen(ctx, "unix", dir+"/s"); closeAll(l); return err },
	}
	order := []string{"WriteFile", "ReadFile", "ReadTail", "WriteTree", "MkdirAll", "Make", "Symlink", "Stat", "List", "Remove", "RemoveTree",
		"ChownGroup", "Open", "Mount", "Unmount", "ListMounts", "BindSubPath", "EnsureCgroup", "RemoveCgroup", "ListCgroups", "Run", "Start", "Facts",
		"ClockOffset", "Lock", "Listen"}
	if len(order) != len(ops) {
		t.Fatalf("%d in order, %d operations", len(order), len(ops))
	}
	for _, mode = range []string{"before", "pass", "after", "pass"} {
		for _, name := range order {
			clear(seen)
			err := ops[name]()
			if !seen["host/"+name] {
				t.Errorf("%s: the hook saw %v", name, seen)
			}
			if injected := mode != "pass"; injected != errors.Is(err, fault) || !injected && err != nil {
				t.Errorf("%s, hook %s: %v", name, mode, err)
			}
		}
		if _, err := os.Stat(file); (err == nil) == (mode == "before") {
			t.Errorf("hook %s: the file: %v", mode, err)
		}
	}
}

// closeAll closes what an operation opened, if anything.
func closeAll(c interface{ Close() error }) {
	if c != nil {
		c.Close()
	}
}

// unprivileged drops errors of the operation itself, which are expected; only an injected fault
// counts.
func unprivileged(err error) error {
	if err != nil && strings.Contains(err.Error(), "injected") {
		return err
	}
	return nil
}
