package route

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/bowline-k8s/bowline/lifeline/flow"
)

// Config describes the network of a cluster.
type Config struct {
	// ServicePrefixes have the cluster IPs, PodPrefixes the pods of the cluster's own nodes.
	ServicePrefixes, PodPrefixes []netip.Prefix
	// Nodes are the addresses of Nodes, on any of their networks, APIServer those of the API server, Self
	// those of Bowline's pod or machine. None of them is dialled.
	Nodes, APIServer, Self []netip.Addr
	// DNS are the cluster IPs of the cluster's DNS.
	DNS []netip.Addr
	// Remotes are the hosts of this process that have a link, one for each node. Two may have the same prefix.
	Remotes []Remote
	// Outside: Bowline does not run in the cluster, so that it can dial neither Services nor pods.
	Outside bool
}

// Remote is a remote host whose pods are reached through its link.
type Remote struct {
	// Node is the name of its node.
	Node string
	// Pods are the prefixes of its pods, or their addresses.
	Pods []netip.Prefix
	// Addresses are the host's own. Its helper serves a Service by pods in the host's network; no exit dials
	// them.
	Addresses []netip.Addr
}

// Network is a Config that is compiled for Decide and Table. It is immutable.
type Network struct {
	services, pods []netip.Prefix
	nodes, self    map[netip.Addr]bool // nodes have the addresses of the API server and of remote hosts too
	dns            []netip.Addr
	remotes        []Remote
	byNode         map[string]Remote
	outside        bool
}

// NewNetwork compiles a Config. Prefixes are masked, IPv4-mapped addresses and prefixes unmapped.
func NewNetwork(c Config) *Network {
	n := &Network{
		services: minimal(c.ServicePrefixes), pods: minimal(c.PodPrefixes),
		nodes: setOf(c.Nodes, c.APIServer), self: setOf(c.Self),
		byNode: map[string]Remote{}, outside: c.Outside,
	}
	for a := range setOf(c.DNS) {
		n.dns = append(n.dns, a)
	}
	slices.SortFunc(n.dns, netip.Addr.Compare)
	for _, r := range c.Remotes {
		if _, known := n.byNode[r.Node]; !known {
			r.Pods = minimal(r.Pods)
			n.remotes, n.byNode[r.Node] = append(n.remotes, r), r
			maps.Copy(n.nodes, setOf(r.Addresses))
		}
	}
	return n
}

func setOf(lists ...[]netip.Addr) map[netip.Addr]bool {
	set := map[netip.Addr]bool{}
	for _, a := range slices.Concat(lists...) {
		set[a.Unmap()] = true
	}
	return set
}

// Allowed is an entry of a Host's allow list.
type Allowed struct {
	Prefix netip.Prefix
	// Protocol is 0 for TCP and UDP.
	Protocol flow.Protocol
	// First and Last are the range of ports; both 0: all ports.
	First, Last uint16
}

func (a Allowed) matches(protocol flow.Protocol, to netip.AddrPort) bool {
	return (a.Protocol == 0 || a.Protocol == protocol) && unmapped(a.Prefix).Contains(to.Addr()) &&
		(a.First == 0 && a.Last == 0 || a.First <= to.Port() && to.Port() <= a.Last)
}

// State is what Table and Decide depend on.
type State struct {
	Services *Services
	Network  *Network
	// Host is the remote host that the lifeline belongs to. It counts instead of the Remote of its node.
	Host Remote
	// Allow is what the Host object allows besides the cluster, Exclude what it excludes from it. Table redirects
	// every port of an allowed prefix, because the rules on the host know prefixes only.
	Allow   []Allowed
	Exclude []netip.Prefix
}

// allowed reports whether the allow list has a destination.
func (s State) allowed(protocol flow.Protocol, to netip.AddrPort) bool {
	return slices.ContainsFunc(s.Allow, func(a Allowed) bool { return a.matches(protocol, to) })
}

// remote returns the remote host with this node.
func (s State) remote(node string) (Remote, bool) {
	if node == s.Host.Node {
		return s.Host, true
	}
	r, ok := s.Network.byNode[node]
	return r, ok
}

// owners are the remote hosts that an address belongs to. There may be several, because each host chooses
// the network of its pods by itself.
func (s State) owners(a netip.Addr) (all []Remote) {
	if within(s.Host.Pods, a) {
		all = append(all, s.Host)
	}
	for _, r := range s.Network.remotes {
		if r.Node != s.Host.Node && within(r.Pods, a) {
			all = append(all, r)
		}
	}
	return all
}

// IsPod reports whether an address can only be one of a pod, as policy.Policies.At asks.
func (s State) IsPod(a netip.Addr) bool {
	a = a.Unmap()
	return !s.never(a) && (within(s.Network.pods, a) || len(s.owners(a)) > 0)
}

// home returns the remote host that an endpoint is on, or false if it is on none of ours. Its node says so;
// for an endpoint without a node, its address does, if it belongs to one host.
func (s State) home(e Endpoint) (Remote, bool) {
	if e.Node != "" {
		return s.remote(e.Node)
	}
	if owners := s.owners(e.Address.Addr()); len(owners) == 1 && !s.never(e.Address.Addr()) {
		return owners[0], true
	}
	return Remote{}, false
}
