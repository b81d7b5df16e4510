package ssh_test

import (
	"context"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/local"
	"github.com/bowline-k8s/bowline/host/ssh"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// BenchmarkWriteTree writes 1 MiB in 1000 keys, with host/ssh and host/local.
func BenchmarkWriteTree(b *testing.B) {
	ctx := context.Background()
	near, err := local.New(local.Config{})
	testutil.Must(b, err)
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
					testutil.Must(b, h.WriteTree(ctx, dir, tree(n, keys)))
				}
			})
			b.Run(fmt.Sprintf("same/%d/%s", keys, name), func(b *testing.B) {
				dir := b.TempDir()
				for b.Loop() {
					testutil.Must(b, h.WriteTree(ctx, dir, tree(0, keys)))
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
	testutil.Must(b, h.WriteFile(ctx, p, []byte("content"), 0o644))
	f, err := h.Open(ctx, p)
	testutil.Must(b, err)
	defer f.Close()
	cgroup, n := "/bowline-bench", 0
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
		"MakeDirs": func() error {
			n++
			_, err := h.Make(ctx, host.Entry{Path: fmt.Sprintf("%s/d%d/a", d, n), Mode: fs.ModeDir | 0o755}, host.Entry{Path: fmt.Sprintf("%s/d%d/b", d, n), Mode: fs.ModeDir | 0o750})
			return err
		},
		"MakeFiles": func() error {
			n++
			_, err := h.Make(ctx, host.Entry{Path: fmt.Sprintf("%s/f%d/hosts", d, n), Mode: 0o644, Data: []byte("127.0.0.1 localhost\n")}, host.Entry{Path: fmt.Sprintf("%s/f%d/log", d, n), Mode: 0o666})
			return err
		},
		"MkdirAllNew": func() error { n++; return h.MkdirAll(ctx, fmt.Sprintf("%s/m%d/y", d, n), 0o777, nil) },
		"SymlinkNew":  func() error { n++; return h.Symlink(ctx, "x", fmt.Sprintf("%s/l%d", d, n)) },
		"EnsureNew": func() error {
			n++
			return h.EnsureCgroup(ctx, fmt.Sprintf("%s/p%d", cgroup, n), host.CgroupResources{CPUShares: 100, MemoryBytes: 1 << 30})
		},
		"RemoveTreeNew": func() error {
			n++
			if _, err := h.Make(ctx, host.Entry{Path: fmt.Sprintf("%s/r%d/b", d, n), Mode: fs.ModeDir | 0o750}); err != nil {
				return err
			}
			return h.RemoveTree(ctx, fmt.Sprintf("%s/r%d", d, n))
		},
		"WriteTreeToken": func() error {
			n++
			return h.WriteTree(ctx, fmt.Sprintf("%s/t%d", d, n), host.Tree{
				"token": {Data: []byte(strings.Repeat("t", 1000)), Mode: 0o644}, "ca.crt": {Data: []byte(strings.Repeat("c", 1100)), Mode: 0o644},
				"namespace": {Data: []byte("default"), Mode: 0o644}})
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
			before := processes(b)
			for b.Loop() {
				testutil.Must(b, op())
			}
			b.ReportMetric(float64(processes(b)-before)/float64(b.N), "processes/op")
		})
	}
}

// processes returns the number of processes that the kernel has started, of all users.
func processes(b *testing.B) (n int64) {
	b.Helper()
	stat := testutil.ReadFile(b, "/proc/stat")
	_, after, _ := strings.Cut(string(stat), "\nprocesses ")
	if _, err := fmt.Sscan(after, &n); err != nil {
		b.Fatal(err)
	}
	return n
}
