package syncloop

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

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
	"github.com/bowline-k8s/bowline/syncloop/config"
	"github.com/bowline-k8s/bowline/syncloop/images"
	"github.com/bowline-k8s/bowline/syncloop/lifecycle"
	"github.com/bowline-k8s/bowline/syncloop/objects"
	"github.com/bowline-k8s/bowline/syncloop/pace"
	"github.com/bowline-k8s/bowline/syncloop/pleg"
	"github.com/bowline-k8s/bowline/syncloop/prober"
	"github.com/bowline-k8s/bowline/syncloop/statuswriter"
	"github.com/bowline-k8s/bowline/syncloop/tokens"
	"github.com/bowline-k8s/bowline/syncloop/volume"
)

// Runtime is what the workers ask of the container runtime.
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

// Certificates of pods; podcerts.Manager has them.
type Certificates interface {
	Updates() <-chan types.UID
}

// Config of a Loop: the parts that it drives, made by cmd.
type Config struct {
	Runtime Runtime
	Host    host.Host
	PLEG    *pleg.Generator
	Sources *config.PodConfig
	Volumes *volume.Manager
	Objects *objects.Manager
	Tokens  *tokens.Manager
	// Certificates tells of pods whose certificates were signed or refused; nil: none are.
	Certificates Certificates
	Images       *images.Manager
	Prober       *prober.Manager
	Hooks        *lifecycle.Runner
	Status       *statuswriter.Writer
	Services     corelisters.ServiceLister
	Recorder     record.EventRecorder
	Metrics      Metrics

	// Policy is what the machine's owner forbids; the zero one forbids nothing.
	Policy admit.Policy
	// Node is what new pods are judged by; Reread has the labels and taints of it read
	// anew from the API server. Nil: the node takes what the owner allows.
	Node   func() admit.Node
	Reread func(ctx context.Context) (admit.Node, error)
	// Machine is what specs are made from, as the machine was last read.
	Machine func() spec.Machine
	// HostResolv reads the machine's resolv.conf for a new sandbox, as a kubelet does;
	// nil, or where it cannot be read: that of Machine.
	HostResolv func(ctx context.Context) ([]byte, error)
	// ClusterDNS returns the addresses of the cluster's DNS as they are now. Nil: those
	// of Machine.
	ClusterDNS func() []string
	// NodeName, and Allocatable for resourceFieldRef of a container without limits.
	NodeName    string
	Allocatable func() v1.ResourceList
	// RuntimeHandler looks a RuntimeClass up by name. Nil: the node runs no pod
	// that names one.
	RuntimeHandler func(ctx context.Context, class string) (string, error)
	// UserNamespaces tells whether a runtime handler ("" is the default one) can give
	// a pod users of its own. Nil: none can.
	UserNamespaces func(handler string) bool
	// RecursiveReadOnly tells whether a runtime handler can mount a volume read-only
	// with all that is mounted below it. Nil: none can.
	RecursiveReadOnly func(handler string) bool
	// RuntimeName is the scheme of container IDs in statuses, "containerd".
	RuntimeName string
	// ContainerLogsDir holds the links that log collectors read, /var/log/containers.
	ContainerLogsDir string
	// Resync is how often live volumes are looked at, 1 min by default.
	Resync time.Duration
	// RuntimeChanged is told whether the runtime can run pods, and why not.
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
			return "", errors.New("this node does not know runtime classes")
		}
	}
	if c.RuntimeChanged == nil {
		c.RuntimeChanged = func(bool, string, string) {}
	}
	return nil
}

// housekeepingPeriod is the kubelet's.
const housekeepingPeriod = 2 * time.Second

// Loop hears of every change and owns the workers.
type Loop struct {
	cfg    Config
	health runtimeHealth
	turned atomic.Int64 // unix nanoseconds of the loop's last turn

	starts   *pace.Pacer // of sandboxes, and before them of containers
	removals *pace.Pacer // of what is left of dead pods

	users       *userRanges // of pods with users of their own
	allocations *allocations
	resizes     *recordKeeper

	mu      sync.Mutex
	workers map[types.UID]*worker
	running sync.WaitGroup

	born      uint64 // workers that there have been; mu's
	admission admission

	naming   sync.Mutex
	released map[types.UID]bool // pods with a worker that need no objects any more
}

// New makes a Loop; Run drives it.
func New(c Config) (*Loop, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	m := c.Machine()
	l := &Loop{
		cfg: c, workers: map[types.UID]*worker{}, released: map[types.UID]bool{},
		starts:   pace.New(max(startsPerCPU*m.CPUs, leastStarts), paceLease),
		removals: pace.New(m.CPUs/2, paceLease),
		resizes:  &recordKeeper{files: c.Host, path: ResizeRecord(m.RootDir)},
	}
	l.users = &userRanges{taken: c.PLEG.Cache().Users, byPod: map[types.UID]uint32{}}
	l.allocations = &allocations{allocatable: c.Allocatable, pods: c.Sources.Pods, complete: func() bool { return c.Sources.SeenBy(pod.SourceAPI) }, wake: l.wake,
		byUID: map[types.UID]*allotted{}}
	return l, nil
}

// A machine starts a few containers per CPU at once, and removes what dead pods
// left while it has nothing better to do with the other CPUs. A call that takes
// longer than paceLease holds nobody up.
const (
	startsPerCPU = 3
	leastStarts  = 4
	paceLease    = 3 * time.Second
)

// Quiet returns a channel that is closed while nothing is being started.
func (l *Loop) Quiet() <-chan struct{} { return l.starts.Quiet() }

// Run is the loop. It returns when ctx ends, after every worker has; the
// containers live on.
func (l *Loop) Run(ctx context.Context) error {
	defer l.running.Wait()
	housekeeping := time.NewTicker(housekeepingPeriod)
	defer housekeeping.Stop()
	healthDone := make(chan struct{})
	go func() {
		defer budget.From(ctx).Recover("watch the runtime's health")
		defer close(healthDone)
		l.watchRuntime(ctx)
	}()
	defer func() { <-healthDone }()
	resizesDone := make(chan struct{})
	go func() {
		defer budget.From(ctx).Recover("watch resizes")
		defer close(resizesDone)
		l.watchResizes(ctx)
	}()
	defer func() { <-resizesDone }()
	for l.iterate(ctx, housekeeping.C) {
	}
	return nil
}

// watchResizes reads the record of resized pods, and then has what is pending judged
// anew from time to time.
func (l *Loop) watchResizes(ctx context.Context) {
	l.resizes.load(ctx, l.allocations, l.wakeAll)
	t := time.NewTicker(resizeRetry)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			l.allocations.again(now)
		}
	}
}

// iterate is one turn of the loop: the kubelet's syncLoopIteration. The 1 s sync
// tick has no case here: each worker knows when its own answer could change.
func (l *Loop) iterate(ctx context.Context, housekeepingCh <-chan time.Time) bool {
	l.turned.Store(time.Now().UnixNano())
	select {
	case <-ctx.Done():
		return false
	case change := <-l.cfg.Sources.Updates():
		l.handle(ctx, change)
	case <-l.cfg.PLEG.Notify():
		l.handleObserved(l.cfg.PLEG.TakeChanged())
	case uid := <-l.cfg.Prober.Updates():
		l.wake(uid)
	case uid := <-l.cfg.Objects.Updates():
		l.handleContent(uid)
	case uid := <-l.cfg.Tokens.Updates():
		l.handleContent(uid)
	case uid := <-l.certificates():
		l.handleContent(uid)
	case <-housekeepingCh:
		l.handleOrphans(ctx)
	}
	return true
}

func (l *Loop) certificates() <-chan types.UID {
	if l.cfg.Certificates == nil {
		return nil
	}
	return l.cfg.Certificates.Updates()
}

// Turned is when the loop last turned, for /healthz/syncloop.
func (l *Loop) Turned() time.Time { return time.Unix(0, l.turned.Load()) }

// Healthy is the answer of /healthz/syncloop.
func (l *Loop) Healthy() error {
	if since := time.Since(l.Turned()); since > 2*time.Minute {
		return fmt.Errorf("the sync loop has not turned for %s", since.Round(time.Second))
	}
	return nil
}

// MachineChanged makes every worker decide and report again: Config.Machine gives another
// machine than before.
func (l *Loop) MachineChanged() { l.wakeAll() }

// Wake makes the pod's worker decide again.
func (l *Loop) Wake(uid types.UID) { l.wake(uid) }

func (l *Loop) wake(uid types.UID) {
	l.mu.Lock()
	w := l.workers[uid]
	l.mu.Unlock()
	if w != nil {
		w.inbox.wake()
	}
}

func (l *Loop) wakeAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.workers {
		w.inbox.wake()
	}
}

// send merges mail into the inbox of the pod's worker, starting one if need be.
// The lock is held throughout, so that no mail reaches a worker that has ended.
func (l *Loop) send(ctx context.Context, ref pod.Ref, static bool, merge func(*mail)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.workers[ref.UID]
	if w == nil {
		w = newWorker(l, ref, static)
		l.workers[ref.UID] = w
		l.launch(ctx, w)
	}
	w.inbox.put(merge)
}

// launch runs a worker to its end; l.mu is held. Mail that came while it was
// ending goes to a successor.
func (l *Loop) launch(ctx context.Context, w *worker) {
	l.running.Add(1)
	go func() {
		defer budget.From(ctx).Recover("the worker of a pod")
		defer l.running.Done()
		w.run(ctx)
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.workers, w.ref.UID)
		l.succeed(w)
		left := w.inbox.take()
		if p := l.again(w); p != nil {
			left.pod = p
		}
		if left.pod != nil && ctx.Err() == nil {
			next := newWorker(l, w.ref, w.static)
			next.ledger.Attempts = w.attempts()
			next.inbox.put(func(m *mail) { *m = left })
			l.workers[w.ref.UID] = next
			l.launch(ctx, next)
		}
	}()
}

// forget drops what is kept for a pod that is gone.
func (l *Loop) forget(ctx context.Context, w *worker) {
	l.admission.end(w.ref.UID)
	l.cfg.Prober.Forget(w.ref.UID)
	if !l.settleStatic(w) {
		l.cfg.Status.Forget(w.ref.UID)
	}
	l.unregister(w.ref.UID, false)
	l.allocations.forget(w.ref.UID)
	l.users.release(w.ref.UID)
	klog.FromContext(ctx).V(1).Info("Pod worker ends")
}

func (l *Loop) machine() spec.Machine {
	m := l.cfg.Machine()
	if l.cfg.ClusterDNS != nil {
		m.ClusterDNS = l.cfg.ClusterDNS()
	}
	return m
}

// recursiveReadOnly tells whether the handler of the pod's newest sandbox can make
// recursive read-only mounts.
func (l *Loop) recursiveReadOnly(o pod.Observed) bool {
	return l.cfg.RecursiveReadOnly != nil && len(o.Sandboxes) > 0 && l.cfg.RecursiveReadOnly(o.Sandboxes[0].RuntimeHandler)
}

// jitter spreads back-offs.
func (l *Loop) jitter() float64 { return rand.Float64() }

func (l *Loop) resyncPeriod() time.Duration {
	return l.cfg.Resync + time.Duration(rand.Int64N(int64(l.cfg.Resync)/2))
}
