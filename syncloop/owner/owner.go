// Package owner decides which cluster and node a host belongs to, and holds its locks. If two
// drivers collect orphans on one runtime, pods are lost. So a host has one owner at a time:
//
//	<root>/bowline/owner       the owner, across restarts (Record, JSON)
//	<root>/bowline/owner.lock  held while a process manages the host
//	/run/bowline/<socket>.lock held as well, against two roots on one runtime
//	label bowline.io/owner     the owner's stamp, on each of its sandboxes and containers
//
// A refused claim leaves the host as it was.
package owner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/pod"
)

// Host is the part of host.Host that holds the owner file and the locks.
type Host interface {
	ReadFile(ctx context.Context, path string, max int64) ([]byte, error)
	WriteFile(ctx context.Context, path string, data []byte, mode fs.FileMode) error
	Stat(ctx context.Context, path string) (host.FileInfo, error)
	Remove(ctx context.Context, path string) error
	Lock(ctx context.Context, path string, holder []byte) (host.Lock, error)
}

// Runtime lists the sandboxes; this package changes none.
type Runtime interface {
	ListPodSandbox(ctx context.Context, filter *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error)
}

// Config configures a claim.
type Config struct {
	Host    Host
	Runtime Runtime
	RootDir string // on the host, for example /var/lib/kubelet
	// ClusterUID is the cluster's identity on a host that is not a node yet: the UID of the Service
	// default/kubernetes. A host that is a node keeps the identity that it has. If that Service is
	// missing, ClusterUID is empty and Witnesses.Node must be set.
	ClusterUID string
	// Witnesses tell whether the cluster of the owner file is this one.
	Witnesses Witnesses
	// Pods reads the node's pods from the API server. It is called if the witnesses do not decide;
	// nil means that this is not possible.
	Pods      func(context.Context) ([]KnownPod, error)
	NodeName  string
	Instance  string // of this process; changes with each start
	Version   string // of Bowline
	PID       int
	StartedAt time.Time
	// Endpoint is the path of the runtime's socket; if empty, its lock is not taken.
	Endpoint string
	// RunDir is the directory of the endpoint's lock; the default is the constant RunDir.
	RunDir string
	// AllowForeignPods accepts a runtime with pods of a kubelet. Bowline never touches those.
	AllowForeignPods bool
}

func (c *Config) validate() error {
	if c.RunDir == "" {
		c.RunDir = RunDir
	}
	switch {
	case c.Host == nil || c.Runtime == nil:
		return errors.New("claim the host: no host or no runtime")
	case !path.IsAbs(c.RootDir) || !path.IsAbs(c.RunDir):
		return fmt.Errorf("claim the host: directories %q and %q must be absolute", c.RootDir, c.RunDir)
	case c.ClusterUID == "" && c.Witnesses.Node == "" || strings.ContainsAny(c.ClusterUID, "/\n"):
		return fmt.Errorf("claim the host: cluster UID %q", c.ClusterUID)
	case c.NodeName == "" || strings.ContainsAny(c.NodeName, "/\n"):
		return fmt.Errorf("claim the host: node name %q", c.NodeName)
	case c.Instance == "":
		return errors.New("claim the host: no instance")
	}
	return nil
}

func (c *Config) self() Identity      { return Identity{c.ClusterUID, c.NodeName} }
func (c *Config) dir() string         { return path.Join(c.RootDir, "bowline") }
func (c *Config) filePath() string    { return FilePath(c.RootDir) }
func (c *Config) lockPaths() []string { return LockPaths(c.RootDir, c.RunDir, c.Endpoint) }

// RunDir is the default directory of endpoint locks.
const RunDir = "/run/bowline"

// FilePath returns the path of the owner file below a root directory.
func FilePath(rootDir string) string { return path.Join(rootDir, "bowline", "owner") }

// LockPaths returns the locks of a host in the order of taking them: the lock of the root
// directory, and that of the runtime's socket unless socket is empty.
func LockPaths(rootDir, runDir, socket string) []string {
	paths := []string{FilePath(rootDir) + ".lock"}
	if socket != "" {
		name := strings.ReplaceAll(strings.Trim(path.Clean(socket), "/"), "/", "-")
		paths = append(paths, path.Join(runDir, name+".lock"))
	}
	return paths
}

// RefusedError means that the host has another owner. Its text says who the owner is.
type RefusedError struct{ Decision Decision }

func (e *RefusedError) Error() string { return e.Decision.Problem }

// Hint says what to do.
func (e *RefusedError) Hint() string { return e.Decision.Fix }

// HostInUse reports whether someone else has the host, and not only an owner file that cannot be read.
func (e *RefusedError) HostInUse() bool { return e.Decision.Kind != FileUnclear }

const maxRecord = 64 << 10

// Take claims the host. It returns a *RefusedError if the host has another owner. After any other
// error the owner is unknown; the caller may try again.
func Take(ctx context.Context, c Config) (*Claim, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	hadRoot, err := exists(ctx, c.Host, c.RootDir)
	if err != nil {
		return nil, err
	}
	known, err := exists(ctx, c.Host, c.dir())
	if err != nil {
		return nil, err
	}
	if !known {
		// No process holds these locks: look before writing anything.
		if _, _, err := look(ctx, &c, nil); err != nil {
			return nil, err
		}
	}
	claim := &Claim{c: c, removeRoot: !hadRoot, lost: make(chan struct{}), stop: make(chan struct{})}
	record := Record{Identity: c.self(), Witnesses: c.Witnesses, Instance: c.Instance, PID: c.PID, StartedAt: c.StartedAt, Version: c.Version}
	err = func() error {
		for _, p := range c.lockPaths() {
			if err := claim.lock(ctx, p, record.bytes()); err != nil {
				return err
			}
		}
		d, file, err := look(ctx, &c, nil)
		if err != nil {
			return err
		}
		claim.found, claim.c.ClusterUID, record.Identity = d, d.Identity.ClusterUID, d.Identity
		if file != nil {
			record.Witnesses = file.Witnesses.merge(c.Witnesses)
		}
		if err := c.Host.WriteFile(ctx, c.filePath(), record.bytes(), 0o644); err != nil {
			return fmt.Errorf("claim the host: %w", err)
		}
		claim.record = record
		return nil
	}()
	if err != nil {
		claim.removeFiles(ctx)
		return nil, errors.Join(err, claim.close())
	}
	claim.watch()
	return claim, nil
}

func exists(ctx context.Context, h Host, p string) (bool, error) {
	_, err := h.Stat(ctx, p)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("claim the host: %w", err)
	}
	return true, nil
}

// look gathers the evidence and decides. It returns an error unless the decision is Accepted. It
// also returns the owner file if there is one.
func look(ctx context.Context, c *Config, locked *Locked) (Decision, *Record, error) {
	e := Evidence{Self: c.self(), Witnesses: c.Witnesses, AllowForeign: c.AllowForeignPods, Locked: locked, FilePath: c.filePath()}
	if locked == nil {
		data, err := c.Host.ReadFile(ctx, e.FilePath, maxRecord)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case errors.Is(err, host.ErrTooLarge):
			e.FileErr = err
		case err != nil:
			return Decision{}, nil, fmt.Errorf("claim the host: read the owner file: %w", err)
		default:
			e.File, e.FileErr = ParseRecord(data)
		}
		if e.Sandboxes, err = list(ctx, c.Runtime); err != nil {
			return Decision{}, nil, fmt.Errorf("claim the host: %w", err)
		}
	}
	d := Decide(e)
	if c.Pods != nil && (d.Kind == OtherCluster || d.Kind == OtherSandbox || d.Kind == FileUnclear) {
		var err error
		if e.Pods, err = c.Pods(ctx); err != nil {
			return Decision{}, nil, fmt.Errorf("claim the host: %w", err)
		}
		d = Decide(e)
	}
	switch {
	case d.Kind != Accepted:
		return d, nil, &RefusedError{d}
	case d.Identity.ClusterUID == "":
		return d, nil, hint.Add(errors.New("claim the host: the Service default/kubernetes is missing, which identifies the cluster"),
			"wait until the API server has recreated it")
	}
	return d, e.File, nil
}

func list(ctx context.Context, r Runtime) ([]Sandbox, error) {
	all, err := r.ListPodSandbox(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("list the runtime's sandboxes: %w", err)
	}
	return Sandboxes(all), nil
}

// Sandboxes returns the part of the listed sandboxes that a decision needs.
func Sandboxes(all []*runtimeapi.PodSandbox) []Sandbox {
	sandboxes := make([]Sandbox, 0, len(all))
	for _, s := range all {
		uid, kubelet := s.GetLabels()[pod.LabelPodUID]
		sandboxes = append(sandboxes, Sandbox{
			ID:      s.GetId(),
			Pod:     s.GetMetadata().GetNamespace() + "/" + s.GetMetadata().GetName(),
			Stamp:   s.GetLabels()[pod.LabelOwner],
			PodUID:  uid,
			Seen:    s.GetAnnotations()[pod.AnnotationSeen],
			Kubelet: kubelet,
			Ready:   s.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY,
		})
	}
	return sandboxes
}

// Claim is a host that is ours until Release, or until Lost.
type Claim struct {
	c          Config
	found      Decision
	locks      []host.Lock
	paths      []string // of the locks
	removeRoot bool     // we created the root directory

	mu     sync.Mutex
	record Record // the content of the owner file
	over   bool   // released: we may no longer write the file

	lost     chan struct{}
	lostOnce sync.Once
	stop     chan struct{}
	watchers sync.WaitGroup
	released sync.Once
	err      error
}

// Stamp returns the value of pod.LabelOwner for everything that this claim creates.
func (c *Claim) Stamp() string { return c.c.self().Stamp() }

// Found returns the decision at the time of the claim, with its counts of our own and of foreign
// sandboxes.
func (c *Claim) Found() Decision { return c.found }

// Lost is closed when another process may own the host. The caller must stop managing it at once
// and touch nothing.
func (c *Claim) Lost() <-chan struct{} { return c.lost }

func (c *Claim) lock(ctx context.Context, p string, holder []byte) error {
	l, err := c.c.Host.Lock(ctx, p, holder)
	var locked *host.LockedError
	if errors.As(err, &locked) {
		record, _ := ParseRecord(locked.Holder) // nil if the content is not a Record
		_, _, err = look(ctx, &c.c, &Locked{Path: p, Holder: record})
		return err
	}
	if err != nil {
		return fmt.Errorf("claim the host: %w", err)
	}
	c.locks, c.paths = append(c.locks, l), append(c.paths, p)
	return nil
}

// watch closes lost when any lock is lost.
func (c *Claim) watch() {
	for _, l := range c.locks {
		c.watchers.Go(func() {
			select {
			case <-l.Lost():
				c.lostOnce.Do(func() { close(c.lost) })
			case <-c.stop:
			}
		})
	}
}

// Learn records witnesses of the cluster that the driver finds after the claim: the Node of a new node is
// created only then. It writes nothing if they are already recorded.
func (c *Claim) Learn(ctx context.Context, seen Witnesses) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.record.Witnesses.learns(seen) {
		return nil
	}
	select {
	case <-c.lost:
		return ErrNotHeld
	default:
	}
	if c.over {
		return ErrNotHeld
	}
	next := c.record
	next.Witnesses = next.Witnesses.merge(seen)
	if err := c.c.Host.WriteFile(ctx, c.c.filePath(), next.bytes(), 0o644); err != nil {
		return fmt.Errorf("write the owner file: %w", err)
	}
	c.record = next
	return nil
}

// ErrNotHeld is returned by a claim that was lost or released.
var ErrNotHeld = errors.New("the host's lock is not held any more")

// Release gives the host back. If nothing of ours is left on the runtime, it also removes the owner
// file; otherwise the file stays and keeps others away from our pods. A lost claim only closes its
// locks. Release may be called twice.
func (c *Claim) Release(ctx context.Context) error {
	c.released.Do(func() {
		c.mu.Lock() // the file may be removed below, and the next claim writes it
		c.over = true
		c.mu.Unlock()
		err := c.release(ctx)
		c.err = errors.Join(err, c.close())
	})
	return c.err
}

func (c *Claim) release(ctx context.Context) error {
	select {
	case <-c.lost:
		return nil // the files may belong to another process by now
	default:
	}
	sandboxes, err := list(ctx, c.c.Runtime)
	if err != nil {
		// The runtime may still have our pods: the file stays.
		return fmt.Errorf("release the host: %w", err)
	}
	for _, s := range sandboxes {
		if s.Stamp == c.Stamp() {
			return nil
		}
	}
	if err := c.c.Host.Remove(ctx, c.c.filePath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("release the host: %w", err)
	}
	c.removeFiles(ctx)
	return nil
}

// removeFiles removes the lock files that we hold, and their directories if they are then empty.
// After an error an empty, unlocked file may remain.
func (c *Claim) removeFiles(ctx context.Context) {
	for _, p := range c.paths {
		_ = c.c.Host.Remove(ctx, p)
		_ = c.c.Host.Remove(ctx, path.Dir(p))
	}
	if c.removeRoot {
		_ = c.c.Host.Remove(ctx, c.c.RootDir)
	}
}

func (c *Claim) close() error {
	close(c.stop)
	c.watchers.Wait()
	var errs []error
	for _, l := range c.locks {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}
