package helper

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/bowline-k8s/bowline/lifeline/helper/dnscache"
	"github.com/bowline-k8s/bowline/lifeline/wire"
	"github.com/bowline-k8s/bowline/notify"
)

// helper is a helper that runs.
type helper struct {
	cfg       Config
	tcp4      uint16 // ports of the listeners, 0: none
	tcp6      uint16
	cache     *dnscache.Cache
	chooser   chooser
	exchanges exchanges
	questions questions
	asking    chan struct{} // has an element for each DNS question by UDP
	changed   notify.Signal // something that a status has
	tables    chan wire.Table

	routing atomic.Pointer[routing] // nil: no table has arrived
	current atomic.Pointer[wire.Session]
	flows   atomic.Int64
	served  atomic.Uint64
	logFull sync.Once
	work    sync.WaitGroup // flows, exchanges and listeners for datagrams

	// The goroutine of sessions owns what follows.
	rules     Rules
	listeners map[netip.AddrPort]*udpListener

	mu    sync.Mutex
	state wire.Status // what is known of the rules
}

// Run runs a helper until ctx ends. Then it resets all flows, and removes the rules. It returns nil after that,
// and an error if it cannot listen, or there are no more sessions.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.validate(); err != nil {
		return fmt.Errorf("the configuration of the helper: %w", err)
	}
	h := &helper{
		cfg: cfg, asking: make(chan struct{}, maxQuestions), changed: notify.New(),
		tables: make(chan wire.Table), listeners: map[netip.AddrPort]*udpListener{},
		state: wire.Status{Reason: "NoTable", Message: "no table has arrived"},
	}
	h.cache = dnscache.New(dnscache.Config{Ask: h.ask, Stale: cfg.Stale})
	listeners, err := h.listenTCP(ctx)
	if err != nil {
		return err
	}
	group, running := errgroup.WithContext(ctx)
	for _, l := range listeners {
		group.Go(func() error { return h.accept(running, l) })
	}
	group.Go(func() error { return h.cache.Run(running) })
	group.Go(func() error { return h.exchanges.sweep(running) })
	group.Go(func() error { return h.sessions(running) })
	err = group.Wait()
	if ctx.Err() != nil {
		err = nil // all parts have ended because of it
	}
	h.work.Wait()
	// The rules last: while they exist, the resets of flows reach the pods.
	if h.rules != nil {
		err = errors.Join(err, h.rules.Close())
	}
	return err
}

// listenTCP makes the listeners. A host without IPv6 needs none for it.
func (h *helper) listenTCP(ctx context.Context) (all []*net.TCPListener, err error) {
	for _, at := range h.cfg.Listen {
		network, port := "tcp6", &h.tcp6
		if at.Is4() {
			network, port = "tcp4", &h.tcp4
		}
		l, listenErr := (&net.ListenConfig{}).Listen(ctx, network, netip.AddrPortFrom(at, 0).String())
		if at.Is6() && (errors.Is(listenErr, unix.EAFNOSUPPORT) || errors.Is(listenErr, unix.EADDRNOTAVAIL)) {
			continue
		}
		if listenErr != nil {
			err = errors.Join(err, listenErr)
			continue
		}
		all = append(all, l.(*net.TCPListener))
		*port = plain(l.Addr()).Port()
	}
	if err == nil && len(all) == 0 {
		err = errors.New("the host has none of the addresses")
	}
	if err != nil {
		for _, l := range all {
			l.Close()
		}
		return nil, fmt.Errorf("listen for redirected connections: %w", err)
	}
	return all, nil
}

// session returns the session with the exit, or nil.
func (h *helper) session() wire.Session {
	if s := h.current.Load(); s != nil {
		return *s
	}
	return nil
}
