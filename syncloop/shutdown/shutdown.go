package shutdown

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/logonce"
	"github.com/bowline-k8s/bowline/syncloop/shutdown/order"
)

// The kubelet's texts for a pod that ends by a shutdown.
const (
	ReasonTerminated  = "Terminated"
	MessageTerminated = "Pod was terminated in response to imminent node shutdown."

	reasonEvent = "NodeShutdown"
	eventGoing  = "Shutdown manager detected shutdown event"
	eventStays  = "Shutdown manager detected shutdown cancellation"
)

// Margin is how long after all periods we ask the host to wait, so that the last status can reach
// the API server.
const Margin = 5 * time.Second

const (
	// telling is how long to wait for the API server when all pods have ended.
	telling = 10 * time.Second
	// glance is how often to check whether pods have ended.
	glance = 100 * time.Millisecond
	// firstRetry and lastRetry are the shortest and longest pauses before a new session.
	firstRetry = time.Second
	lastRetry  = 10 * time.Second
	// patience is how often to retry within a session that does not answer.
	patience = 5
	// absentRetry is the longest pause if the host never had a service to ask.
	absentRetry = 10 * time.Minute
)

// Session watches a host and holds its inhibitor; *logind.Session implements it.
type Session interface {
	// Delay is the longest time that the host waits for us.
	Delay() time.Duration
	// Hints receives when the answer of Preparing, whether the host goes down, may have changed.
	Hints() <-chan struct{}
	Preparing(ctx context.Context) (bool, error)
	Hold(ctx context.Context) error
	Release(ctx context.Context) error
	// Ended is closed when the session is over; Err says why.
	Ended() <-chan struct{}
	Err() error
	Close() error
}

// Pods is the manager's view of the sync loop.
type Pods interface {
	// Known reports whether the loop has all pods of the node.
	Known() bool
	// Unended returns the pods that have not ended, whether or not anything of them runs.
	Unended() []*v1.Pod
	// End terminates a pod with this grace period; its status names the shutdown as the cause.
	End(p *v1.Pod, grace time.Duration)
	// Over reports whether nothing of the pod runs and its volumes are gone. Reported reports whether
	// the API server has received that.
	Over(p *v1.Pod) bool
	Reported(p *v1.Pod) bool
	// Revive restarts static pods that a shutdown ended. pending is true if some of them are still
	// terminating.
	Revive() (pending bool)
}

// Config of a Manager.
type Config struct {
	// Open starts a session. Absent reports whether its error means that the host has no service to
	// ask.
	Open   func(ctx context.Context) (Session, error)
	Absent func(error) bool
	// BootID returns an ID that changes with each boot of the host.
	BootID func(ctx context.Context) (string, error)
	Pods   Pods
	// Periods by priority; at least one.
	Periods []order.Period
	// Event records an event on the node. Changed shows on the node whether the host goes down.
	Event   func(kind, reason, message string)
	Changed func(going bool)
	// Began and Ended are called when the manager begins to end the pods, and when it has ended; nil:
	// no one needs them.
	Began, Ended func(at time.Time)
}

// Manager watches one host.
type Manager struct {
	cfg   Config
	going atomic.Bool

	// Only Run uses these:
	revive bool   // some static pods must restart when they have terminated
	boot   string // ID of the boot that goes down; empty if unknown
}

// New returns a Manager; call Run.
func New(c Config) (*Manager, error) {
	switch {
	case c.Open == nil, c.Absent == nil, c.BootID == nil, c.Pods == nil, c.Event == nil, c.Changed == nil:
		return nil, errors.New("shutdown: Open, Absent, BootID, Pods, Event and Changed are required")
	case len(c.Periods) == 0:
		return nil, errors.New("shutdown: at least one period is required")
	}
	if c.Began == nil {
		c.Began = func(time.Time) {}
	}
	if c.Ended == nil {
		c.Ended = func(time.Time) {}
	}
	return &Manager{cfg: c}, nil
}

// Going reports whether a shutdown of the host has begun. It is false for a nil Manager, which stands
// for a node that does not watch.
func (m *Manager) Going() bool { return m != nil && m.going.Load() }

// Run watches until ctx ends. The end of this process is not a shutdown of the host: the pods keep
// running.
func (m *Manager) Run(ctx context.Context) error {
	log := klog.FromContext(ctx)
	first := wait.Backoff{Duration: firstRetry, Factor: 2}
	retry, logged, ever := first, logonce.Failure{}, false
	for {
		s, err := m.cfg.Open(ctx)
		if err == nil {
			began := time.Now()
			ever = true
			m.logDelay(ctx, s)
			err = m.session(ctx, s)
			if time.Since(began) > lastRetry { // a session that ends at once does not reset the back-off
				retry, logged = first, logonce.Failure{}
			}
			if closeErr := s.Close(); closeErr != nil {
				log.V(1).Info("Failed to close the shutdown watch", "err", closeErr)
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		absent := m.cfg.Absent(err)
		if absent && m.isUpAgain(ctx) {
			m.over(ctx)
		}
		switch {
		case !logged.Changed(err):
		case absent && !ever:
			log.Info("Disabled graceful shutdown: the host has no systemd-logind", "err", err)
		default:
			log.Error(err, "Failed to watch for a shutdown of the host, will retry")
		}
		retry.Steps, retry.Cap = 1, lastRetry // for each failure, because the cap may change
		if absent && !ever {
			retry.Cap = absentRetry
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retry.Step()):
		}
	}
}

// logDelay logs, once per session, how long the host waits.
func (m *Manager) logDelay(ctx context.Context, s Session) {
	log, need := klog.FromContext(ctx), order.Total(m.cfg.Periods)
	if s.Delay() < need {
		log.Error(nil, "Found the host's shutdown delay shorter than the grace periods", "waits", s.Delay(), "needed", need)
		return
	}
	log.V(1).Info("Holding the shutdown inhibitor", "waits", s.Delay(), "needed", need)
}
