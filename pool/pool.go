package pool

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/notify"
)

// Manage manages one host until ctx ends. It must end then; until it has ended, no other driver
// takes the host's claims. It must not modify h.
type Manage func(ctx context.Context, h *config.Host) error

// Options of a pool. The zero value suits hosts that come and go at run time.
type Options struct {
	// EndWhenAllFail ends Run with the errors of all hosts when one fails and no other one is
	// managed or about to be.
	EndWhenAllFail bool
	// Hostile reports whether a failure is, or may be, an attack of the host on the process. Such a
	// host is quarantined. Nil: only a panic of the driver quarantines.
	Hostile func(err error) bool
}

// Phase of a host.
type Phase string

// The phases of a host; see the drawing in doc.go.
const (
	// Waiting for its turn, or for another driver with the same claim to end.
	Waiting Phase = "Waiting"
	// Managed: its driver runs. Only the driver knows whether it has reached the machine.
	Managed Phase = "Managed"
	// Failed: its driver has ended. It is tried again at NextTry.
	Failed Phase = "Failed"
	// Quarantined: its driver has panicked, or has ended because the host exceeded a budget. It is
	// tried again at NextTry, after a longer pause than a Failed host.
	Quarantined Phase = "Quarantined"
	// Ending: its driver has been cancelled, because the host is changed or not wanted any more.
	Ending Phase = "Ending"
)

// State of a host.
type State struct {
	Phase Phase
	Since time.Time // when the phase began
	// BlockedBy says, while Waiting, whose driver must end first; mostly empty.
	BlockedBy string
	// Err is the last error of the driver; nil if it has not failed with the current configuration.
	// FailedAt is when.
	Err      error
	FailedAt time.Time
	// NextTry is when a Failed or Quarantined host is tried again.
	NextTry time.Time
	// Quarantines counts the quarantines with the current configuration.
	Quarantines int
}

// PanicError is the error of a driver that panicked.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("the host's driver panicked: %v", e.Value) }

// Pool is the hosts of one process. Its methods may be called concurrently, Run only once.
type Pool struct {
	manage  Manage
	options Options
	chance  func() float64 // [0, 1)

	wake  notify.Signal // wanted has changed
	ended chan ending
	pings chan struct{}

	mu      sync.Mutex
	wanted  map[string]*config.Host
	states  map[string]State
	changed chan struct{} // closed and replaced when states have changed

	// Only Run uses these.
	members map[string]*member
	holders map[config.Claim]*member // the claims of live drivers
	turn    time.Time                // when the next driver may start
	touched bool                     // a state has changed since show
}

// New makes a pool without hosts.
func New(manage Manage, o Options) *Pool {
	return &Pool{
		manage: manage, options: o, chance: rand.Float64,
		wake: notify.New(), ended: make(chan ending), pings: make(chan struct{}), changed: make(chan struct{}),
		wanted: map[string]*config.Host{}, states: map[string]State{},
		members: map[string]*member{}, holders: map[config.Claim]*member{},
	}
}

// Set sets the wanted hosts, by name. It does not wait. The caller must not modify the hosts
// afterwards.
func (p *Pool) Set(hosts map[string]*config.Host) {
	p.mu.Lock()
	p.wanted = maps.Clone(hosts)
	p.mu.Unlock()
	p.wake.Send()
}

// States of all hosts that are wanted, or whose drivers have not ended yet.
func (p *Pool) States() map[string]State {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.states)
}

// Ping returns nil when Run answers, or the cause when ctx ends before.
func (p *Pool) Ping(ctx context.Context) error {
	select {
	case p.pings <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the pool of hosts does not answer: %w", context.Cause(ctx))
	}
}

// Changed is closed when a state changes after this call. Call it before States.
func (p *Pool) Changed() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

// show publishes the states if one has changed.
func (p *Pool) show() {
	if !p.touched {
		return
	}
	p.touched = false
	states := make(map[string]State, len(p.members))
	for name, m := range p.members {
		states[name] = m.state
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.states = states
	close(p.changed)
	p.changed = make(chan struct{})
}
