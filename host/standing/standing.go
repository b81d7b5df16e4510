// Package standing keeps an address of a machine listened on while the connections by
// which that is done come and go. To who accepts, it is one listener.
//
//	  ┌───────── refused: wait 1 s … 60 s ─────────┐
//	  ▼   (the machine is not reached: 2 s)        │
//	waits ────────────── Listen ───────────────────┤
//	  ▲                     │                      │
//	  │                     ▼                      │
//	  └── it ended, Drop ── listens ── Look: no ───┘
package standing

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
)

// Config of a Listener.
type Config struct {
	// Address on the machine, with its port: always the same.
	Address *net.TCPAddr
	// Listen listens there. Its error wraps host.ErrUnreachable where the machine was
	// not asked.
	Listen func(ctx context.Context) (net.Listener, error)
	// Look dials Address as others would, and finds out whether they come to us. It
	// ends with its context. An error that wraps host.ErrUnreachable or ErrUnknown says
	// nothing of that.
	Look func(ctx context.Context) error
	// Anew is called before a Listen that was refused some times: what the machine
	// allows may have been changed. May be nil.
	Anew func()
	// Tell hears of each try, one after the other: nil, it is listened on and was
	// looked at; or why not. An error that wraps ErrUnknown: it is listened on.
	Tell func(error)
	// Budget ends the driver where code panics that reads what the machine says: a look
	// is a TLS handshake with whatever answers there. May be nil.
	Budget *budget.Account
}

// ErrUnknown is a look that could not be had.
var ErrUnknown = errors.New("whether others come to it is not known")

const (
	firstWait   = time.Second
	longestWait = time.Minute
	reachWait   = 2 * time.Second // for a machine that is not reached
	lookTime    = 10 * time.Second
	looks       = 3
	// stubborn is the number of refusals after which Anew is called before each Listen. A
	// port that its last holder is about to give up is had before.
	stubborn = 4
)

// Listener is a net.Listener. New starts nothing; Run does.
type Listener struct {
	cfg    Config
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
	poked  chan struct{}

	mu    sync.Mutex
	now   net.Listener // nil while there is none
	drops int          // how often Drop was called
}

// New makes a listener that accepts nothing before Run.
func New(c Config) (*Listener, error) {
	if c.Address == nil || c.Address.Port == 0 || c.Listen == nil || c.Look == nil || c.Tell == nil {
		return nil, errors.New("standing: Address with a port, Listen, Look and Tell are required")
	}
	return &Listener{cfg: c, conns: make(chan net.Conn), closed: make(chan struct{}), poked: make(chan struct{}, 1)}, nil
}

// Addr is the address on the machine.
func (l *Listener) Addr() net.Addr { return l.cfg.Address }

// Accept waits for a connection, by whichever way they come. It fails after Close alone.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case <-l.closed:
		return nil, net.ErrClosed
	default:
	}
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close ends it for good.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	l.Drop()
	return nil
}

// Drop ends what is listened on now, and a Listen that is under way comes to nothing:
// who may listen there may have changed. Run tries again.
func (l *Listener) Drop() {
	l.mu.Lock()
	now := l.now
	l.now = nil
	l.drops++
	l.mu.Unlock()
	if now != nil {
		// It may wait for a machine that does not answer.
		go func() {
			defer l.cfg.Budget.Recover("the end of a listener")
			_ = now.Close()
		}()
	}
}

// Poke has Run try at once.
func (l *Listener) Poke() {
	select {
	case l.poked <- struct{}{}:
	default:
	}
}

// Run listens until ctx ends or Close is called.
func (l *Listener) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer l.cfg.Budget.Recover("the wait for a listener's end")
		select {
		case <-l.closed:
			cancel()
		case <-ctx.Done():
		}
	}()
	refused := 0
	for {
		if refused >= stubborn && l.cfg.Anew != nil {
			l.cfg.Anew()
		}
		err := l.listen(ctx)
		if ctx.Err() != nil {
			return nil
		}
		wait := reachWait
		switch {
		case errors.Is(err, host.ErrUnreachable):
			refused = 0
		default:
			refused++
			wait = min(firstWait<<min(refused-1, 10), longestWait)
		}
		l.cfg.Tell(err)
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-l.poked:
		case <-timer.C:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return nil
		}
	}
}

// listen listens once, and returns why it does no more.
func (l *Listener) listen(ctx context.Context) error {
	l.mu.Lock()
	drops := l.drops
	l.mu.Unlock()
	listener, err := l.cfg.Listen(ctx)
	if err != nil {
		return err
	}
	defer listener.Close()
	l.mu.Lock()
	stale := l.drops != drops
	if !stale {
		l.now = listener
	}
	l.mu.Unlock()
	if stale {
		return fmt.Errorf("listen on %s: given up: %w", l.cfg.Address, host.ErrUnreachable)
	}
	ctx, cancel := context.WithCancel(ctx)
	var both sync.WaitGroup
	defer func() {
		cancel()
		l.mu.Lock()
		if l.now == listener {
			l.now = nil
		}
		l.mu.Unlock()
		_ = listener.Close()
		both.Wait()
	}()
	ended, looked := make(chan error, 1), make(chan error, 1)
	both.Go(func() {
		defer l.cfg.Budget.Recover("the listener on the machine")
		ended <- l.take(ctx, listener)
	})
	look := func() {
		defer l.cfg.Budget.Recover("the look at who answers on the machine")
		looked <- l.look(ctx)
	}
	both.Go(look)
	var again <-chan time.Time // nil while a look is under way, and when it is known
	for {
		select {
		case err := <-looked:
			if err != nil && !errors.Is(err, ErrUnknown) {
				return err
			}
			l.cfg.Tell(err)
			if err != nil {
				again = time.After(longestWait)
			}
		case <-again:
			again = nil
			both.Go(look)
		case err := <-ended:
			return fmt.Errorf("listen on %s: it has ended: %w: %w", l.cfg.Address, err, host.ErrUnreachable)
		case <-ctx.Done():
			return nil
		}
	}
}

// take gives what comes to who accepts.
func (l *Listener) take(ctx context.Context, from net.Listener) error {
	for {
		c, err := from.Accept()
		if err != nil {
			return err
		}
		select {
		case l.conns <- c:
		case <-ctx.Done():
			c.Close()
			return ctx.Err()
		}
	}
}

// look looks until it is known, or is given up.
func (l *Listener) look(ctx context.Context) error {
	for tries := 1; ; tries++ {
		err := func() error {
			ctx, cancel := context.WithTimeout(ctx, lookTime)
			defer cancel()
			return l.cfg.Look(ctx)
		}()
		late := errors.Is(err, host.ErrUnreachable) || errors.Is(err, context.DeadlineExceeded)
		switch {
		case err == nil || !late:
			return err
		case tries == looks:
			return fmt.Errorf("%w: %w", ErrUnknown, err)
		}
		timer := time.NewTimer(reachWait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}
