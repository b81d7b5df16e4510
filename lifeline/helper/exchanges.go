package helper

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/bowline-k8s/bowline/lifeline/wire"
)

// exchange is datagrams between a client and one destination.
type exchange struct {
	flow    wire.Flow
	via     *udpListener
	local   netip.Addr     // to which the client's datagrams were redirected
	backend *net.UDPConn   // nil: the exchange goes to the exit
	at      netip.AddrPort // address of backend
	used    time.Time      // guarded by the mutex of exchanges
}

// exchanges are those that exist. Its methods may be called at the same time.
type exchanges struct {
	mu  sync.Mutex
	all map[wire.Flow]*exchange
}

// get returns the exchange of a flow, which is used now, or nil.
func (x *exchanges) get(f wire.Flow, now time.Time) *exchange {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.all[f]
	if e != nil {
		e.used = now
	}
	return e
}

// add reports whether there was room.
func (x *exchanges) add(e *exchange) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.all) >= MaxExchanges {
		return false
	}
	if x.all == nil {
		x.all = map[wire.Flow]*exchange{}
	}
	x.all[e.flow] = e
	return true
}

func (x *exchanges) end(e *exchange) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.remove(e)
}

// remove needs the lock.
func (x *exchanges) remove(e *exchange) {
	if x.all[e.flow] == e {
		delete(x.all, e.flow)
	}
	if e.backend != nil {
		e.backend.Close()
	}
}

func (x *exchanges) count() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.all)
}

// endWhere ends the exchanges for which f returns true.
func (x *exchanges) endWhere(f func(*exchange) bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, e := range x.all {
		if f(e) {
			x.remove(e)
		}
	}
}

// outdated reports whether a table no longer has the listener of an exchange, or its backend.
func (e *exchange) outdated(r *routing, listeners map[netip.AddrPort]*udpListener) bool {
	if listeners[e.flow.Dst] != e.via {
		return true
	}
	s := r.services[address{wire.UDP, e.flow.Dst}]
	return e.backend != nil && (s == nil || !slices.Contains(s.Backends, e.at))
}

// sweep ends exchanges that are idle, until ctx ends.
func (x *exchanges) sweep(ctx context.Context) error {
	tick := time.NewTicker(exchangeIdle / 4)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case now := <-tick.C:
			x.endWhere(func(e *exchange) bool { return now.Sub(e.used) >= exchangeIdle })
		}
	}
}
