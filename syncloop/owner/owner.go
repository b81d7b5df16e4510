// Package owner decides whose a machine is, and holds it. A runtime that two
// drivers collect orphans from loses pods, so a machine has one owner at a time:
//
//	<root>/bowline/owner       whose it is, over restarts (Record, JSON)
//	<root>/bowline/owner.lock  held while a process drives it
//	/run/bowline/<socket>.lock held as well: two roots on one runtime
//	label bowline.io/owner     on every sandbox and container that is the owner's
//
// A machine that is refused is left as it was found.
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

// Runtime shows the sandboxes; nothing here changes one.
type Runtime interface {
	ListPodSandbox(ctx context.Context, filter *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error)
}

// Config of a claim.
type Config struct {
	Host    Host
	Runtime Runtime
	RootDir string // on the machine, such as /var/lib/kubelet
	// ClusterUID is what a machine that is no node yet will know the cluster by: the UID
	// of the Service default/kubernetes. A machine that is one keeps what it has. Empty
	// where that Service is missing: the Node of Witnesses has to tell then.
	ClusterUID string
	// Witnesses say whether the cluster of the owner file is this one.
	Witnesses Witnesses
	// Pods asks the API server for the pods of the node. It is asked where the witnesses
	// do not tell; nil: it cannot be asked.
	Pods      func(context.Context) ([]KnownPod, error)
	NodeName  string
	Instance  string // of this process; new with each start
	Version   string // of Bowline
	PID       int
	StartedAt time.Time
	// Endpoint is the path of the runtime's socket; empty leaves its lock out.
	Endpoint string
	// RunDir holds the lock of the endpoint; the constant by default.
	RunDir string
	// AllowForeignPods drives a runtime with pods of a kubelet, which are never touched.
	AllowForeignPods bool
}

func (c *Config) validate() error {
	if c.RunDir == "" {
		c.RunDir = RunDir
	}
	switch {
	case c.Host == nil || c.Runtime == nil:
		return errors.New("claim a machine: no host or no runtime")
	case !path.IsAbs(c.RootDir) || !path.IsAbs(c.RunDir):
		return fmt.Errorf("claim a machine: directories %q and %q are to be absolute", c.RootDir, c.RunDir)
	case c.ClusterUID == "" && c.Witnesses.Node == "" || strings.ContainsAny(c.ClusterUID, "/\n"):
		return fmt.Errorf("claim a machine: cluster UID %q", c.ClusterUID)
	case c.NodeName == "" || strings.ContainsAny(c.NodeName, "/\n"):
		return fmt.Errorf("claim a machine: node name %q", c.NodeName)
	case c.Instance == "":
		return errors.New("claim a machine: no instance")
	}
	return nil
}

func (c *Config) self() Identity      { return Identity{c.ClusterUID, c.NodeName} }
func (c *Config) dir() string         { return path.Join(c.RootDir, "bowline") }
func (c *Config) filePath() string    { return FilePath(c.RootDir) }
func (c *Config) lockPaths() []string { return LockPaths(c.RootDir, c.RunDir, c.Endpoint) }

// RunDir is where locks of endpoints are, by default.
const RunDir = "/run/bowline"

// FilePath is the path of the owner file of a root directory.
func FilePath(rootDir string) string { return path.Join(rootDir, "bowline", "owner") }

// LockPaths are the locks of a machine, in the order in which they are taken: of the
// root directory, and of the runtime's socket unless that is empty.
func LockPaths(rootDir, runDir, socket string) []string {
	paths := []string{FilePath(rootDir) + ".lock"}
	if socket != "" {
		name := strings.ReplaceAll(strings.Trim(path.Clean(socket), "/"), "/", "-")
		paths = append(paths, path.Join(runDir, name+".lock"))
	}
	return paths
}

// RefusedError: the machine is somebody else's. Its text is one sentence that
// says whose, and what to do.
type RefusedError struct{ Decision Decision }

func (e *RefusedError) Error() string { return e.Decision.Sentence }

const maxRecord = 64 << 10

// Take claims the machine: a *RefusedError if it is somebody else's; any other
// error says that whose it is could not be found out, and may be tried again.
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
		// Nobody drives it by these locks: look before anything is written.
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
			return fmt.Errorf("claim a machine: %w", err)
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
		return false, fmt.Errorf("claim a machine: %w", err)
	}
	return true, nil
}

// look gathers the evidence and decides; an error unless accepted. It returns the owner
// file too, if there is one.
func look(ctx context.Context, c *Config, locked *Locked) (Decision, *Record, error) {
	e := Evidence{Self: c.self(), Witnesses: c.Witnesses, AllowForeign: c.AllowForeignPods, Locked: locked, FilePath: c.filePath()}
	if locked == nil {
		data, err := c.Host.ReadFile(ctx, e.FilePath, maxRecord)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case errors.Is(err, host.ErrTooLarge):
			e.FileErr = err
		case err != nil:
			return Decision{}, nil, fmt.Errorf("claim a machine: read the owner file: %w", err)
		default:
			e.File, e.FileErr = ParseRecord(data)
		}
		if e.Sandboxes, err = list(ctx, c.Runtime); err != nil {
			return Decision{}, nil, fmt.Errorf("claim a machine: %w", err)
		}
	}
	d := Decide(e)
	if c.Pods != nil && (d.Kind == OtherCluster || d.Kind == OtherSandbox || d.Kind == FileUnclear) {
		var err error
		if e.Pods, err = c.Pods(ctx); err != nil {
			return Decision{}, nil, fmt.Errorf("claim a machine: %w", err)
		}
		d = Decide(e)
	}
	switch {
	case d.Kind != Accepted:
		return d, nil, &RefusedError{d}
	case d.Identity.ClusterUID == "":
		return d, nil, errors.New("claim a machine: the Service default/kubernetes is missing, and a machine that is no node yet has nothing else to know its cluster by; the API server makes it again by itself")
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

// Sandboxes is what a decision knows of those that the runtime lists.
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

// Claim is a machine that is ours until Release, or until Lost.
type Claim struct {
	c          Config
	found      Decision
	locks      []host.Lock
	paths      []string // of locks
	removeRoot bool     // the root directory was not there before us

	mu     sync.Mutex
	record Record // that the owner file has
	over   bool   // released: the file is not ours to write

	lost     chan struct{}
	lostOnce sync.Once
	stop     chan struct{}
	watchers sync.WaitGroup
	released sync.Once
	err      error
}

// Stamp is the value of pod.LabelOwner for everything that this claim creates.
func (c *Claim) Stamp() string { return c.c.self().Stamp() }

// Found is the decision at the time of the claim, with its counts of our own and
// of foreign sandboxes.
func (c *Claim) Found() Decision { return c.found }

// Lost is closed when the machine may be somebody else's: stop driving it at
// once, touch nothing.
func (c *Claim) Lost() <-chan struct{} { return c.lost }

func (c *Claim) lock(ctx context.Context, p string, holder []byte) error {
	l, err := c.c.Host.Lock(ctx, p, holder)
	var locked *host.LockedError
	if errors.As(err, &locked) {
		record, _ := ParseRecord(locked.Holder) // nil if it is not in our words
		_, _, err = look(ctx, &c.c, &Locked{Path: p, Holder: record})
		return err
	}
	if err != nil {
		return fmt.Errorf("claim a machine: %w", err)
	}
	c.locks, c.paths = append(c.locks, l), append(c.paths, p)
	return nil
}

// watch makes one channel of the locks'.
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

// Learn writes down what is seen of the cluster's witnesses after the claim: the Node of
// a machine that becomes one is made only then. It writes nothing where that is known.
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

// ErrNotHeld is of a claim that was lost or released.
var ErrNotHeld = errors.New("the machine is not held any more")

// Release gives the machine back. Where nothing of ours is left on the runtime,
// the owner file goes too; else it stays and keeps others away from our pods.
// A claim that was lost only lets go. It may be called twice.
func (c *Claim) Release(ctx context.Context) error {
	c.released.Do(func() {
		c.mu.Lock() // the file may be removed, and another claim writes it next
		c.over = true
		c.mu.Unlock()
		err := c.giveBack(ctx)
		c.err = errors.Join(err, c.close())
	})
	return c.err
}

func (c *Claim) giveBack(ctx context.Context) error {
	select {
	case <-c.lost:
		return nil // the files may be another's by now
	default:
	}
	sandboxes, err := list(ctx, c.c.Runtime)
	if err != nil {
		// Not known to be empty: the file stays.
		return fmt.Errorf("release the machine: %w", err)
	}
	for _, s := range sandboxes {
		if s.Stamp == c.Stamp() {
			return nil
		}
	}
	if err := c.c.Host.Remove(ctx, c.c.filePath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("release the machine: %w", err)
	}
	c.removeFiles(ctx)
	return nil
}

// removeFiles removes the locks that we hold, and the directories if they are
// empty then. What stays behind on an error is an empty file that nobody holds.
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
