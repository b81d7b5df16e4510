package route

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/bowline-k8s/bowline/lifeline/flow"
)

// MaxServices and MaxBackends bound a Table. The exit carries what is left out.
const (
	MaxServices = 4096
	MaxBackends = 512 // of one Service
)

// Table returns what the helper on the host needs. It has a Service if an endpoint on the host takes flows of
// it, if it is only for the node itself, or if it is UDP; see flow.Table. The helper prefers these endpoints to
// all others, whatever the Service's topology hints are: every other one is across the link.
func Table(s State) flow.Table {
	t := flow.Table{DNS: slices.Clone(s.Network.dns)}
	t.Cluster, t.Local = s.redirected()
	if s.Services == nil {
		return t
	}
	for _, k := range s.Services.sorted {
		p := s.Services.ports[k]
		row := flow.Service{Protocol: k.protocol, Address: k.address, LocalOnly: p.localOnly, Affinity: p.affinity}
		if p.elsewhere {
			row.LocalOnly = false // its own proxy decides
		} else {
			row.Backends = s.backends(p)
		}
		a := k.address.Addr()
		listed := len(row.Backends) > 0 || row.LocalOnly || row.Protocol == flow.UDP
		if listed && within(t.Cluster, a) && !within(t.Local, a) {
			t.Services = append(t.Services, row)
		}
	}
	t.Services = bounded(t.Services, t.DNS)
	return t
}

// backends returns the endpoints on the host that take flows of a Service.
func (s State) backends(p *port) (all []netip.AddrPort) {
	for _, e := range s.local(p) {
		a := e.Address.Addr()
		here := within(s.Host.Pods, a) || s.isHost(a)
		if len(all) < MaxBackends && here && !special(a) && !s.Network.self[a] {
			all = append(all, e.Address)
		}
	}
	return all
}

// local returns the endpoints on the host that take flows. For a Service that is only for the node itself, an
// endpoint on another node does not keep one that terminates from taking them.
func (s State) local(p *port) []endpoint {
	here := func(all []endpoint) (kept []endpoint) {
		for _, e := range all {
			if r, ok := s.home(e.Endpoint); ok && r.Node == s.Host.Node {
				kept = append(kept, e)
			}
		}
		return kept
	}
	if p.localOnly {
		return taking(here(p.all))
	}
	return here(taking(p.all))
}

// redirected returns the prefixes that the helper redirects, and those inside of them that it leaves alone.
func (s State) redirected() (cluster, local []netip.Prefix) {
	all := slices.Concat(s.Network.services, s.Network.pods)
	for _, r := range s.Network.remotes {
		if r.Node != s.Host.Node {
			all = append(all, r.Pods...)
		}
	}
	for _, a := range s.Allow {
		all = append(all, a.Prefix)
	}
	alone := slices.Concat(s.Host.Pods, s.Exclude, specialPrefixes)
	for _, a := range s.Host.Addresses {
		alone = append(alone, netip.PrefixFrom(a, a.BitLen()))
	}
	alone = minimal(alone)
	for _, p := range minimal(all) {
		if !slices.ContainsFunc(alone, func(a netip.Prefix) bool { return a.Overlaps(p) && a.Bits() <= p.Bits() }) {
			cluster = append(cluster, p)
		}
	}
	for _, a := range alone {
		if slices.ContainsFunc(cluster, a.Overlaps) {
			local = append(local, a)
		}
	}
	return cluster, local
}

// bounded drops the Services above the limit that the exit serves as well: first those without a backend,
// then those that are not only for the node itself, last the cluster's DNS.
func bounded(all []flow.Service, dns []netip.Addr) []flow.Service {
	if len(all) <= MaxServices {
		return all
	}
	rank := func(s flow.Service) int {
		switch {
		case slices.Contains(dns, s.Address.Addr()):
			return 0
		case s.LocalOnly:
			return 1
		case len(s.Backends) > 0:
			return 2
		}
		return 3
	}
	slices.SortStableFunc(all, func(a, b flow.Service) int { return cmp.Compare(rank(a), rank(b)) })
	all = all[:MaxServices]
	slices.SortFunc(all, func(a, b flow.Service) int {
		return compareKeys(key{a.Address, a.Protocol}, key{b.Address, b.Protocol})
	})
	return all
}
