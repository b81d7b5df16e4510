package shutdown

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/syncloop/shutdown/order"
)

// The kubelet's words of a pod that ends by a shutdown, and of the node.
const (
	ReasonTerminated  = "Terminated"
	MessageTerminated = "Pod was terminated in response to imminent node shutdown."
	MessageNode       = "node is shutting down"

	reasonEvent = "NodeShutdown"
	eventGoing  = "Shutdown manager detected shutdown event"
	eventStays  = "Shutdown manager detected shutdown cancellation"
)

// Margin is for how long after all periods the machine is asked to wait, for the word of
// the last end to arrive.
const Margin = 5 * time.Second

const (
	// telling is how long the API server is waited for when all pods have ended.
	telling = 10 * time.Second
	// glance is how often it is looked whether pods have ended.
	glance = 100 * time.Millisecond
	// firstRetry and lastRetry are the pauses before a new session.
	firstRetry = time.Second
	lastRetry  = 10 * time.Second
	// patience is how often a session is asked again that does not answer.
	patience = 5
	// absentRetry is the longest pause where there was nothing to ask so far.
	absentRetry = 10 * time.Minute
)

// Session watches a machine and holds its inhibitor; *logind.Session has it.
type Session interface {
	// Delay is for how long the machine waits for us at most.
	Delay() time.Duration
	// Hints are poked when it is worth asking Preparing: whether the machine goes down.
	Hints() <-chan struct{}
	Preparing(ctx context.Context) (bool, error)
	Hold(ctx context.Context) error
	Release(ctx context.Context) error
	// Ended is closed when the session is over, of which Err says why.
	Ended() <-chan struct{}
	Err() error
	Close() error
}

// Pods are the loop, as the manager sees it.
type Pods interface {
	// Known reports whether it is known which pods there are.
	Known() bool
	// Unended are the pods that have not ended, whether or not anything of them runs.
	Unended() []*v1.Pod
	// End has a pod ended, with this grace, which is told as ended by the shutdown.
	End(p *v1.Pod, grace time.Duration)
	// Over reports whether nothing of the pod runs, and its volumes are gone; Told
	// whether the API server knows.
	Over(p *v1.Pod) bool
	Told(p *v1.Pod) bool
	// Revive has static pods that a shutdown ended run again. pending: of some the end
	// is not over yet.
	Revive() (pending bool)
}

// Config of a Manager.
type Config struct {
	// Open starts a session; Absent says of its error that there is nothing to ask.
	Open   func(ctx context.Context) (Session, error)
	Absent func(error) bool
	// BootID is another one after each start of the machine.
	BootID func(ctx context.Context) (string, error)
	Pods   Pods
	// Periods by priority; at least one.
	Periods []order.Period
	// Event records an event on the node; Changed shows on it whether the machine goes down.
	Event   func(kind, reason, message string)
	Changed func(going bool)
}

// Manager watches one machine.
type Manager struct {
	cfg   Config
	going atomic.Bool

	// Run's alone:
	revive bool   // some static pods are to run again when their end is over
	boot   string // the boot that was seen to end; empty: not known
}

// New makes a Manager; Run drives it.
func New(c Config) (*Manager, error) {
	switch {
	case c.Open == nil, c.Absent == nil, c.BootID == nil, c.Pods == nil, c.Event == nil, c.Changed == nil:
		return nil, errors.New("shutdown: Open, Absent, BootID, Pods, Event and Changed are required")
	case len(c.Periods) == 0:
		return nil, errors.New("shutdown: at least one period is required")
	}
	return &Manager{cfg: c}, nil
}

// Going reports whether the machine goes down, as far as it is known. None never does: a
// nil Manager is one of a node that does not watch.
func (m *Manager) Going() bool { return m != nil && m.going.Load() }

// Run watches until ctx ends. That of this process is no shutdown of the machine's: its
// pods run on.
func (m *Manager) Run(ctx context.Context) error {
	log := klog.FromContext(ctx)
	pause, told, ever := firstRetry, "", false
	for {
		s, err := m.cfg.Open(ctx)
		if err == nil {
			began := time.Now()
			ever = true
			m.tell(ctx, s)
			err = m.session(ctx, s)
			if time.Since(began) > lastRetry { // one that ends at once is no mend
				pause, told = firstRetry, ""
			}
			if closeErr := s.Close(); closeErr != nil {
				log.V(1).Info("The watch for a shutdown of the machine was not ended cleanly", "err", closeErr)
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
		case err.Error() == told:
		case absent && !ever:
			log.Info("Nobody can be asked to wait with a shutdown of this machine: its pods are not ended in order before it goes down", "err", err)
		default:
			log.Info("A shutdown of the machine is not watched for until it can be again", "err", err)
		}
		told = err.Error()
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		if absent && !ever {
			pause = min(2*pause, absentRetry)
		} else {
			pause = min(2*pause, lastRetry)
		}
	}
}

// tell says once a session what is held.
func (m *Manager) tell(ctx context.Context, s Session) {
	log, need := klog.FromContext(ctx), order.Total(m.cfg.Periods)
	if s.Delay() < need {
		log.Info("The machine does not wait for as long as the pods may take to end", "waits", s.Delay(), "needed", need)
		return
	}
	log.V(1).Info("A shutdown of the machine waits for its pods", "waits", s.Delay(), "needed", need)
}
