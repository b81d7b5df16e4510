// Package gc removes what our pods left behind: dead containers (the newest of each name is kept
// for its log while its pod exists), sandboxes without a pod, log directories and links, pod
// directories, and cgroups. Package gcpolicy decides; this package observes and acts.
//
// Ownership on the host follows from the records that the volume manager writes before it creates
// anything for a pod: a file under RecordDir, named by the pod's UID. A log directory or cgroup
// whose UID has no record belongs to someone else. The record is removed last, once a look at the
// host and its runtime has found nothing else of the pod.
package gc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/syncloop/gc/gcpolicy"
	"github.com/bowline-k8s/bowline/syncloop/periodic"
)

// Host is the part of host.Host that the sweep needs.
type Host interface {
	List(ctx context.Context, dir string) ([]host.FileInfo, error)
	Remove(ctx context.Context, path string) error
	RemoveTree(ctx context.Context, path string, unmount ...string) error
	ListCgroups(ctx context.Context, path string) ([]string, error)
	RemoveCgroup(ctx context.Context, path string, kill bool) error
}

// Runtime lists and removes sandboxes and containers. After an error, the effect of the call is
// unknown.
type Runtime interface {
	// List returns all sandboxes and containers, including those without our stamp; times are by our
	// clock.
	List(ctx context.Context) ([]gcpolicy.Sandbox, []gcpolicy.Container, error)
	// RemoveContainer removes a dead container; a missing one is no error.
	RemoveContainer(ctx context.Context, id string) error
	// RemoveSandbox stops and removes a sandbox that is not ready; a missing one is no error.
	RemoveSandbox(ctx context.Context, id string) error
	// RemoveRemnants ends the remains of a pod of which the runtime lists nothing any more. left
	// reports whether something younger than minAge remains, which the runtime may be about to list.
	RemoveRemnants(ctx context.Context, uid types.UID, minAge time.Duration) (left bool, err error)
}

// Volumes is the volume manager.
type Volumes interface {
	// Orphans returns the pods of ours that have a directory.
	Orphans(ctx context.Context, records []host.FileInfo) ([]types.UID, error)
	Release(ctx context.Context, uid types.UID) error
}

// Pods reports the pods of the sync loop. Each sweep asks it once, and again before each removal that
// concerns an unknown pod.
type Pods interface {
	// SourcesSeen reports whether every source of pods has been seen once.
	SourcesSeen() bool
	// Known reports whether a worker or a source has the pod.
	Known(uid types.UID) bool
	// Finished reports whether the pod has ended and nothing of it runs again.
	Finished(uid types.UID) bool
}

// Config configures a Sweeper.
type Config struct {
	Host    Host
	Runtime Runtime
	Volumes Volumes
	Pods    Pods
	// Owner is the stamp on our sandboxes and containers (pod.LabelOwner).
	Owner string
	// RecordDir is volume.RecordDir of the root directory.
	RecordDir string
	// LogsRoot is "/var/log/pods", LinksDir is "/var/log/containers".
	LogsRoot, LinksDir string
	// CgroupParents hold the pods' cgroups, named as in host.Cgroups; none means
	// DefaultCgroupParents.
	CgroupParents []string
	// MinAge is the age below which containers and sandboxes of unknown pods stay; 0 means 1 min.
	MinAge time.Duration
	// AfterRemnants is called once after a sweep that requested the removal of remnants, for
	// however many pods; nil does nothing.
	AfterRemnants func()
	// Swept is called after each sweep that could look at everything, with the number of pods whose
	// directories it was to remove, and for how many of them that failed; nil does nothing.
	Swept func(pods, failed int)
	// Period is the interval of Run; 0 means the constant Period.
	Period time.Duration
	// Quiet reports that neither the runtime nor the loop has changed a pod since a time; nil: that is
	// not known. Run then skips a sweep: the lists of an idle host are most of what it sends.
	Quiet func(since time.Time) bool
	// Event records an event on the node; nil: none is recorded.
	Event func(kind, reason, message string)
}

// Period is the interval between two sweeps, as in the kubelet.
const Period = time.Minute

// DefaultCgroupParents are the kubelet's cgroups per QoS class, for both cgroup drivers. Those that
// do not exist count as empty.
var DefaultCgroupParents = []string{
	"/kubepods", "/kubepods/burstable", "/kubepods/besteffort",
	"/kubepods.slice", "/kubepods.slice/kubepods-burstable.slice", "/kubepods.slice/kubepods-besteffort.slice",
}

func (c *Config) validate() error {
	var faults []error
	need := func(ok bool, what string) {
		if !ok {
			faults = append(faults, fmt.Errorf("gc: %s is required", what))
		}
	}
	need(c.Host != nil, "Host")
	need(c.Runtime != nil, "Runtime")
	need(c.Volumes != nil, "Volumes")
	need(c.Pods != nil, "Pods")
	need(c.Owner != "", "Owner")
	need(c.RecordDir != "", "RecordDir")
	need(c.LogsRoot != "", "LogsRoot")
	need(c.LinksDir != "", "LinksDir")
	return errors.Join(faults...)
}

// Sweeper collects garbage, one sweep at a time.
type Sweeper struct {
	cfg  Config
	turn sync.Mutex      // held by the running sweep
	cut  map[string]bool // temporary names that the last sweep saw

	last, before time.Time // when the last two sweeps began
	clean        bool      // the last sweep saw no garbage
	skipped      bool      // Run has skipped a sweep since
}

// New returns a sweeper; it starts nothing.
func New(c Config) (*Sweeper, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	if c.MinAge == 0 {
		c.MinAge = time.Minute
	}
	if c.AfterRemnants == nil {
		c.AfterRemnants = func() {}
	}
	if c.Event == nil {
		c.Event = func(string, string, string) {}
	}
	if c.Swept == nil {
		c.Swept = func(int, int) {}
	}
	if c.Period == 0 {
		c.Period = Period
	}
	if len(c.CgroupParents) == 0 {
		c.CgroupParents = DefaultCgroupParents
	}
	return &Sweeper{cfg: c}, nil
}

// Run sweeps every Period until ctx ends. It logs a failed sweep; the next one retries.
func (s *Sweeper) Run(ctx context.Context) error {
	return periodic.Run(ctx, s.cfg.Period, func(ctx context.Context) error {
		if s.skips() {
			return nil
		}
		result, err := s.Sweep(ctx)
		if !result.Empty() {
			klog.FromContext(ctx).Info("Collected garbage", "containers", result.Containers, "sandboxes", result.Sandboxes,
				"podDirs", result.PodDirs, "logDirs", result.LogDirs, "links", result.Links, "cgroups", result.Cgroups)
		}
		// Like a kubelet, once for each failed sweep; a host out of reach has an event of its own.
		if err != nil && ctx.Err() == nil && !errors.Is(err, host.ErrUnreachable) {
			s.cfg.Event(v1.EventTypeWarning, "ContainerGCFailed", budget.Text(err.Error()))
		}
		return err
	}, func(log klog.Logger, err error) { log.Error(err, "Failed to collect garbage, will retry") })
}

// skips decides whether Run skips a sweep, which it never does twice in a row. Garbage that the last
// sweep found too young to remove came after the sweep before that, so nothing may have changed
// since then.
func (s *Sweeper) skips() bool {
	s.turn.Lock()
	defer s.turn.Unlock()
	s.skipped = !s.skipped && s.clean && !s.before.IsZero() && s.cfg.Quiet != nil && s.cfg.Quiet(s.before)
	return s.skipped
}

// Result counts what one sweep removed.
type Result struct {
	Containers, Sandboxes, PodDirs, LogDirs, Links, Cgroups, Records int
	// PodDirsFailed counts the pods whose directories could not be removed.
	PodDirsFailed int
	// CutOff counts temporary files and links left by interrupted writes.
	CutOff int
	// Foreign counts the sandboxes and containers that are not ours.
	Foreign int
}

// Empty reports whether nothing was removed, not counting Records, PodDirsFailed, CutOff and Foreign.
func (r Result) Empty() bool {
	return r.Containers+r.Sandboxes+r.PodDirs+r.LogDirs+r.Links+r.Cgroups == 0
}

// Sweep looks once and removes the garbage. If any part of the look fails, it removes nothing: what
// was not seen is not known to be gone. A failed removal is returned in the error and does not stop
// the others.
func (s *Sweeper) Sweep(ctx context.Context) (Result, error) {
	s.turn.Lock()
	defer s.turn.Unlock()
	s.last, s.before, s.clean = time.Now(), s.last, false
	in, lists, err := s.look(ctx)
	if err != nil {
		return Result{}, fmt.Errorf("collect garbage: %w", err)
	}
	garbage := gcpolicy.What(in)
	result, err := s.remove(ctx, garbage)
	s.cfg.Swept(result.PodDirs+result.PodDirsFailed, result.PodDirsFailed)
	var cutErr error
	result.CutOff, cutErr = s.cutOff(ctx, lists)
	err = errors.Join(err, cutErr)
	if err != nil {
		err = fmt.Errorf("collect garbage: %w", err)
	}
	s.clean = err == nil && garbage.Empty() && result.CutOff+len(s.cut) == 0
	return result, err
}

// RemoveFinished removes the containers and sandboxes of pods that have ended, although the loop
// still knows them: free disk space is worth more than their last logs and states.
func (s *Sweeper) RemoveFinished(ctx context.Context) error {
	s.turn.Lock()
	defer s.turn.Unlock()
	in := gcpolicy.Input{Owner: s.cfg.Owner, MinAge: s.cfg.MinAge, Known: map[types.UID]bool{}, Finished: map[types.UID]bool{}}
	var err error
	if in.Sandboxes, in.Containers, err = s.cfg.Runtime.List(ctx); err != nil {
		return fmt.Errorf("list what the runtime has: %w", err)
	}
	in.SourcesSeen = s.cfg.Pods.SourcesSeen()
	s.know(&in)
	for uid := range in.Known {
		in.Finished[uid] = in.SourcesSeen && s.cfg.Pods.Finished(uid)
	}
	in.Now = time.Now()
	chosen := gcpolicy.What(in)
	result, err := s.remove(ctx, gcpolicy.Removals{Containers: chosen.Containers, Sandboxes: chosen.Sandboxes})
	if !result.Empty() {
		klog.FromContext(ctx).Info("Removed the containers of ended pods under disk pressure", "containers", result.Containers, "sandboxes", result.Sandboxes)
	}
	return err
}
