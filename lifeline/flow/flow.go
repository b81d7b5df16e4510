// Package flow declares what pods begin and where it goes: flows, why they are refused, and the table by
// which a helper decides. Package wire has the same types under its own name; they are declared here because
// wire also declares connections, which pure packages cannot import.
//
// The package is pure: it declares values.
package flow

import (
	"net/netip"
	"strconv"
	"time"
)

// Protocol is an IP protocol number.
type Protocol uint8

const (
	TCP Protocol = 6
	UDP Protocol = 17
)

// String is the name in the Kubernetes API, or the number.
func (p Protocol) String() string {
	switch p {
	case TCP:
		return "TCP"
	case UDP:
		return "UDP"
	}
	return strconv.Itoa(int(p))
}

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

// String is the name of the constant.
func (r Refusal) String() string {
	if int(r) < len(refusals) {
		return refusals[r]
	}
	return strconv.Itoa(int(r))
}

var refusals = [...]string{"None", "Refused", "Unreachable", "Forbidden", "Isolated", "Exhausted", "Broken"}

// Table is all that a helper needs in order to decide where a flow goes. It stays in force while the link is
// down.
type Table struct {
	// Cluster are the prefixes that the helper redirects: the Services, the pods of the cluster and those of
	// other remote hosts, and what the Host object allows besides. Local are the prefixes inside of them that
	// it leaves alone: this host and its pods, what the Host object excludes, and what no exit dials.
	Cluster, Local []netip.Prefix
	// Services have at least one port; sorted by address, protocol and port. UDP Services are listed without
	// a backend too: the helper can only redirect a datagram to a port of its own for each Service, because
	// the kernel does not say where a datagram was sent that it has redirected.
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
