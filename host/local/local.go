// Package local implements host.Host for the local host with system calls. The process must run
// in the mount namespace of the container runtime, which may be another than the initial one.
package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/internal/machine"
)

// Deadlines of the operations whose context has none.
const (
	shortDeadline = 10 * time.Second // one file, one cgroup, one dial
	mountDeadline = 30 * time.Second
	treeDeadline  = 2 * time.Minute // walks whose length depends on the content of pods
)

// Config of a local host. The zero value suits a usual host.
type Config struct {
	// Name is the name of the host in logs and errors; "local" by default.
	Name string
	// Hook sees every operation, by labels such as "host/ReadFile".
	Hook host.Hook
	// CgroupRoot is the parent of every path of the Cgroups methods: a slash path below the
	// mount points of the hierarchies. "/" by default.
	CgroupRoot string
	// RootDir is the directory whose file system Facts measures; it need not exist.
	// /var/lib/kubelet by default.
	RootDir string
	// LockCheck is how often a held lock checks that its path still names its file; 2 s by
	// default.
	LockCheck time.Duration
}

func (c *Config) complete() error {
	if c.Name == "" {
		c.Name = "local"
	}
	if c.CgroupRoot == "" {
		c.CgroupRoot = "/"
	}
	if c.RootDir == "" {
		c.RootDir = "/var/lib/kubelet"
	}
	if c.LockCheck == 0 {
		c.LockCheck = 2 * time.Second
	}
	if !machine.CleanAbs(c.CgroupRoot) {
		return fmt.Errorf("cgroup root %q is not a clean absolute path", c.CgroupRoot)
	}
	if !machine.CleanAbs(c.RootDir) {
		return fmt.Errorf("root directory %q is not a clean absolute path", c.RootDir)
	}
	if c.LockCheck < 0 {
		return fmt.Errorf("lock check interval %s is negative", c.LockCheck)
	}
	return nil
}

// Host is the local host.
type Host struct {
	name       string
	hook       host.Hook
	cgroupRoot string
	rootDir    string
	lockCheck  time.Duration
	asRoot     bool

	trees machine.KeyedMutex // one WriteTree per directory at a time
	hier  machine.Hierarchies

	// beforeBind is called between the check of a subPath and its mount. A test changes the
	// directory there, as a pod could.
	beforeBind func()
}

var _ host.Host = (*Host)(nil)

// New reads the cgroup mounts of the host and starts nothing.
func New(c Config) (host.Host, error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	mounts, err := readMountInfo()
	if err != nil {
		return nil, fmt.Errorf("read the mounts of this machine: %w", err)
	}
	return &Host{
		name:       c.Name,
		hook:       c.Hook,
		cgroupRoot: c.CgroupRoot,
		rootDir:    c.RootDir,
		lockCheck:  c.LockCheck,
		asRoot:     os.Geteuid() == 0,
		hier:       machine.FindHierarchies(mounts),
	}, nil
}

func (h *Host) Name() string { return h.name }

// Close does nothing: there are no connections.
func (h *Host) Close() error { return nil }

// ClockOffset is zero: the host has our clock.
func (h *Host) ClockOffset(ctx context.Context) (time.Duration, time.Duration, error) {
	return 0, 0, run(h, ctx, "ClockOffset", shortDeadline, func(context.Context) error { return nil })
}

func (h *Host) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return call(h, ctx, "Dial", shortDeadline, func(ctx context.Context) (net.Conn, error) {
		switch network {
		case "unix", "tcp":
			var d net.Dialer
			return d.DialContext(ctx, network, address)
		}
		return nil, fmt.Errorf("dial %s %q: networks are \"unix\" and \"tcp\"", network, address)
	})
}

// Listen replaces a unix socket that no process listens on any more.
func (h *Host) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	return call(h, ctx, "Listen", shortDeadline, func(ctx context.Context) (net.Listener, error) {
		var lc net.ListenConfig
		switch network {
		case "tcp":
			return lc.Listen(ctx, network, address)
		case "unix":
			l, err := lc.Listen(ctx, network, address)
			if !errors.Is(err, unix.EADDRINUSE) {
				return l, err
			}
			var d net.Dialer
			c, dialErr := d.DialContext(ctx, network, address)
			if dialErr == nil {
				c.Close()
				return nil, err
			}
			st, statErr := os.Lstat(address)
			if statErr != nil || st.Mode().Type() != fs.ModeSocket || !errors.Is(dialErr, unix.ECONNREFUSED) {
				return nil, err
			}
			if err := os.Remove(address); err != nil {
				return nil, err
			}
			return lc.Listen(ctx, network, address)
		}
		return nil, fmt.Errorf("listen on %s %q: networks are \"unix\" and \"tcp\"", network, address)
	})
}

// call runs f under the hook and a deadline. A system call cannot be interrupted (a dead NFS
// server blocks it for ever), so f runs in its own goroutine. When the deadline expires, the
// caller gets the error of the context and does not know whether f took effect. f checks its
// context between steps, so that it does not continue for long.
func call[T any](h *Host, ctx context.Context, label string, deadline time.Duration, f func(context.Context) (T, error)) (T, error) {
	return machine.Call(ctx, h.hook, label, deadline, func(ctx context.Context) (T, error) {
		var none T
		if err := ctx.Err(); err != nil {
			return none, fmt.Errorf("%s on %s: %w", label, h.name, err)
		}
		type result struct {
			v   T
			err error
		}
		done := make(chan result, 1)
		go func() {
			v, err := f(ctx)
			done <- result{v, err}
		}()
		select {
		case r := <-done:
			return r.v, r.err
		case <-ctx.Done():
			// Prefer a result that arrives at the same moment, and close a late one, so that no
			// descriptor leaks.
			select {
			case r := <-done:
				return r.v, r.err
			default:
			}
			go func() {
				r := <-done
				if c, ok := any(r.v).(interface{ Close() error }); ok && r.err == nil {
					c.Close()
				}
			}()
			return none, fmt.Errorf("%s on %s: %w", label, h.name, ctx.Err())
		}
	})
}

// run is call for operations that return nothing.
func run(h *Host, ctx context.Context, label string, deadline time.Duration, f func(context.Context) error) error {
	_, err := call(h, ctx, label, deadline, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, f(ctx)
	})
	return err
}
