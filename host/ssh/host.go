package ssh

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/host/internal/machine"
	"github.com/bowline-k8s/bowline/host/ssh/shell"
)

// Deadlines of the operations whose context has none.
const (
	shortDeadline = 10 * time.Second // one file, one cgroup, one dial
	mountDeadline = 30 * time.Second
	treeDeadline  = 2 * time.Minute // trees, and walks whose length depends on the content of pods
)

// Config of a host behind a Transport.
type Config struct {
	// Name is the name of the host in logs and errors. Required.
	Name string
	// Hook sees every operation, by labels such as "host/ReadFile".
	Hook host.Hook
	// CgroupRoot is the parent of every path of the Cgroups methods; "/" by default.
	CgroupRoot string
	// RootDir is the directory whose file system Facts measures; it need not exist.
	// /var/lib/kubelet by default.
	RootDir string
	// Transport is the connection to the host. The Host closes it. Required.
	Transport Transport
	// Sudo runs the commands with "sudo -n", for a login user who is not root. Then commands
	// also read files, and SFTP is not used.
	Sudo bool
	// Relay is the program that opens unix sockets with sudo, for a login user who may not open
	// them; see Rights. None by default.
	Relay string
	// Shell is the path of a POSIX shell on the host; /bin/sh by default.
	Shell string
	// Path is the PATH of the commands; shell.DefaultPath by default.
	Path string
	// Budget counts the output of the host; may be nil.
	Budget *budget.Account
}

func (c *Config) complete() error {
	if c.Name == "" {
		return errors.New("host name is empty")
	}
	if c.Transport == nil {
		return fmt.Errorf("%s: no transport", c.Name)
	}
	if _, ok := relayOf(c.Relay); c.Relay != "" && !ok {
		return fmt.Errorf("%s: there is no relay %q", c.Name, c.Relay)
	}
	if c.CgroupRoot == "" {
		c.CgroupRoot = "/"
	}
	if c.RootDir == "" {
		c.RootDir = "/var/lib/kubelet"
	}
	if !machine.CleanAbs(c.CgroupRoot) {
		return fmt.Errorf("%s: cgroup root %q is not a clean absolute path", c.Name, c.CgroupRoot)
	}
	if !machine.CleanAbs(c.RootDir) {
		return fmt.Errorf("%s: root directory %q is not a clean absolute path", c.Name, c.RootDir)
	}
	if c.Shell == "" {
		c.Shell = "/bin/sh"
	}
	if c.Path == "" {
		c.Path = shell.DefaultPath
	}
	return nil
}

// Host is a host that is reached through a Transport.
type Host struct {
	name       string
	hook       host.Hook
	cgroupRoot string
	rootDir    string
	transport  Transport
	sudo       bool
	relay      string // for unix sockets; may be empty
	shellPath  string
	path       string
	budget     *budget.Account

	shells *shell.Pool
	found  atomic.Pointer[found] // as of the last boot that Facts has seen
	trees  machine.KeyedMutex    // one WriteTree per directory at a time
	files  sftpClient
	held   sync.Map // paths of locks that were taken
	// packs limits Compress to one at a time: each occupies a shell while it runs, and the pool
	// has few.
	packs chan struct{}
}

var _ host.Host = (*Host)(nil)

// New asks the host, in one round trip, for its tools and cgroup mounts. The error lists every
// missing tool.
func New(ctx context.Context, c Config) (*Host, error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	h := &Host{
		name:       c.Name,
		hook:       c.Hook,
		cgroupRoot: c.CgroupRoot,
		rootDir:    c.RootDir,
		transport:  c.Transport,
		sudo:       c.Sudo,
		relay:      c.Relay,
		shellPath:  c.Shell,
		path:       c.Path,
		budget:     c.Budget,
		packs:      make(chan struct{}, 1),
	}
	config := shell.Config{Start: c.Transport.Start, Sudo: c.Sudo, Shell: c.Shell, Path: c.Path, Budget: c.Budget}
	if c.Relay != "" {
		config.Shells = relayShells
	}
	h.shells = shell.NewPool(config)
	err := run(h, ctx, "Probe", mountDeadline, func(ctx context.Context) error {
		f, err := h.probe(ctx)
		h.found.Store(&f)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, h.shells.Close())
	}
	return h, nil
}

func (h *Host) Name() string { return h.name }

func (h *Host) Close() error {
	return errors.Join(h.files.close(), h.shells.Close(), h.transport.Close())
}

func (h *Host) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return call(h, ctx, "Dial", shortDeadline, func(ctx context.Context) (net.Conn, error) {
		switch network {
		case "unix":
			if r, ok := relayOf(h.relay); ok {
				return relayed(ctx, h.transport, r, h.sudo, address, h.budget)
			}
			fallthrough
		case "tcp":
			return h.transport.Dial(ctx, network, address)
		}
		return nil, fmt.Errorf("dial %s %q: networks are \"unix\" and \"tcp\"", network, address)
	})
}

// Listen replaces a unix socket that no process listens on any more.
func (h *Host) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	return call(h, ctx, "Listen", shortDeadline, func(ctx context.Context) (net.Listener, error) {
		if network != "unix" && network != "tcp" {
			return nil, fmt.Errorf("listen on %s %q: networks are \"unix\" and \"tcp\"", network, address)
		}
		l, err := h.transport.Listen(ctx, network, address)
		if err == nil || network != "unix" || errors.Is(err, host.ErrUnreachable) || ctx.Err() != nil {
			return l, err
		}
		if _, goneErr := h.script(ctx, "listen on", address, scriptUnlisten, []string{address}, nil); goneErr != nil {
			return nil, err
		}
		return h.transport.Listen(ctx, network, address)
	})
}

// call runs f under the hook and a deadline. f returns when its context ends.
func call[T any](h *Host, ctx context.Context, label string, deadline time.Duration, f func(context.Context) (T, error)) (T, error) {
	return machine.Call(ctx, h.hook, label, deadline, func(ctx context.Context) (T, error) {
		if err := ctx.Err(); err != nil {
			var none T
			return none, fmt.Errorf("%s: %s: %w", h.name, label, err)
		}
		v, err := f(ctx)
		if err != nil {
			err = fmt.Errorf("%s: %w", h.name, err)
		}
		return v, err
	})
}

// run is call for operations that return nothing.
func run(h *Host, ctx context.Context, label string, deadline time.Duration, f func(context.Context) error) error {
	_, err := call(h, ctx, label, deadline, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, f(ctx)
	})
	return err
}

// script runs one of our scripts and waits for it. A non-zero exit code is an error of op on
// object, which comes with the result.
func (h *Host) script(ctx context.Context, op, object, text string, args []string, stdin []byte) (shell.Result, error) {
	return h.request(ctx, op, object, shell.Request{Script: text, Args: args, Stdin: stdin, Inside: true})
}

// request is script with all options of a request. The default of its limit is the time that ctx
// leaves plus a second, so that this side gives up first.
func (h *Host) request(ctx context.Context, op, object string, r shell.Request) (shell.Result, error) {
	if r.Limit == 0 {
		r.Limit = limitOf(ctx)
	}
	res, err := h.shells.Do(ctx, r)
	if err != nil {
		return res, fmt.Errorf("%s %s: %w", op, object, err)
	}
	if res.Code != 0 {
		return res, failure(op, object, res)
	}
	return res, nil
}

func limitOf(ctx context.Context) time.Duration { return remaining(ctx) + time.Second }

func remaining(ctx context.Context) time.Duration {
	if d, has := ctx.Deadline(); has {
		return max(time.Until(d), time.Second)
	}
	return treeDeadline
}

// failure converts the output of a failed script to an error.
func failure(op, object string, res shell.Result) error {
	if res.Code == 128+9 {
		return fmt.Errorf("%s %s: killed at its time limit: %w", op, object, context.DeadlineExceeded)
	}
	said := messages(res.Stderr)
	if errno := errnoOf(said); errno != nil {
		return &failed{&fs.PathError{Op: op, Path: object, Err: errno}, said}
	}
	return fmt.Errorf("%s %s: exit code %d: %s", op, object, res.Code, said)
}

// failed is an error that a tool reported with the text of strerror(3).
type failed struct {
	err     *fs.PathError
	message string
}

func (f *failed) Error() string { return f.err.Error() + " (" + f.message + ")" }
func (f *failed) Unwrap() error { return f.err }

// temporary is the temporary name, beside p, of a file that will be renamed to p; it cuts a long
// base.
func temporary(p string) string {
	dir, base := path.Split(p)
	if len(base) > 200 {
		base = base[:200]
	}
	return path.Join(dir, "."+base+host.TemporaryMark+newSuffix())
}
