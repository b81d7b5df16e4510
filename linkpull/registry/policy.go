package registry

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// ErrForbidden means that the address of a registry, or of what it refers to, may not be dialled.
var ErrForbidden = errors.New("the address may not be dialled for an image")

// Policy says which addresses may be dialled. Loopback, link-local (which includes the metadata services of
// clouds), multicast and unspecified addresses are always forbidden, unless Allow has them.
type Policy struct {
	// Never are further addresses: the API server's at their port, and whole networks.
	Never         []netip.AddrPort
	NeverPrefixes []netip.Prefix
	// Allow overrides the rest.
	Allow []netip.Prefix
}

// nat64 is the well-known prefix by which IPv4 addresses are reached over IPv6 (RFC 6052).
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// Check returns an error, which is ErrForbidden, for an address that may not be dialled.
func (p Policy) Check(to netip.AddrPort) error {
	addr := plain(to.Addr())
	within := func(prefix netip.Prefix) bool { return prefix.Contains(addr) }
	if slices.ContainsFunc(p.Allow, within) {
		return nil
	}
	forbidden := !addr.IsGlobalUnicast() || addr.Is4() && addr.As4()[0] == 0 ||
		slices.ContainsFunc(p.NeverPrefixes, within) ||
		slices.ContainsFunc(p.Never, func(n netip.AddrPort) bool {
			return plain(n.Addr()) == addr &&
				n.Port() == to.Port()
		})
	if forbidden {
		return fmt.Errorf("%s: %w", to, ErrForbidden)
	}
	return nil
}

// plain returns the address that is meant: without a zone, and as IPv4 where IPv6 only carries that.
func plain(a netip.Addr) netip.Addr {
	a = a.WithZone("").Unmap()
	if nat64.Contains(a) {
		b := a.As16()
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return a
}
