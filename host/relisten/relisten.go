// Package relisten keeps listening on an address of a host while the underlying connections come
// and go. Its callers accept from one stable listener.
//
//	  ┌──── refused: wait 1 s, doubled up to 60 s ─────┐
//	  ▼     (host unreachable: wait 2 s)               │
//	waiting ──────────────── Listen ───────────────────┤
//	  ▲                        │                       │
//	  │                        ▼                       │
//	  └── ended or Drop ── listening ── Check fails ───┘
package relisten

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/notify"
)

// Config of a Listener.
type Config struct {
	// Address on the host. It has a port, and does not change.
	Address *net.TCPAddr
	// Listen listens there. Its error wraps host.ErrUnreachable if the host was not asked.
	Listen func(ctx context.Context) (net.Listener, error)
	// Check dials Address as clients would, and checks that their connections reach this process.
	// It ends with its context. An error that wraps host.ErrUnreachable or ErrUnknown means that
	// the check has no result.
	Check func(ctx context.Context) error
	// Reconnect is called before each Listen after a number of refusals (reconnectAfter), because the
	// permissions on the host may have changed. May be nil.
	Reconnect func()
	// OnResult receives the result of each try, one after the other: nil if it listens and Check
	// succeeded, else the reason. On an error that wraps ErrUnknown it listens.
	OnResult func(error)
	// Budget ends the driver if code panics that reads data of the host: Check makes a TLS
	// handshake with whatever answers there. May be nil.
	Budget *budget.Account
}

// ErrUnknown reports that Check had no result.
var ErrUnknown = errors.New("not tested")

const (
	firstWait   = time.Second
	longestWait = time.Minute
	reachWait   = 2 * time.Second // while the host is unreachable
	lookTime    = 10 * time.Second
	looks       = 3
	// reconnectAfter is the number of refusals after which Reconnect is called before each Listen. A port
	// that its last holder is about to release becomes free before that.
	reconnectAfter = 4
)

// Listener is a net.Listener. New starts nothing; Run does.
type Listener struct {
	cfg    Config
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
	retry  notify.Signal

	mu    sync.Mutex
	now   net.Listener // nil while not listening
	drops int          // how often Drop was called
}

// New makes a listener that accepts nothing until Run is called.
func New(c Config) (*Listener, error) {
	if c.Address == nil || c.Address.Port == 0 || c.Listen == nil || c.Check == nil || c.OnResult == nil {
		return nil, errors.New("relisten: Address with a port, Listen, Check and OnResult are required")
	}
	return &Listener{cfg: c, conns: make(chan net.Conn), closed: make(chan struct{}), retry: notify.New()}, nil
}

// Addr is the address on the host.
func (l *Listener) Addr() net.Addr { return l.cfg.Address }

// Accept waits for a connection from any of the underlying listeners. It fails only after Close.
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

// Close ends the listener for good.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	l.Drop()
	return nil
}

// Drop closes the underlying listener and discards a Listen in progress, for when the
// permissions to listen may have changed. Run then tries again.
func (l *Listener) Drop() {
	l.mu.Lock()
	now := l.now
	l.now = nil
	l.drops++
	l.mu.Unlock()
	if now != nil {
		// Close may wait for a host that does not answer.
		go func() {
			defer l.cfg.Budget.Recover("the end of a listener")
			_ = now.Close()
		}()
	}
}

// Retry makes Run try at once.
func (l *Listener) Retry() { l.retry.Send() }

// Run listens until ctx ends or Close is called.
func (l *Listener) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer l.cfg.Budget.Recover("waiting for a listener to close")
		select {
		case <-l.closed:
			cancel()
		case <-ctx.Done():
		}
	}()
	first := wait.Backoff{Duration: firstWait, Factor: 2, Steps: 10, Cap: longestWait}
	refused, retry := 0, first
	for {
		if refused >= reconnectAfter && l.cfg.Reconnect != nil {
			l.cfg.Reconnect()
		}
		err := l.listen(ctx)
		if ctx.Err() != nil {
			return nil
		}
		pause := reachWait
		if errors.Is(err, host.ErrUnreachable) {
			refused, retry = 0, first
		} else {
			refused++
			pause = retry.Step()
		}
		l.cfg.OnResult(err)
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-l.retry:
		case <-timer.C:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return nil
		}
	}
}

// listen listens once, until that ends, and returns the reason.
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
		defer l.cfg.Budget.Recover("the listener on the host")
		ended <- l.take(ctx, listener)
	})
	look := func() {
		defer l.cfg.Budget.Recover("exposure check")
		looked <- l.look(ctx)
	}
	both.Go(look)
	var again <-chan time.Time // nil while a look is in progress, and once its result is known
	for {
		select {
		case err := <-looked:
			if err != nil && !errors.Is(err, ErrUnknown) {
				return err
			}
			l.cfg.OnResult(err)
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

// take passes accepted connections on to Accept.
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

// look calls Check until there is a result, at most looks times.
func (l *Listener) look(ctx context.Context) error {
	for tries := 1; ; tries++ {
		err := func() error {
			ctx, cancel := context.WithTimeout(ctx, lookTime)
			defer cancel()
			return l.cfg.Check(ctx)
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
