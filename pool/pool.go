package pool

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/bowline-k8s/bowline/config"
)

// Drive drives one host until ctx ends. It must end then; until it has, nothing
// takes its host's place. h is not to be changed.
type Drive func(ctx context.Context, h *config.Host) error

// Options of a pool; the zero value is for hosts that come and go by themselves.
type Options struct {
	// EndWhenAllFail lets Run end with the errors of all hosts when one fails and no
	// other one is driven or about to be.
	EndWhenAllFail bool
	// Hostile tells a failure that is the host's attack on the process, or may be one,
	// from others: such a host is quarantined. Nil: only a panic of the driver is.
	Hostile func(err error) bool
}

// Phase of a host.
type Phase string

// The phases of a host; doc.go draws them.
const (
	// Waiting for its turn, or for a driver that is in its way to end.
	Waiting Phase = "Waiting"
	// Driven: its driver runs. Whether it has reached the machine is the driver's to tell.
	Driven Phase = "Driven"
	// Failed: its driver has ended, and is tried again at NextTry.
	Failed Phase = "Failed"
	// Quarantined: its driver has ended as the host cost too much, or has panicked. It is
	// tried again at NextTry, much later than one that has failed.
	Quarantined Phase = "Quarantined"
	// Ending: its driver has been told to end, as the host is changed or not wanted.
	Ending Phase = "Ending"
)

// State of a host.
type State struct {
	Phase Phase
	Since time.Time // of the phase
	// InTheWay says, while Waiting, what has to end first; mostly nothing.
	InTheWay string
	// Err is how the driver ended the last time; nil if it never failed as it is
	// configured now. FailedAt is when.
	Err      error
	FailedAt time.Time
	// NextTry is when a Failed or Quarantined host is tried again.
	NextTry time.Time
	// Quarantines is how often it was quarantined as it is configured now.
	Quarantines int
}

// PanicError is how a driver ended that panicked.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("the host's driver panicked: %v", e.Value) }

// Pool is the hosts of one process. Its methods may be called from anywhere, Run once.
type Pool struct {
	drive   Drive
	options Options
	chance  func() float64 // [0, 1)

	wake  chan struct{} // of one: wanted has changed
	ended chan ending

	mu      sync.Mutex
	wanted  map[string]*config.Host
	states  map[string]State
	changed chan struct{} // closed, and a new one made, when states have changed

	// Run's own.
	members map[string]*member
	holders map[config.Claim]*member // of what live drivers have for themselves
	turn    time.Time                // when the next driver may start
	touched bool                     // a state has changed since they were shown
}

// New makes a pool without hosts.
func New(drive Drive, o Options) *Pool {
	return &Pool{
		drive: drive, options: o, chance: rand.Float64,
		wake: make(chan struct{}, 1), ended: make(chan ending), changed: make(chan struct{}),
		wanted: map[string]*config.Host{}, states: map[string]State{},
		members: map[string]*member{}, holders: map[config.Claim]*member{},
	}
}

// Set says which hosts there are to be, by name. It does not wait. The hosts are the
// pool's from now on, and not to be changed.
func (p *Pool) Set(hosts map[string]*config.Host) {
	p.mu.Lock()
	p.wanted = maps.Clone(hosts)
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// States of all hosts that are wanted or whose drivers have not ended yet.
func (p *Pool) States() map[string]State {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.states)
}

// Changed is closed when a state changes after this call. Ask for it before States.
func (p *Pool) Changed() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

// show makes the states known, where one has changed.
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
