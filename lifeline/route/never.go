package route

import (
	"net/netip"
	"slices"
)

// specialPrefixes are not addresses of a cluster's pods or Services, whatever its prefixes are. A dial to one
// of them would reach the process itself, its machine, or what a cloud tells its machines.
var specialPrefixes = parsePrefixes(
	"0.0.0.0/8",         // this host: Linux connects 0.0.0.0 to itself
	"127.0.0.0/8",       // loopback
	"168.63.129.16/32",  // Azure's host agent
	"169.254.0.0/16",    // link-local, with the metadata server of most clouds
	"192.0.0.192/32",    // Oracle's metadata server
	"224.0.0.0/4",       // multicast
	"240.0.0.0/4",       // reserved, with the broadcast address
	"::/96",             // unspecified, loopback, IPv4-compatible
	"fd00:ec2::254/128", // Amazon's metadata server
	"fe80::/10",         // link-local
	"ff00::/8",          // multicast
)

// nat64 is the prefix by which IPv6 hosts reach IPv4 addresses (RFC 6052). The last four bytes are one.
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

func parsePrefixes(all ...string) (prefixes []netip.Prefix) {
	for _, p := range all {
		prefixes = append(prefixes, netip.MustParsePrefix(p))
	}
	return prefixes
}

// special reports whether an address is one that no exit dials, on any cluster and any host. IPv6 forms of
// such an IPv4 address are special too.
func special(a netip.Addr) bool {
	if !a.IsValid() || a.Zone() != "" || within(specialPrefixes, a) {
		return true
	}
	if a.Is4In6() {
		return special(a.Unmap())
	}
	if nat64.Contains(a) {
		b := a.As16()
		return special(netip.AddrFrom4([4]byte(b[12:])))
	}
	return false
}

// never reports whether an exit never dials an address: it is special, or it is of a Node, of a remote host, of
// the API server, or of Bowline itself.
func (s State) never(a netip.Addr) bool {
	if nat64.Contains(a) {
		b := a.As16()
		a = netip.AddrFrom4([4]byte(b[12:]))
	}
	a = a.Unmap()
	return special(a) || s.Network.self[a] || s.Network.nodes[a] || s.isHost(a)
}

// isHost reports whether an address is one of the host itself.
func (s State) isHost(a netip.Addr) bool {
	return slices.ContainsFunc(s.Host.Addresses, func(own netip.Addr) bool { return own.Unmap() == a })
}
