// Package wire declares what a lifeline's two ends tell each other: the exit, in Bowline's process, and the
// helper, in a pod on the remote host. lifeline/mux carries it over lifeline/pipe.
package wire

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"
)

// Protocol is an IP protocol number.
type Protocol uint8

const (
	TCP Protocol = 6
	UDP Protocol = 17
)

// Flow is a connection or an exchange of datagrams, as the pod that began it sees it. Src is the address of
// the pod on its host, which a CNI plugin may have replaced by that of the host.
type Flow struct {
	Protocol Protocol
	Src, Dst netip.AddrPort
}

// Refusal says why a flow was refused or ended. The side that is not to blame resets its connection.
type Refusal uint8

const (
	// Refused: the destination refused the connection.
	Refused Refusal = iota + 1
	// Unreachable: there is no route to the destination, or it did not answer in time.
	Unreachable
	// Forbidden: the exit may not dial the destination (cluster prefixes, allow list, never list).
	Forbidden
	// Isolated: a NetworkPolicy isolates the source or the destination.
	Isolated
	// Exhausted: the host has too many flows, or they hold too many bytes.
	Exhausted
	// Broken: an established connection ended with a reset, or the other end of the lifeline has changed.
	Broken
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

// Table is all that a helper needs in order to decide where a flow goes. It stays in force while the link is
// down.
type Table struct {
	// Cluster are the prefixes that the helper redirects: the Services, the pods of the cluster and those of
	// other remote hosts. Local are the prefixes inside of them that it leaves alone: the pods of this host,
	// and what the Host object excludes.
	Cluster, Local []netip.Prefix
	// Services have at least one port; sorted by address, protocol and port.
	Services []Service
	// DNS are the addresses of the cluster's DNS, whose answers the helper may cache.
	DNS []netip.Addr
}

// Service is one port of a Service at one of its cluster IPs.
type Service struct {
	Protocol Protocol
	Address  netip.AddrPort
	// Backends are the ready endpoints on this host. The helper serves a Service that has one here.
	Backends []netip.AddrPort
	// LocalOnly: internalTrafficPolicy is Local. Without a backend the helper refuses the flow.
	LocalOnly bool
	// Affinity is the time for which a source address keeps its backend; 0: none.
	Affinity time.Duration
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
