// Package wire declares what a lifeline's two ends tell each other: the exit, in Bowline's process, and the
// helper, in a pod on the remote host. lifeline/mux carries it over lifeline/pipe.
package wire

import (
	"context"
	"errors"
	"net"

	"github.com/bowline-k8s/bowline/lifeline/flow"
)

// The types that also pure packages use are declared in package flow.
type (
	Protocol = flow.Protocol
	Flow     = flow.Flow
	Refusal  = flow.Refusal
	Table    = flow.Table
	Service  = flow.Service
)

const (
	TCP = flow.TCP
	UDP = flow.UDP

	Refused     = flow.Refused
	Unreachable = flow.Unreachable
	Forbidden   = flow.Forbidden
	Isolated    = flow.Isolated
	Exhausted   = flow.Exhausted
	Broken      = flow.Broken
)

// Error is the error of a Stream that its other end has refused or reset.
type Error struct{ Refusal Refusal }

// ErrFull is returned for a datagram that was dropped because the queue is full. Datagrams may be lost.
var ErrFull = errors.New("the queue of datagrams is full")

// Datagram is one UDP payload. From the helper, Flow is the exchange that it belongs to; the answer has the
// same Flow.
type Datagram struct {
	Flow    Flow
	Payload []byte // at most 65,507 bytes
}

// Stream is one TCP connection of a pod. Read and Write may be called at the same time. Close ends both
// directions in order; Reset discards what has not been delivered.
type Stream interface {
	net.Conn
	CloseWrite() error
	Reset(Refusal)
	Flow() Flow
}

// Session connects one helper and one exit. It survives cuts of the link up to the resume time. When it ends,
// each Stream fails with Broken, and Accept, Datagrams and Tables end.
type Session interface {
	// Open begins a flow. It does not wait for the other end: the first bytes travel with the request, and a
	// refusal is the error of a later Read or Write. It fails with Exhausted if there are too many.
	Open(ctx context.Context, f Flow) (Stream, error)
	// Accept returns the next flow that the other end has opened.
	Accept(ctx context.Context) (Stream, error)
	// Send sends a datagram, or drops it with ErrFull.
	Send(d Datagram) error
	// Receive returns the next datagram.
	Receive(ctx context.Context) (Datagram, error)
	// SetTable replaces the other end's table; only the exit calls it. The newest one wins.
	SetTable(t Table) error
	// Table returns the next table that differs from the last one returned.
	Table(ctx context.Context) (Table, error)
	// Report replaces the exit's view of the helper; only the helper calls it.
	Report(s Status) error
	// Status returns the next status that differs from the last one returned.
	Status(ctx context.Context) (Status, error)
	// Done is closed when the session has ended; Err says why.
	Done() <-chan struct{}
	Err() error
	Close() error
}

// Status is what a helper says about itself.
type Status struct {
	// Ready: the rules are installed, and every listener runs.
	Ready bool
	// Reason is a word in CamelCase for the condition LifelineUp, and Message a sentence; both empty if Ready.
	Reason, Message string
	// Rules says how the flows are redirected: "nftables" (which the kernel removes with the helper),
	// "nftables, kept" (kernels before 5.12), "iptables".
	Rules string
	// Flows are the flows that exist; Served those to backends on the host, CacheHits and CacheMisses the DNS
	// questions since the helper's start.
	Flows, Served, CacheHits, CacheMisses uint64
}
