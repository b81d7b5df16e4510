package syncloop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/admit"
	"github.com/bowline-k8s/bowline/syncloop/allocation"
	"github.com/bowline-k8s/bowline/syncloop/images"
	"github.com/bowline-k8s/bowline/syncloop/lifecycle"
	"github.com/bowline-k8s/bowline/syncloop/objects"
	"github.com/bowline-k8s/bowline/syncloop/pleg"
	"github.com/bowline-k8s/bowline/syncloop/podconfig"
	"github.com/bowline-k8s/bowline/syncloop/prober"
	"github.com/bowline-k8s/bowline/syncloop/startlimiter"
	"github.com/bowline-k8s/bowline/syncloop/statuswriter"
	"github.com/bowline-k8s/bowline/syncloop/tokens"
	"github.com/bowline-k8s/bowline/syncloop/volume"
)

// Runtime has the CRI calls that the workers make.
type Runtime interface {
	Status(ctx context.Context, verbose bool) (*runtimeapi.StatusResponse, error)
	RunPodSandbox(ctx context.Context, config *runtimeapi.PodSandboxConfig, handler string) (string, error)
	StopPodSandbox(ctx context.Context, id string) error
	RemovePodSandbox(ctx context.Context, id string) error
	CreateContainer(ctx context.Context, sandboxID string, config *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig) (string, error)
	StartContainer(ctx context.Context, id string) error
	StopContainer(ctx context.Context, id string, grace time.Duration) error
	RemoveContainer(ctx context.Context, id string) error
	UpdateContainerResources(ctx context.Context, id string, r *runtimeapi.ContainerResources) error
	ListContainerStats(ctx context.Context, sandboxID string) ([]*runtimeapi.ContainerStats, error)
}

// Certificates notifies the loop about pod certificates; podcerts.Manager implements it.
type Certificates interface {
	Updates() <-chan types.UID
}

// Config holds the parts of a Loop; package node makes them.
type Config struct {
	Runtime Runtime
	Host    host.Host
	PLEG    *pleg.Generator
	Sources *podconfig.PodConfig
	Volumes *volume.Manager
	Objects *objects.Manager
	Tokens  *tokens.Manager
	// Certificates names pods whose certificates were signed or refused. Nil: no pod has any.
	Certificates Certificates
	Images       *images.Manager
	Prober       *prober.Manager
	Hooks        *lifecycle.Runner
	Status       *statuswriter.Writer
	Services     corelisters.ServiceLister
	Recorder     record.EventRecorder
	Metrics      Metrics
	// Tracer makes a span of each pod's start, with one of each operation below it; nil: none is made.
	Tracer trace.Tracer

	// Policy has the features that the host's owner forbids to pods; the zero Policy forbids nothing.
	Policy admit.Policy
	// Node returns the node that new pods are admitted against; Reread reads its labels and taints
	// from the API server. If Node is nil, the node takes every pod that Policy allows.
	Node   func() admit.Node
	Reread func(ctx context.Context) (admit.Node, error)
	// Machine returns the host as it was last read, the input of container and sandbox specs.
	Machine func() spec.Machine
	// HostResolv reads the host's resolv.conf for new sandboxes, as a kubelet does. If it is nil or
	// fails, the sandbox gets the resolv.conf of Machine.
	HostResolv func(ctx context.Context) ([]byte, error)
	// ClusterDNS returns the current addresses of the cluster DNS. Nil: those of Machine.
	ClusterDNS func() []string
	// NodeName is the node's name. Allocatable resolves a resourceFieldRef of a container without
	// limits.
	NodeName    string
	Allocatable func() v1.ResourceList
	// RuntimeHandler returns the runtime handler of a RuntimeClass. Nil: the node runs no pod that
	// names a RuntimeClass.
	RuntimeHandler func(ctx context.Context, class string) (string, error)
	// UserNamespaces reports whether a runtime handler ("" is the default) supports user namespaces
	// (hostUsers: false). Nil: none does.
	UserNamespaces func(handler string) bool
	// RecursiveReadOnly reports whether a runtime handler supports recursive read-only mounts. Nil:
	// none does.
	RecursiveReadOnly func(handler string) bool
	// IDsPerPod is how many user and group IDs of the host a pod with hostUsers: false gets, a multiple
	// of the default, 65536.
	IDsPerPod uint32
	// StopSignals shows the stop signals of containers in the status of their pods.
	StopSignals bool
	// FixedPodResources: a resize of pod-level resources is infeasible.
	FixedPodResources bool
	// RuntimeName is the scheme of container IDs in statuses, for example "containerd".
	RuntimeName string
	// ContainerLogsDir holds the log links that log collectors read; by default
	// /var/log/containers.
	ContainerLogsDir string
	// FirstRestartPeriod is the pause before the second restart of a container that crashes, and
	// MaxRestartPeriod the longest one; 10 s and 5 min by default.
	FirstRestartPeriod, MaxRestartPeriod time.Duration
	// Resync is how often the volumes of running pods are refreshed; 1 min by default.
	Resync time.Duration
	// RuntimeChanged is called when the runtime becomes able or unable to run pods, with the
	// reason.
	RuntimeChanged func(ready bool, reason, message string)
}

func (c *Config) validate() error {
	switch {
	case c.Runtime == nil, c.Host == nil, c.PLEG == nil, c.Sources == nil:
		return errors.New("syncloop: Runtime, Host, PLEG and Sources are required")
	case c.Volumes == nil, c.Images == nil, c.Prober == nil, c.Hooks == nil, c.Status == nil:
		return errors.New("syncloop: Volumes, Images, Prober, Hooks and Status are required")
	case c.Objects == nil, c.Tokens == nil, c.Services == nil, c.Recorder == nil, c.Machine == nil:
		return errors.New("syncloop: Objects, Tokens, Services, Recorder and Machine are required")
	}
	if c.Resync == 0 {
		c.Resync = time.Minute
	}
	if c.ContainerLogsDir == "" {
		c.ContainerLogsDir = "/var/log/containers"
	}
	if c.Allocatable == nil {
		c.Allocatable = func() v1.ResourceList { return nil }
	}
	if c.RuntimeHandler == nil {
		c.RuntimeHandler = func(context.Context, string) (string, error) {
			return "", errors.New("this node does not support runtime classes")
		}
	}
	if c.RuntimeChanged == nil {
		c.RuntimeChanged = func(bool, string, string) {}
	}
	return nil
}

// housekeepingPeriod is the interval between searches for orphaned pods; the kubelet's value.
const housekeepingPeriod = 2 * time.Second

// Loop receives every change and owns the pod workers.
type Loop struct {
	cfg    Config
	health runtimeHealth
	turned atomic.Pointer[time.Time] // of the last iteration; nil: none yet

	resolv   *resolvReads          // nil without Config.HostResolv
	starts   *startlimiter.Limiter // for sandboxes and containers; containers go first
	removals *startlimiter.Limiter // for removing the remains of dead pods

	users      *userRanges // ID ranges of pods with a user namespace
	allocation *allocation.Manager

	mu      sync.Mutex
	workers map[types.UID]*worker
	// byName has the same workers by the name of their pod; guarded by mu.
	byName  map[fullName]map[types.UID]*worker
	running sync.WaitGroup

	born    uint64    // how many workers were created; guarded by mu
	changed time.Time // when a worker was last added or removed; guarded by mu

	naming   sync.Mutex
	released map[types.UID]bool // pods with a worker whose ConfigMaps and Secrets are no longer followed
}

// New makes a Loop; Run runs it.
func New(c Config) (*Loop, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	m := c.Machine()
	l := &Loop{
		cfg: c, workers: map[types.UID]*worker{}, byName: map[fullName]map[types.UID]*worker{}, released: map[types.UID]bool{},
		starts:   startlimiter.New(max(startsPerCPU*m.CPUs, leastStarts), paceLease),
		removals: startlimiter.New(m.CPUs/2, paceLease),
	}
	if c.HostResolv != nil {
		l.resolv = &resolvReads{read: c.HostResolv}
	}
	l.users = &userRanges{taken: c.PLEG.Cache().Users, length: cmp.Or(c.IDsPerPod, defaultIDs), byPod: map[types.UID]pod.IDRange{}}
	l.allocation = allocation.New(allocation.Config{
		Policy: c.Policy, Node: c.Node, Reread: c.Reread, Allocatable: c.Allocatable, Sources: c.Sources, Observed: c.PLEG.Cache().Get,
		Ended: func(uid types.UID) bool { return l.State(uid).Ended() }, Grace: graceOf,
		Deliver: l.deliver,
		Event:   func(p *v1.Pod, kind, reason, message string) { l.event(p, "", kind, reason, message) },
		Files:   c.Host, Root: m.RootDir, FixedPodResources: c.FixedPodResources,
		Preempted: c.Metrics.preempt, Infeasible: c.Metrics.neverResized,
		Resolved: func(p *v1.Pod, how, trigger string, waited time.Duration) {
			c.Metrics.resolved(p, how, trigger, waited, how == allocation.Accepted)
		},
	})
	return l, nil
}

// A host starts a few containers per CPU at a time, and removes the remains of dead pods with one
// call per two CPUs, so that the other CPUs stay free. A call that takes longer than paceLease
// stops counting, so that it delays no other.
const (
	startsPerCPU = 3
	leastStarts  = 4
	paceLease    = 3 * time.Second
)

// Quiet returns a channel that is closed while no container or sandbox is being started.
func (l *Loop) Quiet() <-chan struct{} { return l.starts.Quiet() }

// Run runs the sync loop. It returns when ctx has ended and every worker has returned. The
// containers keep running.
func (l *Loop) Run(ctx context.Context) error {
	defer l.running.Wait()
	housekeeping := time.NewTicker(housekeepingPeriod)
	defer housekeeping.Stop()
	var parts sync.WaitGroup
	defer parts.Wait()
	parts.Go(func() {
		defer budget.From(ctx).Recover("watch the runtime's health")
		l.watchRuntime(ctx)
	})
	parts.Go(func() {
		defer budget.From(ctx).Recover("the allocation manager")
		_ = l.allocation.Run(ctx)
	})
	for l.iterate(ctx, housekeeping.C) {
	}
	l.turned.Store(nil) // the workers may take long to end
	return nil
}

// Turned returns the time of the last iteration, for /healthz/syncloop; zero if the loop does not run.
// It has a monotonic reading: neither a suspend of the machine nor a change of its clock looks like
// a loop that is stuck, and neither hides one.
func (l *Loop) Turned() time.Time {
	if at := l.turned.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// Healthy returns an error for /healthz/syncloop if the loop runs, and has not iterated for two
// minutes. Before it runs, the node adopts what runs on the host, which may take the host long.
func (l *Loop) Healthy() error {
	at := l.turned.Load()
	if at == nil {
		return nil
	}
	if since := time.Since(*at); since > 2*time.Minute {
		return fmt.Errorf("the sync loop has not iterated for %s", since.Round(time.Second))
	}
	return nil
}

// MachineChanged makes every worker decide and report again. The caller has changed what
// Config.Machine returns.
func (l *Loop) MachineChanged() { l.wakeAll() }

// forget drops everything that is kept for a pod that is gone.
func (l *Loop) forget(ctx context.Context, w *worker) {
	l.cfg.Prober.Forget(w.ref.UID)
	if !l.retainTerminalStatus(w) {
		l.cfg.Status.Forget(w.ref.UID)
	}
	l.unregister(w.ref.UID, false)
	l.allocation.Gone(w.ref.UID)
	l.users.release(w.ref.UID)
	level := 1
	if w.epilogue {
		level = 3 // an earlier worker has logged it
	}
	klog.FromContext(ctx).V(level).Info("Stopped the pod worker")
}

func (l *Loop) machine() spec.Machine {
	m := l.cfg.Machine()
	if l.cfg.ClusterDNS != nil {
		m.ClusterDNS = l.cfg.ClusterDNS()
	}
	return m
}

// recursiveReadOnly reports whether the runtime handler of the pod's newest sandbox supports
// recursive read-only mounts.
func (l *Loop) recursiveReadOnly(o pod.Observed) bool {
	return l.cfg.RecursiveReadOnly != nil && len(o.Sandboxes) > 0 && l.cfg.RecursiveReadOnly(o.Sandboxes[0].RuntimeHandler)
}

// jitter spreads back-offs.
func (l *Loop) jitter() float64 { return rand.Float64() }

func (l *Loop) resyncPeriod() time.Duration {
	return l.cfg.Resync + time.Duration(rand.Int64N(int64(l.cfg.Resync)/2))
}
