package mux

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/lifeline/pipe/pipetest"
	"github.com/bowline-k8s/bowline/lifeline/wire"
)

// listener accepts what dials put into it.
type listener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newListener() *listener { return &listener{conns: make(chan net.Conn), done: make(chan struct{})} }

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *listener) Addr() net.Addr { return &net.UnixAddr{Name: "fake", Net: "unix"} }

// world has a server, and makes exits that dial it over cables.
type world struct {
	cfg      Config
	listener *listener
	sessions chan *Session // that the server handles

	// plan is that of the next cable; nil: carries everything.
	plan func(channel int) pipetest.Plan

	mu     sync.Mutex
	cables []*pipetest.Cable
	refuse error

	charged, most atomic.Int64
}

func newWorld(t testing.TB, cfg Config) *world {
	t.Helper()
	w := &world{cfg: cfg, listener: newListener(), sessions: make(chan *Session)}
	w.cfg.Charge = w.charge
	s, err := NewServer(w.cfg, w.listener, func(ctx context.Context, s *Session) {
		select {
		case w.sessions <- s:
		case <-ctx.Done():
		}
		<-ctx.Done()
	})
	testutil.Must(t, err)
	stop := testutil.Go(context.Background(), s.Run)
	t.Cleanup(func() { stop() })
	return w
}

func (w *world) charge(delta int64) {
	now := w.charged.Add(delta)
	for {
		most := w.most.Load()
		if now <= most || w.most.CompareAndSwap(most, now) {
			return
		}
	}
}

func (w *world) dial(ctx context.Context, channel int) (net.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refuse != nil {
		return nil, w.refuse
	}
	var plan pipetest.Plan
	if w.plan != nil {
		plan = w.plan(channel)
	}
	c, near, other := pipetest.New(plan)
	select {
	case w.listener.conns <- other:
	case <-w.listener.done:
		return nil, net.ErrClosed
	}
	w.cables = append(w.cables, c)
	return near, nil
}

// cut cuts all transports, and refuses further ones with err if that is not nil.
func (w *world) cut(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refuse = err
	for _, c := range w.cables {
		c.Cut()
	}
	w.cables = nil
}

// connect makes an exit, and returns it with the session of the helper. stop ends the exit.
func (w *world) connect(t testing.TB) (exit, helper *Session, stop func() error) {
	t.Helper()
	exit, err := Client(w.cfg, w.dial)
	testutil.Must(t, err)
	stop = testutil.Go(context.Background(), exit.Run)
	t.Cleanup(func() { stop() })
	return exit, <-w.sessions, sync.OnceValue(stop)
}

// flow is one of many flows.
func flow(n int) wire.Flow {
	return wire.Flow{Protocol: wire.TCP, Src: netip.AddrPortFrom(netip.MustParseAddr("10.88.0.5"), uint16(n)),
		Dst: netip.AddrPortFrom(netip.MustParseAddr("10.96.0.1"), uint16(n>>16+443))}
}

// open opens a stream at one end, and accepts it at the other.
func open(t testing.TB, from, to *Session, n int) (opened, accepted wire.Stream) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	opened, err := from.Open(ctx, flow(n))
	testutil.Must(t, err)
	accepted, err = to.Accept(ctx)
	testutil.Must(t, err)
	if accepted.Flow() != flow(n) {
		t.Fatalf("accepted %+v instead of flow %d", accepted.Flow(), n)
	}
	return opened, accepted
}
