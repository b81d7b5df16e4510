package helper

import (
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/bowline-k8s/bowline/lifeline/wire"
)

const dnsPort = 53

// routing is a table, for looking up flows. It does not change.
type routing struct {
	cluster, local []netip.Prefix
	services       map[address]*target
	dns            map[netip.Addr]bool
}

type address struct {
	protocol wire.Protocol
	at       netip.AddrPort
}

// target is a Service.
type target struct {
	wire.Service
	turn atomic.Uint32 // of the backends, for the next flow
}

func newRouting(t wire.Table) *routing {
	r := &routing{cluster: t.Cluster, local: t.Local, services: map[address]*target{}, dns: map[netip.Addr]bool{}}
	redirected := func(b netip.AddrPort) bool { return r.redirected(b.Addr()) }
	for _, s := range t.Services {
		// What the helper itself sends to a redirected address would come back to it, without end.
		s.Backends = slices.DeleteFunc(slices.Clone(s.Backends), redirected)
		r.services[address{s.Protocol, s.Address}] = &target{Service: s}
	}
	for _, a := range t.DNS {
		r.dns[a] = true
	}
	return r
}

// redirected reports whether the rules redirect what is sent to an address.
func (r *routing) redirected(a netip.Addr) bool {
	in := func(all []netip.Prefix) bool {
		return slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	return in(r.cluster) && !in(r.local)
}

// verdict says where a flow goes: to a backend of a Service on this host, to the exit if there is neither a
// Service nor a refusal, or nowhere.
type verdict struct {
	service *target
	refusal wire.Refusal // 0: none
}

// decide says where a flow goes. A flow to an address that is not redirected came to a listener of the helper
// directly; passing it on would reach what its source cannot, or the listener again.
func (r *routing) decide(f wire.Flow) verdict {
	s := r.services[address{f.Protocol, f.Dst}]
	switch {
	case !r.redirected(f.Dst.Addr()):
		return verdict{refusal: wire.Forbidden}
	case s != nil && len(s.Backends) > 0:
		return verdict{service: s}
	case s != nil && s.LocalOnly:
		return verdict{refusal: wire.Refused}
	}
	return verdict{}
}

// isDNS reports whether a flow is for the cluster's DNS.
func (r *routing) isDNS(f wire.Flow) bool { return f.Dst.Port() == dnsPort && r.dns[f.Dst.Addr()] }

// udpDestinations are those whose datagrams are redirected: at most limit, the DNS first, in the order of the
// table.
func udpDestinations(t wire.Table, limit int) (all []netip.AddrPort, more bool) {
	seen := map[netip.AddrPort]bool{}
	r := newRouting(t)
	add := func(a netip.AddrPort) {
		switch {
		case seen[a] || !r.redirected(a.Addr()) || a.Port() == 0:
		case len(all) == limit:
			more = true
		default:
			seen[a] = true
			all = append(all, a)
		}
	}
	for _, a := range t.DNS {
		add(netip.AddrPortFrom(a, dnsPort))
	}
	for _, s := range t.Services {
		if s.Protocol == wire.UDP {
			add(s.Address)
		}
	}
	return all, more
}
