package route

import (
	"net/netip"

	"github.com/bowline-k8s/bowline/lifeline/flow"
)

// Action is what the exit does with a flow. Without a decision it refuses.
type Action uint8

const (
	// Refuse: refuse with Verdict.Refusal.
	Refuse Action = iota
	// Dial: dial Verdict.Address.
	Dial
	// DialLink: dial Verdict.Address through the link of the host with the node Verdict.Node. A link carries
	// TCP only.
	DialLink
	// DialAPIServer: dial the API server as Bowline's own client does.
	DialAPIServer
)

// Verdict is a decision about a flow.
type Verdict struct {
	Action  Action
	Refusal flow.Refusal   // with Refuse
	Address netip.AddrPort // with Dial and DialLink
	Node    string         // with DialLink
	// Ends are where the flow may end: several if the cluster chooses among the endpoints of a Service. A
	// NetworkPolicy has to permit all of them. They must not be modified.
	Ends []Endpoint
}

// Decide says what the exit does with a flow of the host.
func Decide(f flow.Flow, s State) Verdict {
	// The kernel of the exit's machine connects to the IPv4 address of a mapped one.
	f.Dst = netip.AddrPortFrom(f.Dst.Addr().Unmap(), f.Dst.Port())
	a, n := f.Dst.Addr(), s.Network
	switch {
	case f.Protocol != flow.TCP && f.Protocol != flow.UDP, f.Dst.Port() == 0, s.never(a), within(s.Exclude, a):
		return refuse(flow.Forbidden)
	case within(n.services, a):
		return s.toService(f)
	}
	switch owners := s.owners(a); {
	case len(owners) == 1:
		return s.link(f.Protocol, Endpoint{f.Dst, owners[0].Node})
	case len(owners) > 1:
		return refuse(flow.Unreachable) // one of them is meant, and the flow does not say which
	case within(n.pods, a) && !n.outside, s.allowed(f.Protocol, f.Dst):
		return dial(Endpoint{Address: f.Dst})
	case within(n.pods, a):
		return refuse(flow.Unreachable)
	}
	return refuse(flow.Forbidden)
}

// toService decides about a flow to an address of the cluster's Services.
func (s State) toService(f flow.Flow) Verdict {
	p := s.Services.find(f.Protocol, f.Dst)
	switch {
	case s.Network.outside && p != nil && p.service == apiServer && f.Protocol == flow.TCP:
		return Verdict{Action: DialAPIServer, Ends: p.ends}
	case s.Network.outside && s.allowed(f.Protocol, f.Dst): // there is a route, by the word of the Host object
		return dial(Endpoint{Address: f.Dst})
	case p == nil:
		return refuse(flow.Refused)
	}
	ends := p.ends
	if p.localOnly && !p.elsewhere {
		ends = nil
		for _, e := range s.local(p) {
			ends = append(ends, e.Endpoint)
		}
	}
	switch {
	case len(ends) == 0:
		return refuse(flow.Refused)
	case s.clusterServes(p, ends):
		return Verdict{Action: Dial, Address: f.Dst, Ends: ends}
	}
	return s.choose(f, p, ends)
}

// clusterServes reports whether the exit may leave the choice among the endpoints to the cluster: every one
// of them is reached from there, and none is Bowline itself. An endpoint at the address of a Node is a pod in
// the host's network, or the API server: the cluster dials it, and the exit only the Service.
func (s State) clusterServes(p *port, ends []Endpoint) bool {
	if s.Network.outside || p.localOnly && !p.elsewhere {
		return false
	}
	for _, e := range ends {
		a := e.Address.Addr()
		if _, ours := s.home(e); ours || s.Network.self[a] || special(a) {
			return false
		}
	}
	return true
}

// choose chooses one of the endpoints that the exit can reach. A flow with the same source chooses the same
// endpoint; with session affinity, one with the same source address does, as long as the endpoint is there.
func (s State) choose(f flow.Flow, p *port, ends []Endpoint) Verdict {
	from := netip.AddrPortFrom(f.Src.Addr().Unmap(), f.Src.Port())
	if p.affinity > 0 {
		from = netip.AddrPortFrom(from.Addr(), 0)
	}
	best, highest := refuse(flow.Unreachable), uint64(0)
	for _, e := range ends {
		v := s.reach(f.Protocol, e)
		// Each endpoint has a weight for the source, and the highest one wins. So a change of the others
		// moves no source that has not lost its endpoint.
		if w := weight(from, e.Address); v.Action != Refuse && (best.Action == Refuse || w > highest) {
			best, highest = v, w
		}
	}
	return best
}

// reach decides about one endpoint of a Service. An EndpointSlice may have any address, and its author need
// not be trusted with the network of the exit. So each endpoint is checked as if the pod had dialled it.
func (s State) reach(protocol flow.Protocol, e Endpoint) Verdict {
	a, n := e.Address.Addr(), s.Network
	switch r, ours := s.home(e); {
	case e.Address.Port() == 0, s.never(a), within(s.Exclude, a):
		return refuse(flow.Forbidden)
	case ours && within(r.Pods, a):
		return s.link(protocol, Endpoint{e.Address, r.Node})
	case ours:
		return refuse(flow.Unreachable)
	case within(n.pods, a) && !n.outside, s.allowed(protocol, e.Address):
		return dial(e)
	}
	return refuse(flow.Unreachable)
}

// link dials an endpoint on a remote host.
func (s State) link(protocol flow.Protocol, e Endpoint) Verdict {
	if protocol != flow.TCP {
		return refuse(flow.Unreachable)
	}
	return Verdict{Action: DialLink, Address: e.Address, Node: e.Node, Ends: []Endpoint{e}}
}

func dial(e Endpoint) Verdict {
	return Verdict{Action: Dial, Address: e.Address, Ends: []Endpoint{e}}
}

func refuse(r flow.Refusal) Verdict { return Verdict{Action: Refuse, Refusal: r} }

// weight mixes a source and an endpoint: FNV-1a, with the last step of SplitMix64.
func weight(from, to netip.AddrPort) uint64 {
	h := uint64(14695981039346656037)
	for _, p := range [...]netip.AddrPort{from, to} {
		b, port := p.Addr().As16(), p.Port()
		for _, c := range append(b[:], byte(port), byte(port>>8)) {
			h = (h ^ uint64(c)) * 1099511628211
		}
	}
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}
