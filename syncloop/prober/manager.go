// Package prober runs the startup, liveness and readiness probes of running containers. It measures
// the container, not the link: a probe's timeout starts when its connection is open, and a
// transport error is no result.
//
// One goroutine holds a heap of due times. Each run of a probe has its own goroutine, which ends
// with the run, so a hundred idle probes cost one timer.
//
//	Sync ──► targets, one per running container ──► heap ──► Run ──► one run
//	                                                  ▲                 │
//	Verdicts ◄── tally (reduce.go, pure) ◄────────────┴─────────────────┘
package prober

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/notify"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/probehttp"
)

// Exec runs commands in containers (cri.Client).
type Exec interface {
	ExecSync(ctx context.Context, id string, cmd []string, timeout time.Duration) (cri.ExecResult, error)
}

// Dialer opens connections from the host (host.Host). An error that wraps host.ErrUnreachable is
// the link's; any other is the container's.
type Dialer interface {
	Dial(ctx context.Context, network, address string) (net.Conn, error)
}

// Config of a Manager.
type Config struct {
	Exec   Exec
	Dialer Dialer
	// Event records an event about a container; nil records none.
	Event func(p *v1.Pod, container, eventType, reason, message string)
	// Late reports whether the link currently answers late, so that a timeout does not count as the
	// container's failure; nil means that it never does.
	Late func() bool
	// DialSlack is the time that opening a connection may take beyond the probe's own timeout: the
	// round trip to a remote host; 0 if local.
	DialSlack time.Duration
	// Metrics counts the runs; the zero value counts nothing.
	Metrics Metrics
	// Random returns a number in [0,1) that spreads first runs; nil means math/rand.
	Random func() float64
}

func (c *Config) validate() error {
	if c.Exec == nil || c.Dialer == nil {
		return errors.New("prober: Exec and Dialer are required")
	}
	if c.Event == nil {
		c.Event = func(*v1.Pod, string, string, string, string) {}
	}
	if c.Late == nil {
		c.Late = func() bool { return false }
	}
	if c.Random == nil {
		c.Random = rand.Float64
	}
	return nil
}

// Manager runs the probes of all pods. Its methods do not block on probes.
type Manager struct {
	cfg     Config
	client  *http.Client // HTTP/1.1, and HTTP/2 over TLS
	h2c     *http.Client
	kick    notify.Signal // the first due time has changed
	updates chan types.UID

	mu      sync.Mutex
	began   time.Time // containers that started before this are adopted
	pods    map[types.UID]map[string]*target
	heap    dueHeap
	adopted map[string]bool // readiness by container ID, until its first Sync
	changed []types.UID     // pods to send on updates, each once
	runs    sync.WaitGroup
}

// target is one running container instance. Manager.mu guards its fields.
type target struct {
	pod       *v1.Pod
	container *v1.Container
	id        string
	ip        string // the pod's primary address
	startedAt time.Time
	probes    [3]*probe // by Kind; nil if the container declares none
	stopped   bool      // the pod is terminating: only readiness continues
	removed   bool
}

// probe is one probe of a target.
type probe struct {
	target  *target
	kind    Kind
	spec    *v1.Probe
	tally   Tally
	message string // of the last failure
	// begins is the end of the initial delay; zero until armed.
	begins time.Time
	early  wait.Backoff // pauses before the next early runs
	due    time.Time
	index  int  // in the heap, or -1
	active bool // a run is in progress
	cancel context.CancelFunc
}

// New returns a Manager. Probes start with Run.
func New(c Config) (*Manager, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	return &Manager{
		cfg:     c,
		client:  probehttp.Client(c.Dialer, false),
		h2c:     probehttp.Client(c.Dialer, true),
		kick:    notify.New(),
		updates: make(chan types.UID),
		began:   time.Now(),
		pods:    map[types.UID]map[string]*target{},
		adopted: map[string]bool{},
	}, nil
}

// Updates returns a channel that receives the UID of each pod with changed verdicts. Several
// changes may be merged into one. The channel is never closed.
func (m *Manager) Updates() <-chan types.UID { return m.updates }

// Adopt records the readiness that an earlier process last reported to the API server for a
// container. Call it before the container's first Sync.
func (m *Manager) Adopt(containerID string, ready bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.adopted[containerID] = ready
}

// Sync adapts the probes of a pod to an observation: a probe begins and ends with its container
// instance. A stale observation changes nothing.
func (m *Manager) Sync(p *v1.Pod, o pod.Observed, podIPs []string) {
	if o.Stale != "" || o.Seq == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	have := m.pods[p.UID]
	seen := make(map[string]bool, len(have))
	ip := ""
	if len(podIPs) > 0 {
		ip = podIPs[0]
	}
	for c := range pod.Containers(&p.Spec) {
		n := o.Newest(c.Name)
		if n == nil || n.State != pod.StateRunning {
			continue
		}
		seen[n.ID] = true
		t, known := have[n.ID]
		if !known {
			if have == nil {
				have = map[string]*target{}
				m.pods[p.UID] = have
			}
			t = &target{id: n.ID, startedAt: n.StartedAt}
			have[n.ID] = t
		}
		t.pod, t.container, t.ip = p, c, ip
		if !known {
			m.declare(t)
		}
	}
	for id, t := range have {
		if !seen[id] {
			m.remove(t)
			delete(have, id)
		}
	}
	if p.DeletionTimestamp != nil {
		m.stop(p.UID)
	}
}

// declare creates the probes of a new target and arms those that run first.
func (m *Manager) declare(t *target) {
	c := t.container
	if pod.IsInit(&t.pod.Spec, c.Name) && !pod.Sidecar(c) {
		return // an init container that runs to completion is never probed
	}
	for k, spec := range [3]*v1.Probe{Startup: c.StartupProbe, Liveness: c.LivenessProbe, Readiness: c.ReadinessProbe} {
		if spec != nil {
			t.probes[k] = &probe{target: t, kind: Kind(k), spec: spec, tally: First(Kind(k)), index: -1}
		}
	}
	started, ready := m.known(t)
	if p := t.probes[Startup]; p != nil && started {
		p.tally = Tally{Verdict: pod.VerdictSuccess, Hold: true}
	}
	if p := t.probes[Readiness]; p != nil && ready {
		p.tally.Verdict = pod.VerdictSuccess
	}
	if p := t.probes[Startup]; p != nil && !p.tally.Hold {
		m.arm(p)
		return
	}
	m.armStarted(t)
}

// known returns the earlier results of this instance: from Adopt, or from the pod's status at the API
// server.
func (m *Manager) known(t *target) (started, ready bool) {
	ready = m.adopted[t.id]
	started = ready
	delete(m.adopted, t.id)
	for s := range pod.Statuses(&t.pod.Status) {
		if s.State.Running != nil && strings.HasSuffix(s.ContainerID, "://"+t.id) {
			ready = ready || s.Ready
			started = started || s.Ready || s.Started != nil && *s.Started
		}
	}
	return started, ready
}

// Stop ends the liveness and startup probes of a pod that is terminating. Readiness probes
// continue, without events, until the containers are gone.
func (m *Manager) Stop(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stop(uid)
}

func (m *Manager) stop(uid types.UID) {
	for _, t := range m.pods[uid] {
		t.stopped = true
		for _, p := range t.probes {
			if p != nil && p.kind != Readiness {
				m.halt(p)
			}
		}
	}
}

// Forget ends every probe of a pod and drops its verdicts.
func (m *Manager) Forget(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, t := range m.pods[uid] {
		m.remove(t)
	}
	delete(m.pods, uid)
}

func (m *Manager) remove(t *target) {
	t.removed = true
	m.cfg.Metrics.forget(t)
	for _, p := range t.probes {
		if p != nil {
			m.halt(p)
		}
	}
}

// Verdicts returns the verdicts about a pod's running containers, by container ID.
func (m *Manager) Verdicts(uid types.UID) map[string]pod.Verdicts {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make(map[string]pod.Verdicts, len(m.pods[uid]))
	for id, t := range m.pods[uid] {
		v := pod.Verdicts{Startup: pod.VerdictSuccess, Liveness: pod.VerdictSuccess, Readiness: pod.VerdictSuccess}
		for _, p := range t.probes {
			if p == nil {
				continue
			}
			switch p.kind {
			case Startup:
				v.Startup = p.tally.Verdict
			case Liveness:
				v.Liveness = p.tally.Verdict
			case Readiness:
				v.Readiness = p.tally.Verdict
				continue
			}
			if p.tally.Verdict == pod.VerdictFailure {
				v.LivenessGrace, v.Message = p.spec.TerminationGracePeriodSeconds, p.message
			}
		}
		out[id] = v
	}
	return out
}
