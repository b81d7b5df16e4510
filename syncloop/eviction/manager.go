// Package eviction watches what is left of the machine, says on the node what it is
// short of, and ends pods so that the machine stays well: the kubelet's evictionManager.
// What it decides is in choose; here it is measured and done. A machine that cannot be
// measured decides nothing: neither a condition changes nor is a pod ended.
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
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/eviction/choose"
)

// Runtime is what the manager asks of the container runtime; *cri.Client has it.
type Runtime interface {
	ImageFsInfo(ctx context.Context) (*runtimeapi.ImageFsInfoResponse, error)
	ListContainerStats(ctx context.Context, sandboxID string) ([]*runtimeapi.ContainerStats, error)
	ListPodSandboxStats(ctx context.Context) ([]*runtimeapi.PodSandboxStats, error)
}

// Pods are the loop, as the manager sees it.
type Pods interface {
	// Active are the pods of which something runs or may run, and that do not end yet.
	Active() []*v1.Pod
	// Evict has a pod ended, which is told as evicted for this reason. disrupted: the
	// pod also gets the condition DisruptionTarget.
	Evict(p *v1.Pod, grace time.Duration, message string, disrupted bool, annotations map[string]string)
	// Over reports whether nothing of the pod runs any more.
	Over(p *v1.Pod) bool
	// Spared reports whether the pod is never evicted.
	Spared(p *v1.Pod) bool
}

// Config of a Manager.
type Config struct {
	Host    host.Meters
	Runtime Runtime
	Pods    Pods
	// Event records an event on the node; Condition sets one of its pressure conditions.
	Event     func(kind, reason, message string)
	Condition func(c v1.NodeConditionType, pressed bool)
	// Reclaim removes what nobody uses from the file system of images: containers of pods
	// that have ended, and then images.
	Reclaim func(ctx context.Context) error

	// Measured is told what was measured; nil: nobody asks.
	Measured func(ctx context.Context, m host.Measured)

	RootDir string                 // of pods' volumes, on the machine
	LogDir  func(p *v1.Pod) string // of its containers' logs

	Thresholds []pod.Threshold
	// PodsCgroup is that of all pods, in the form of the driver that the runtime has now:
	// what is left of its limit is pod.AllocatableMemory. Empty: no threshold is of that.
	PodsCgroup func() string
	// MaxGrace of a pod that is evicted for a soft threshold.
	MaxGrace time.Duration
	// Transition is how long a condition stays after its cause has gone.
	Transition time.Duration
}

const (
	// Period is how often the machine is measured.
	Period = 10 * time.Second
	// hardGrace of a pod that is evicted for a hard threshold.
	hardGrace = time.Second
	// endPatience is how long an evicted pod may take to end before the machine is
	// measured again.
	endPatience = 30 * time.Second
	// walkShare and longestPause keep the walks through limited pods' directories to a
	// small part of the machine's time: the pause after one is so many times its length.
	walkShare    = 50
	longestPause = time.Minute
	// mountPeriod is how often the runtime is asked where its images are.
	mountPeriod = 10 * time.Minute
)

// Manager watches one machine.
type Manager struct {
	cfg Config

	mu         sync.Mutex
	conditions []v1.NodeConditionType

	// Run's alone:
	state    choose.State
	told     map[v1.NodeConditionType]bool
	images   string // where the runtime has its images
	imagesAt time.Time
	walkAt   time.Time            // when limited pods are looked at again
	ending   map[types.UID]ending // that were evicted, and had not ended when last looked at
}

// ending is a pod that was told to end.
type ending struct {
	grace time.Duration // that it was given
	until time.Time     // it is expected to have ended
}

// New makes a Manager; Run drives it.
func New(c Config) (*Manager, error) {
	switch {
	case c.Host == nil, c.Runtime == nil, c.Pods == nil, c.Event == nil, c.Condition == nil, c.Reclaim == nil, c.LogDir == nil, c.PodsCgroup == nil:
		return nil, errors.New("eviction: Host, Runtime, Pods, Event, Condition, Reclaim, LogDir and PodsCgroup are required")
	case !path.IsAbs(c.RootDir):
		return nil, fmt.Errorf("eviction: RootDir %q is not absolute", c.RootDir)
	}
	return &Manager{cfg: c, told: map[v1.NodeConditionType]bool{}, ending: map[types.UID]ending{}}, nil
}

// Conditions are the pressure conditions that are True now.
func (m *Manager) Conditions() []v1.NodeConditionType {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.conditions
}

// Run watches until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	for {
		evicted, err := m.look(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			klog.FromContext(ctx).V(1).Info("What is left of the machine is not known, and nothing is decided", "err", err)
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

// await gives evicted pods the time to end: what they leave is measured then.
func (m *Manager) await(ctx context.Context, pods []*v1.Pod) {
	for until := time.Now().Add(endPatience); time.Now().Before(until); {
		if !sleep(ctx, time.Second) || !slices.ContainsFunc(pods, func(p *v1.Pod) bool { return !m.cfg.Pods.Over(p) }) {
			return
		}
	}
}

// look measures once, says what it finds, and evicts at most what it must.
func (m *Manager) look(ctx context.Context) ([]*v1.Pod, error) {
	seen, ownImageFs, err := m.measure(ctx)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	var r choose.Result
	m.state, r = choose.Step(m.state, m.cfg.Thresholds, seen, now, m.cfg.Transition)
	m.tell(r.Conditions)
	evicted, err := m.limits(ctx, now, ownImageFs)
	switch {
	case errors.Is(err, host.ErrUnreachable):
		return nil, err
	case err != nil: // what the machine is short of matters more
		klog.FromContext(ctx).Info("What pods with limits have on the disk is not known", "err", err)
	case len(evicted) > 0:
		return evicted, nil
	}
	if len(r.Due) == 0 {
		return nil, nil
	}
	first := r.Due[0]
	what := choose.ResourceOf(first.Signal)
	klog.FromContext(ctx).Info("The machine is short of something", "resource", what, "signal", first.Signal, "threshold", first.Amount.String(), "available", seen[first.Signal].Available)
	m.cfg.Event(v1.EventTypeWarning, "EvictionThresholdMet", "Attempting to reclaim "+string(what))
	if ofImages(first.Signal, ownImageFs) {
		if err := m.cfg.Reclaim(ctx); err != nil {
			klog.FromContext(ctx).Info("Unused images could not all be removed", "err", err)
		}
		if seen, ownImageFs, err = m.measure(ctx); err != nil {
			return nil, err
		}
		if choose.Enough(m.cfg.Thresholds, seen) {
			return nil, nil
		}
	}
	return m.evict(ctx, r.Due, seen, ownImageFs)
}

// ofImages: whether removing images gives back what the signal is short of.
func ofImages(s pod.Signal, ownImageFs bool) bool {
	switch s {
	case pod.ImageFsAvailable, pod.ImageFsInodesFree:
		return true
	case pod.NodeFsAvailable, pod.NodeFsInodesFree:
		return !ownImageFs
	}
	return false
}

// evict ends the one pod that gives way first.
func (m *Manager) evict(ctx context.Context, due []pod.Threshold, seen choose.Observations, ownImageFs bool) ([]*v1.Pod, error) {
	first := due[0]
	what := choose.ResourceOf(first.Signal)
	active := m.cfg.Pods.Active()
	usages, err := m.usages(ctx, active, what != v1.ResourceMemory && first.Signal != pod.PIDAvailable, first.Signal == pod.PIDAvailable, true)
	if err != nil {
		return nil, err
	}
	maps.DeleteFunc(m.ending, func(uid types.UID, _ ending) bool {
		return !slices.ContainsFunc(active, func(p *v1.Pod) bool { return p.UID == uid })
	})
	now := time.Now()
	// A kubelet goes by whichever of a resource's thresholds comes first.
	soft := !slices.ContainsFunc(due, func(t pod.Threshold) bool { return !t.Soft && choose.ResourceOf(t.Signal) == what })
	for _, e := range m.ending {
		if soft && now.Before(e.until) {
			return nil, nil // one gives way already, and has the time that it was given
		}
	}
	for _, p := range choose.Rank(active, usages, first.Signal, ownImageFs) {
		if m.cfg.Pods.Spared(p) {
			klog.FromContext(ctx).Info("A critical pod is not evicted", "pod", klog.KObj(p))
			continue
		}
		grace := hardGrace
		if soft {
			grace = m.cfg.MaxGrace
			if s := p.Spec.TerminationGracePeriodSeconds; s != nil {
				grace = min(grace, time.Duration(*s)*time.Second)
			}
		}
		// One that ends already is told again only if it has to hurry.
		if e, told := m.ending[p.UID]; told && grace >= e.grace {
			if now.Before(e.until) {
				return nil, nil
			}
			// A kubelet would choose it again and again, and never another.
			klog.FromContext(ctx).Info("An evicted pod has not ended; another one gives way", "pod", klog.KObj(p))
			continue
		}
		message, notes := choose.Message(p, usages[string(p.UID)], due, seen)
		m.cfg.Pods.Evict(p, grace, message, true, notes)
		m.ending[p.UID] = ending{grace: grace, until: now.Add(max(grace*3/2, endPatience))}
		return []*v1.Pod{p}, nil
	}
	klog.FromContext(ctx).Info("No pod can be evicted", "resource", what)
	return nil, nil
}

// limits evicts the pods that have more on the disk than they may by their own limits.
func (m *Manager) limits(ctx context.Context, now time.Time, ownImageFs bool) ([]*v1.Pod, error) {
	if now.Before(m.walkAt) {
		return nil, nil
	}
	limited := slices.DeleteFunc(m.cfg.Pods.Active(), func(p *v1.Pod) bool { return !choose.Limited(p) })
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
		if why := choose.Exceeded(p, usages[string(p.UID)], ownImageFs); why != "" && !m.cfg.Pods.Spared(p) {
			m.cfg.Pods.Evict(p, hardGrace, why, false, nil)
			evicted = append(evicted, p)
		}
	}
	return evicted, nil
}

// tell says on the node what has changed.
func (m *Manager) tell(conditions []v1.NodeConditionType) {
	m.mu.Lock()
	m.conditions = conditions
	m.mu.Unlock()
	for _, c := range []v1.NodeConditionType{v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure} {
		pressed := slices.Contains(conditions, c)
		if before, ever := m.told[c]; !ever || before != pressed {
			m.told[c] = pressed
			m.cfg.Condition(c, pressed)
		}
	}
}

// measure reads every signal, and whether images have a file system of their own.
func (m *Manager) measure(ctx context.Context) (choose.Observations, bool, error) {
	if m.images == "" || time.Since(m.imagesAt) > mountPeriod {
		info, err := m.cfg.Runtime.ImageFsInfo(ctx)
		if err != nil {
			return nil, false, fmt.Errorf("ask the runtime where images are: %w", err)
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
	seen := choose.Observations{
		pod.MemoryAvailable:  {Available: got.MemoryBytes - got.WorkingSetBytes, Capacity: got.MemoryBytes},
		pod.NodeFsAvailable:  {Available: node.FreeBytes, Capacity: node.Bytes},
		pod.ImageFsAvailable: {Available: images.FreeBytes, Capacity: images.Bytes},
	}
	// A file system such as btrfs counts no inodes, and is not short of any.
	if node.Inodes > 0 {
		seen[pod.NodeFsInodesFree] = choose.Observation{Available: node.InodesFree, Capacity: node.Inodes}
	}
	if images.Inodes > 0 {
		seen[pod.ImageFsInodesFree] = choose.Observation{Available: images.InodesFree, Capacity: images.Inodes}
	}
	if got.CgroupBytes > 0 {
		seen[pod.AllocatableMemory] = choose.Observation{Available: got.CgroupBytes - got.CgroupWorkingSetBytes, Capacity: got.CgroupBytes}
	}
	if got.PidsMax > 0 && got.Pids > 0 {
		seen[pod.PIDAvailable] = choose.Observation{Available: got.PidsMax - got.Pids, Capacity: got.PidsMax}
	}
	return seen, node.Device != images.Device, nil
}
