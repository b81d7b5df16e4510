// Package gc takes away what pods of ours left behind: dead containers (one a
// name is kept for its log while its pod exists), sandboxes without a pod, log
// directories and links, pod directories, cgroups. Package choose decides; this
// package looks and acts.
//
// What is ours on the machine is known by the records that the volume manager
// writes before it makes anything of a pod: a file under RecordDir named by the
// pod's UID. A log directory or cgroup whose UID has no record is someone
// else's. The record goes last, when a look at the machine and its runtime has
// found nothing else of its pod.
package gc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/syncloop/gc/choose"
	"github.com/bowline-k8s/bowline/syncloop/regular"
)

// Host is what the sweep needs of a machine; host.Host has it.
type Host interface {
	List(ctx context.Context, dir string) ([]host.FileInfo, error)
	Remove(ctx context.Context, path string) error
	RemoveTree(ctx context.Context, path string) error
	ListCgroups(ctx context.Context, path string) ([]string, error)
	RemoveCgroup(ctx context.Context, path string, kill bool) error
}

// Runtime lists and removes. All errors mean that nothing is known.
type Runtime interface {
	// Everything of the runtime, whosever it is; times by our clock.
	List(ctx context.Context) ([]choose.Sandbox, []choose.Container, error)
	// RemoveContainer of a dead container; none is no error.
	RemoveContainer(ctx context.Context, id string) error
	// RemoveSandbox stops and removes a sandbox that is not ready; none is no error.
	RemoveSandbox(ctx context.Context, id string) error
	// RemoveRemnants ends what the runtime has of a pod beyond what it lists, where
	// it lists nothing any more. It tells whether something younger than minAge
	// stays, which may be about to be listed.
	RemoveRemnants(ctx context.Context, uid types.UID, minAge time.Duration) (left bool, err error)
}

// Volumes is the volume manager.
type Volumes interface {
	// Orphans are the pods of ours that have a directory.
	Orphans(ctx context.Context) ([]types.UID, error)
	Release(ctx context.Context, uid types.UID) error
}

// Pods tells what the loop knows. It is asked once for each sweep, and again
// before each removal that concerns an unknown pod.
type Pods interface {
	// SourcesSeen: every source of pods has been seen once.
	SourcesSeen() bool
	// Known: a worker or a source has the pod.
	Known(uid types.UID) bool
	// Finished: the pod has ended, and nothing of it runs again.
	Finished(uid types.UID) bool
}

// Config of a Sweeper.
type Config struct {
	Host    Host
	Runtime Runtime
	Volumes Volumes
	Pods    Pods
	// Owner is the stamp on sandboxes and containers of ours (pod.LabelOwner).
	Owner string
	// RecordDir is volume.RecordDir of the root directory.
	RecordDir string
	// LogsRoot is "/var/log/pods", LinksDir "/var/log/containers".
	LogsRoot, LinksDir string
	// CgroupParents hold pods' cgroups, as host.Cgroups names them; none means
	// DefaultCgroupParents.
	CgroupParents []string
	// MinAge keeps younger containers and sandboxes of unknown pods; 0 means 1 min.
	MinAge time.Duration
	// AfterRemnants is called once after a sweep has asked for remnants to be removed,
	// of however many pods; nil does nothing.
	AfterRemnants func()
	// Period of Run; 0 means the package's.
	Period time.Duration
}

// Period is the kubelet's between two sweeps.
const Period = time.Minute

// DefaultCgroupParents are the kubelet's, by class of service, under either
// cgroup driver; those that do not exist hold nothing.
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

// Sweeper collects garbage. It sweeps once at a time.
type Sweeper struct {
	cfg  Config
	turn sync.Mutex      // of who sweeps
	cut  map[string]bool // temporary names that the last sweep saw
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
	if c.Period == 0 {
		c.Period = Period
	}
	if len(c.CgroupParents) == 0 {
		c.CgroupParents = DefaultCgroupParents
	}
	return &Sweeper{cfg: c}, nil
}

// Run sweeps every Period until ctx ends. A sweep that failed is logged; the
// next one tries again.
func (s *Sweeper) Run(ctx context.Context) error {
	return regular.Run(ctx, s.cfg.Period, "Could not collect all garbage", func(ctx context.Context) error {
		result, err := s.Sweep(ctx)
		if !result.Empty() {
			klog.FromContext(ctx).Info("Collected garbage", "containers", result.Containers, "sandboxes", result.Sandboxes,
				"podDirs", result.PodDirs, "logDirs", result.LogDirs, "links", result.Links, "cgroups", result.Cgroups)
		}
		return err
	})
}

// Result counts what one sweep removed.
type Result struct {
	Containers, Sandboxes, PodDirs, LogDirs, Links, Cgroups, Records int
	// CutOff counts the temporary files and links of writes that were cut off.
	CutOff int
	// Foreign counts sandboxes and containers seen that are not ours.
	Foreign int
}

// Empty: nothing was removed, records apart.
func (r Result) Empty() bool {
	return r.Containers+r.Sandboxes+r.PodDirs+r.LogDirs+r.Links+r.Cgroups == 0
}

// Sweep looks once and removes what is garbage. If anything cannot be looked at
// it removes nothing: what was not seen is not known to be gone. What cannot be
// removed is told in the error and does not keep the rest from going.
func (s *Sweeper) Sweep(ctx context.Context) (Result, error) {
	s.turn.Lock()
	defer s.turn.Unlock()
	in, err := s.look(ctx)
	if err != nil {
		return Result{}, fmt.Errorf("collect garbage: %w", err)
	}
	result, err := s.remove(ctx, choose.What(in))
	var cutErr error
	result.CutOff, cutErr = s.cutOff(ctx)
	err = errors.Join(err, cutErr)
	if err != nil {
		err = fmt.Errorf("collect garbage: %w", err)
	}
	return result, err
}

// RemoveFinished removes the containers and sandboxes of pods that have ended and that
// somebody still has: their last logs and states, which are less than the machine's disk.
func (s *Sweeper) RemoveFinished(ctx context.Context) error {
	s.turn.Lock()
	defer s.turn.Unlock()
	in := choose.Input{Owner: s.cfg.Owner, MinAge: s.cfg.MinAge, Known: map[types.UID]bool{}, Finished: map[types.UID]bool{}}
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
	chosen := choose.What(in)
	result, err := s.remove(ctx, choose.Removals{Containers: chosen.Containers, Sandboxes: chosen.Sandboxes})
	if !result.Empty() {
		klog.FromContext(ctx).Info("Removed what ended pods had left, as the disk is short", "containers", result.Containers, "sandboxes", result.Sandboxes)
	}
	return err
}
