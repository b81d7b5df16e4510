package ssh_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/local"
	"github.com/bowline-k8s/bowline/host/ssh"
)

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
