// Package eviction measures the free resources of the host, sets the node's pressure conditions, and evicts
// pods so that the host stays usable: the kubelet's evictionManager. Package evictionpolicy decides; this
// package measures and acts. While the host cannot be measured, no condition changes and no pod is
// evicted.
package eviction

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/logonce"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/eviction/evictionpolicy"
)

// Runtime is the part of *cri.Client that the manager needs.
type Runtime interface {
	ImageFsInfo(ctx context.Context) (*runtimeapi.ImageFsInfoResponse, error)
	ListContainerStats(ctx context.Context, sandboxID string) ([]*runtimeapi.ContainerStats, error)
	ListPodSandboxStats(ctx context.Context) ([]*runtimeapi.PodSandboxStats, error)
}

// Pods is the sync loop, as the manager sees it.
type Pods interface {
	// Active returns the pods that run or may run, and that do not terminate yet.
	Active() []*v1.Pod
	// Evict terminates the pod, with the message as reason of the eviction. disrupted adds the
	// condition DisruptionTarget.
	Evict(p *v1.Pod, grace time.Duration, message string, disrupted bool, annotations map[string]string)
	// Over reports whether nothing of the pod runs any more.
	Over(p *v1.Pod) bool
	// Spared reports whether the pod is never evicted.
	Spared(p *v1.Pod) bool
}

// Host is the part of host.Meters that the manager needs.
type Host interface {
	Measure(ctx context.Context, cgroup string, paths ...string) (host.Measured, error)
	DiskUsage(ctx context.Context, dirs ...string) ([]host.Usage, error)
}

// Config configures a Manager.
type Config struct {
	Host    Host
	Runtime Runtime
	Pods    Pods
	// Event records an event on the node; Condition sets one of its pressure conditions.
	Event     func(kind, reason, message string)
	Condition func(c v1.NodeConditionType, pressed bool)
	// Reclaim removes unused objects from the image file system: containers of pods that have
	// ended, then images.
	Reclaim func(ctx context.Context) error

	// Evicted is called for each pod that is evicted, with the signal that was too low, or the
	// evictionpolicy.Limit that the pod exceeded; nil: no one needs it.
	Evicted func(signal string)
	// Decided is called for each signal whose threshold was met when a pod is chosen, with the age of
	// its measurement; nil: no one needs it.
	Decided func(signal string, age time.Duration)

	// Measured receives each measurement; nil: no one needs it.
	Measured func(ctx context.Context, m host.Measured)

	RootDir string                 // of pods' volumes, on the host
	LogDir  func(p *v1.Pod) string // of the logs of the pod's containers

	Thresholds []pod.Threshold
	// PodsCgroup is the cgroup of all pods, named for the cgroup driver that the runtime has now.
	// What is left of its limit is pod.AllocatableMemory. Empty: that signal is not measured.
	PodsCgroup func() string
	// MaxGrace bounds the grace period of a pod that is evicted for a soft threshold.
	MaxGrace time.Duration
	// Transition is how long a condition stays True after its cause has gone.
	Transition time.Duration
}

const (
	// Period is how often the host is measured.
	Period = 10 * time.Second
	// hardGrace is the grace period of a pod that is evicted for a hard threshold or for its own
	// limit.
	hardGrace = time.Second
	// endPatience is how long an evicted pod may take to end before the host is measured again.
	endPatience = 30 * time.Second
	// walkShare and longestPause keep the walks through the directories of pods with disk limits to
	// a small part of the host's time: the pause after a walk is walkShare times its duration, at
	// most longestPause.
	walkShare    = 50
	longestPause = time.Minute
	// mountPeriod is the interval at which the manager asks the runtime for the mount point of its
	// image file system.
	mountPeriod = 10 * time.Minute
)

// Manager watches one host.
type Manager struct {
	cfg Config

	mu         sync.Mutex
	conditions []v1.NodeConditionType

	// Only Run uses these:
	state    evictionpolicy.State
	reported map[v1.NodeConditionType]bool
	images   string // mount point of the runtime's images
	imagesAt time.Time
	walkAt   time.Time            // when pods with disk limits are measured again
	ending   map[types.UID]ending // pods that were evicted, and had not ended when last looked at
}

// ending is an evicted pod that has not ended.
type ending struct {
	grace time.Duration // grace period that it got
	until time.Time     // when it should have ended
}

// New returns a Manager; Run starts its work.
func New(c Config) (*Manager, error) {
	switch {
	case c.Host == nil, c.Runtime == nil, c.Pods == nil, c.Event == nil, c.Condition == nil, c.Reclaim == nil, c.LogDir == nil, c.PodsCgroup == nil:
		return nil, errors.New("eviction: Host, Runtime, Pods, Event, Condition, Reclaim, LogDir and PodsCgroup are required")
	case !path.IsAbs(c.RootDir):
		return nil, fmt.Errorf("eviction: RootDir %q is not absolute", c.RootDir)
	}
	return &Manager{cfg: c, reported: map[v1.NodeConditionType]bool{}, ending: map[types.UID]ending{}}, nil
}

// Conditions returns the pressure conditions that are True now.
func (m *Manager) Conditions() []v1.NodeConditionType {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.conditions
}

// Run measures and evicts until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	var failure logonce.Failure
	for {
		evicted, err := m.look(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case failure.Changed(err) && err != nil:
			klog.FromContext(ctx).Error(err, "Failed to measure the host's free resources; no eviction is decided")
		}
		if len(evicted) > 0 {
			m.await(ctx, evicted)
			continue
		}
		if !sleep(ctx, Period) {
			return nil
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// await gives evicted pods time to end, so that the next measurement includes the resources that they free.
func (m *Manager) await(ctx context.Context, pods []*v1.Pod) {
	for until := time.Now().Add(endPatience); time.Now().Before(until); {
		if !sleep(ctx, time.Second) || !slices.ContainsFunc(pods, func(p *v1.Pod) bool { return !m.cfg.Pods.Over(p) }) {
			return
		}
	}
}

// look measures once, updates the conditions, and evicts only if a threshold requires it. It
// returns the evicted pods.
func (m *Manager) look(ctx context.Context) ([]*v1.Pod, error) {
	began := time.Now()
	seen, ownImageFs, err := m.measure(ctx)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	var r evictionpolicy.Result
	m.state, r = evictionpolicy.Step(m.state, m.cfg.Thresholds, seen, now, m.cfg.Transition)
	m.report(r.Conditions)
	evicted, err := m.limits(ctx, now, ownImageFs)
	switch {
	case errors.Is(err, host.ErrUnreachable):
		return nil, err
	case err != nil: // node pressure matters more
		klog.FromContext(ctx).Error(err, "Failed to measure the local storage of pods with limits")
	case len(evicted) > 0:
		return evicted, nil
	}
	if len(r.Due) == 0 {
		return nil, nil
	}
	first := r.Due[0]
	what := evictionpolicy.ResourceOf(first.Signal)
	klog.FromContext(ctx).Info("Reclaiming a resource under pressure", "resource", what, "signal", first.Signal, "threshold", first.Amount.String(), "available", seen[first.Signal].Available)
	m.cfg.Event(v1.EventTypeWarning, "EvictionThresholdMet", "Attempting to reclaim "+string(what))
	if ofImages(first.Signal, ownImageFs) {
		if err := m.cfg.Reclaim(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to remove all unused images")
		}
		began = time.Now()
		if seen, ownImageFs, err = m.measure(ctx); err != nil {
			return nil, err
		}
		if evictionpolicy.Enough(m.cfg.Thresholds, seen) {
			return nil, nil
		}
	}
	return m.evict(ctx, r.Due, seen, began, ownImageFs)
}

// ofImages reports whether removing images frees the resource of the signal.
func ofImages(s pod.Signal, ownImageFs bool) bool {
	switch s {
	case pod.ImageFsAvailable, pod.ImageFsInodesFree:
		return true
	case pod.NodeFsAvailable, pod.NodeFsInodesFree:
		return !ownImageFs
	}
	return false
}

// evict evicts the first pod in the ranking that may be evicted. seen was measured at the time measured.
func (m *Manager) evict(ctx context.Context, due []pod.Threshold, seen evictionpolicy.Observations, measured time.Time, ownImageFs bool) ([]*v1.Pod, error) {
	first := due[0]
	what := evictionpolicy.ResourceOf(first.Signal)
	active := m.cfg.Pods.Active()
	usages, err := m.usages(ctx, active, what != v1.ResourceMemory && first.Signal != pod.PIDAvailable, first.Signal == pod.PIDAvailable, true)
	if err != nil {
		return nil, err
	}
	maps.DeleteFunc(m.ending, func(uid types.UID, _ ending) bool {
		return !slices.ContainsFunc(active, func(p *v1.Pod) bool { return p.UID == uid })
	})
	now := time.Now()
	if m.cfg.Decided != nil && len(active) > 0 {
		for _, t := range due {
			m.cfg.Decided(string(t.Signal), now.Sub(measured))
		}
	}
	// One due hard threshold of the resource is enough. The kubelet goes by whichever of them comes
	// first.
	soft := !slices.ContainsFunc(due, func(t pod.Threshold) bool { return !t.Soft && evictionpolicy.ResourceOf(t.Signal) == what })
	for _, e := range m.ending {
		if soft && now.Before(e.until) {
			return nil, nil // one is terminating already, within the grace period that it got
		}
	}
	for _, p := range evictionpolicy.Rank(active, usages, first.Signal, ownImageFs) {
		if m.cfg.Pods.Spared(p) {
			klog.FromContext(ctx).Info("Skipped evicting a critical pod", "pod", klog.KObj(p))
			continue
		}
		grace := hardGrace
		if soft {
			grace = m.cfg.MaxGrace
			if s := p.Spec.TerminationGracePeriodSeconds; s != nil {
				grace = min(grace, time.Duration(*s)*time.Second)
			}
		}
		// A pod that is terminating already is evicted again only with a shorter grace period.
		if e, ok := m.ending[p.UID]; ok && grace >= e.grace {
			if now.Before(e.until) {
				return nil, nil
			}
			// The kubelet would choose it again and again, and never another.
			klog.FromContext(ctx).Info("Evicting another pod; the evicted one has not stopped", "pod", klog.KObj(p))
			continue
		}
		message, notes := evictionpolicy.Message(p, usages[string(p.UID)], due, seen)
		m.cfg.Pods.Evict(p, grace, message, true, notes)
		m.evicted(string(first.Signal))
		m.ending[p.UID] = ending{grace: grace, until: now.Add(max(grace*3/2, endPatience))}
		return []*v1.Pod{p}, nil
	}
	klog.FromContext(ctx).Error(nil, "Found no pod to evict", "resource", what)
	return nil, nil
}

func (m *Manager) evicted(signal string) {
	if m.cfg.Evicted != nil {
		m.cfg.Evicted(signal)
	}
}

// limits evicts the pods that exceed their own limits on disk usage.
func (m *Manager) limits(ctx context.Context, now time.Time, ownImageFs bool) ([]*v1.Pod, error) {
	if now.Before(m.walkAt) {
		return nil, nil
	}
	limited := slices.DeleteFunc(m.cfg.Pods.Active(), func(p *v1.Pod) bool { return !evictionpolicy.Limited(p) })
	if len(limited) == 0 {
		return nil, nil
	}
	usages, err := m.usages(ctx, limited, true, false, false)
	m.walkAt = time.Now().Add(min(walkShare*time.Since(now), longestPause))
	if err != nil {
		return nil, err
	}
	var evicted []*v1.Pod
	for _, p := range limited {
		if limit, why := evictionpolicy.Exceeded(p, usages[string(p.UID)], ownImageFs); limit != "" && !m.cfg.Pods.Spared(p) {
			m.cfg.Pods.Evict(p, hardGrace, why, false, nil)
			m.evicted(string(limit))
			evicted = append(evicted, p)
		}
	}
	return evicted, nil
}

// report stores the conditions and reports those that changed.
func (m *Manager) report(conditions []v1.NodeConditionType) {
	m.mu.Lock()
	m.conditions = conditions
	m.mu.Unlock()
	for _, c := range []v1.NodeConditionType{v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure} {
		pressed := slices.Contains(conditions, c)
		if before, ever := m.reported[c]; !ever || before != pressed {
			m.reported[c] = pressed
			m.cfg.Condition(c, pressed)
		}
	}
}

// measure reads every signal, and reports whether images have a file system of their own.
func (m *Manager) measure(ctx context.Context) (evictionpolicy.Observations, bool, error) {
	if m.images == "" || time.Since(m.imagesAt) > mountPeriod {
		info, err := m.cfg.Runtime.ImageFsInfo(ctx)
		if err != nil {
			return nil, false, fmt.Errorf("read the runtime's image file system: %w", err)
		}
		m.images, m.imagesAt = m.cfg.RootDir, time.Now()
		for _, fs := range info.GetImageFilesystems() {
			if at := fs.GetFsId().GetMountpoint(); at != "" {
				m.images = at
				break
			}
		}
	}
	got, err := m.cfg.Host.Measure(ctx, m.cfg.PodsCgroup(), m.cfg.RootDir, m.images)
	if err != nil {
		return nil, false, err
	}
	if m.cfg.Measured != nil {
		m.cfg.Measured(ctx, got)
	}
	node, images := got.FileSystems[0], got.FileSystems[1]
	seen := evictionpolicy.Observations{
		pod.MemoryAvailable:  {Available: got.MemoryBytes - got.WorkingSetBytes, Capacity: got.MemoryBytes},
		pod.NodeFsAvailable:  {Available: node.FreeBytes, Capacity: node.Bytes},
		pod.ImageFsAvailable: {Available: images.FreeBytes, Capacity: images.Bytes},
	}
	// A file system such as btrfs does not count inodes and cannot run out of them.
	if node.Inodes > 0 {
		seen[pod.NodeFsInodesFree] = evictionpolicy.Observation{Available: node.InodesFree, Capacity: node.Inodes}
	}
	if images.Inodes > 0 {
		seen[pod.ImageFsInodesFree] = evictionpolicy.Observation{Available: images.InodesFree, Capacity: images.Inodes}
	}
	if got.CgroupBytes > 0 {
		seen[pod.AllocatableMemory] = evictionpolicy.Observation{Available: got.CgroupBytes - got.CgroupWorkingSetBytes, Capacity: got.CgroupBytes}
	}
	if got.PidsMax > 0 && got.Pids > 0 {
		seen[pod.PIDAvailable] = evictionpolicy.Observation{Available: got.PidsMax - got.Pids, Capacity: got.PidsMax}
	}
	return seen, node.Device != images.Device, nil
}
