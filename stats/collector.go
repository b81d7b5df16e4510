package stats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
)

// Host is the part of host.Host that the collector needs.
type Host interface {
	Sample(ctx context.Context, r host.SampleRequest) (host.Sampled, error)
	Measure(ctx context.Context, cgroup string, paths ...string) (host.Measured, error)
	DiskUsage(ctx context.Context, dirs ...string) ([]host.Usage, error)
}

// Runtime is the part of *cri.Client that the collector needs.
type Runtime interface {
	ListContainerStats(ctx context.Context, sandboxID string) ([]*runtimeapi.ContainerStats, error)
	ImageFsInfo(ctx context.Context) (*runtimeapi.ImageFsInfoResponse, error)
}

// Config of a Collector. All fields but VolumePeriod are required.
type Config struct {
	Host    Host
	Runtime Runtime
	// Pods returns the pods with a sandbox on the host.
	Pods func() []Pod
	// PodsTree returns the path of the cgroup of all pods.
	PodsTree func() string
	// System returns the cgroups of the node itself.
	System func() System
	// RootDir is on the file system of logs and of volumes.
	RootDir string
	// VolumePeriod is how long the measured size of volumes is used; default storageFresh. If it is
	// negative, volumes are not measured.
	VolumePeriod time.Duration
}

const (
	// fresh is how long callers share a collection. A kubelet's housekeeping has the same period.
	fresh = 10 * time.Second
	// storageFresh is how long the measured storage is used: a walk through directories takes long.
	storageFresh = time.Minute
	// storageOldest bounds the age of what is shown without a time while it cannot be measured, or is
	// being measured: a measurement that takes its longest leaves no gap.
	storageOldest = storageFresh + storageTimeout
	// storageTimeout bounds measuring storage, and storagePatience how long a caller waits for it
	// before it gets the previous result.
	storageTimeout  = 2 * time.Minute
	storagePatience = 5 * time.Second
	// sampleTimeout bounds reading counters.
	sampleTimeout = 10 * time.Second
	// rateWindow is the shortest time from which a CPU use is computed, and longestRate the longest:
	// an average over more says nothing about now.
	rateWindow  = time.Second
	longestRate = 5 * time.Minute
	// claimTimeout bounds measuring the file system of a claim. If it is exceeded, the claim is
	// measured again after firstPause, then at growing intervals of at most longestPause.
	claimTimeout = 3 * time.Second
	firstPause   = 5 * time.Minute
	longestPause = time.Hour
)

// Collector collects the statistics of one host. Its methods are safe for concurrent use.
type Collector struct {
	cfg   Config
	now   func() time.Time // with a monotonic reading
	calls singleflight.Group

	mu      sync.Mutex
	line    timeline
	newests [depths]*Snapshot // the newest of each depth, while it is fresh
	before  *cpuTimes         // CPU times that the newest rates are computed from
	newest  *cpuTimes         // of the newest
	expiry  *time.Timer
	storage *Storage
	claimed *claimed
	logs    *logs
	images  string // mount point of the runtime's images

	patience patience // of claims; only the goroutine that measures claims uses it
}

// New returns a Collector, which collects nothing until it is asked.
func New(c Config) (*Collector, error) {
	if c.Host == nil || c.Runtime == nil || c.Pods == nil || c.PodsTree == nil || c.System == nil || !path.IsAbs(c.RootDir) {
		return nil, errors.New("stats: Host, Runtime, Pods, PodsTree, System and an absolute RootDir are required")
	}
	c.VolumePeriod = cmp.Or(c.VolumePeriod, storageFresh)
	return &Collector{cfg: c, now: time.Now, patience: patience{}}, nil
}

// Need says what a caller wants to know.
type Need struct {
	// Detail: all counters, not only CPU time, memory and swap. Files: the open files, too, which cost
	// the host most; it implies Detail.
	Detail, Files bool
	// Rates: the CPU use. If there is no earlier collection, it is measured over rateWindow.
	Rates bool
	// Storage: what directories and images use.
	Storage bool
}

// depth is how much of the host is read: counters, with detail, with open files. Each has what those
// before it have.
type depth int

const (
	counters depth = iota
	detailed
	withFiles
	depths
)

func (n Need) depth() depth {
	switch {
	case n.Files:
		return withFiles
	case n.Detail:
		return detailed
	}
	return counters
}

// Get returns a snapshot that is at most fresh old. An error means that there is none: an older one
// is never returned in its place.
func (c *Collector) Get(ctx context.Context, need Need) (*Snapshot, error) {
	s, err := c.counters(ctx, need.depth())
	if err != nil {
		return nil, err
	}
	if need.Rates && s.usage == nil {
		pause := time.NewTimer(s.read.Add(rateWindow).Sub(c.now()))
		defer pause.Stop()
		select {
		case <-pause.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if s, err = share(ctx, &c.calls, key("again", need.depth()), sampleTimeout, func(ctx context.Context) (*Snapshot, error) {
			return c.collect(ctx, need.depth())
		}); err != nil {
			return nil, err
		}
	}
	if !need.Storage {
		return s, nil
	}
	out := *s
	out.Storage = c.measured(ctx, s)
	return &out, nil
}

func key(what string, d depth) string { return fmt.Sprint(what, d) }

// counters returns a fresh snapshot.
func (c *Collector) counters(ctx context.Context, d depth) (*Snapshot, error) {
	if s := c.kept(d); s != nil {
		return s, nil
	}
	return share(ctx, &c.calls, key("counters", d), sampleTimeout, func(ctx context.Context) (*Snapshot, error) {
		if s := c.kept(d); s != nil {
			return s, nil // another call has just ended
		}
		return c.collect(ctx, d)
	})
}

// kept returns the last snapshot if it is fresh.
func (c *Collector) kept(d depth) *Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.newests[d]
	if s == nil || !current(s.Time, c.now(), fresh) {
		return nil
	}
	return s
}

// share runs f once for all callers that ask at the same time. A caller that gives up does not end
// it for the others.
func share[T any](ctx context.Context, calls *singleflight.Group, key string, timeout time.Duration, f func(context.Context) (*T, error)) (*T, error) {
	result := calls.DoChan(key, func() (out any, err error) {
		err = budget.ErrPanicked
		defer budget.From(ctx).Recover("collect the statistics of the host")
		run, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
		defer cancel()
		out, err = f(run)
		return out, err
	})
	select {
	case r := <-result:
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.(*T), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// collect reads the counters of the host.
func (c *Collector) collect(ctx context.Context, d depth) (*Snapshot, error) {
	detail := d >= detailed
	s := &Snapshot{Detail: detail, depth: d, Pods: c.cfg.Pods(), PodsTree: c.cfg.PodsTree(), System: c.cfg.System()}
	r := host.SampleRequest{Trees: []string{s.PodsTree}, Detail: detail, OpenFiles: d >= withFiles}
	for _, p := range []string{s.System.Kubelet, s.System.Runtime} {
		if p != "" {
			r.Trees = append(r.Trees, p)
		}
	}
	if detail {
		r.Paths = append(r.Paths, c.cfg.RootDir, c.imageDir(ctx))
		for _, p := range s.Pods {
			if p.HostNetwork {
				r.HostNetwork = append(r.HostNetwork, string(p.UID))
			}
		}
	}
	sent := c.now()
	var err error
	if s.Sampled, err = c.cfg.Host.Sample(ctx, r); err != nil {
		return nil, err
	}
	if detail {
		s.RootFs, s.ImageFs = s.FileSystems[0], s.FileSystems[1]
	}
	s.containers = map[string]string{}
	for p := range s.Cgroups {
		if id, ok := containerID(path.Base(p)); ok {
			s.containers[id] = p
		}
	}
	for i := range s.Pods {
		s.Pods[i].Cgroup = s.podCgroup(&s.Pods[i])
	}
	c.keep(s, sent)
	return s, nil
}

// podCgroup returns the cgroup of a pod: that with its sandbox or containers.
func (s *Snapshot) podCgroup(p *Pod) string {
	if at, ok := s.containers[p.SandboxID]; ok {
		return path.Dir(at)
	}
	for _, k := range p.Containers {
		if at, ok := s.containers[k.ID]; ok {
			return path.Dir(at)
		}
	}
	return ""
}

// keep dates a snapshot, computes its rates and keeps it.
func (c *Collector) keep(s *Snapshot, sent time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.read = c.now() // in the order of the calls of at
	s.Time = c.line.at(s.Uptime, sent, s.read)
	s.BootTime = s.Time.Add(-s.Uptime)
	if c.newest != nil && s.Uptime-c.newest.uptime >= rateWindow {
		c.before = c.newest
	}
	c.newest = cpuTimesOf(s)
	s.usage = rates(c.before, c.newest)
	for d := range s.depth + 1 {
		c.newests[d] = s
	}
	// Many hosts may be asked once and never again: what is not fresh any more takes no memory.
	if c.expiry == nil {
		c.expiry = time.AfterFunc(fresh, c.expire)
	} else {
		c.expiry.Reset(fresh)
	}
}

// expire drops the snapshots when none is fresh any more.
func (c *Collector) expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.newests = [depths]*Snapshot{}
}

// cpuTimes are the CPU times of cgroups at an uptime of the host; "" is the node.
type cpuTimes struct {
	uptime time.Duration
	used   map[string]time.Duration
}

func cpuTimesOf(s *Snapshot) *cpuTimes {
	t := &cpuTimes{uptime: s.Uptime, used: make(map[string]time.Duration, len(s.Cgroups)+1)}
	t.used[""] = s.Node.CPU.Usage
	for p, c := range s.Cgroups {
		t.used[p] = c.CPU.Usage
	}
	return t
}

// rates are the uses of CPU between two times, by cgroup; nil if the interval is too short or too long.
func rates(from, to *cpuTimes) map[string]uint64 {
	if from == nil {
		return nil
	}
	over := to.uptime - from.uptime
	if over < rateWindow || over > longestRate {
		return nil
	}
	out := make(map[string]uint64, len(to.used))
	for p, now := range to.used {
		if was, ok := from.used[p]; ok && was >= 0 && now >= was {
			out[p] = uint64(float64(now-was) / float64(over) * 1e9)
		}
	}
	return out
}
