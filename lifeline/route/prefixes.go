package route

import (
	"cmp"
	"net/netip"
	"slices"
)

// within reports whether one of the prefixes contains an address.
func within(prefixes []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return unmapped(p).Contains(a) })
}

// unmapped turns a prefix of IPv4-mapped addresses into one of IPv4 addresses.
func unmapped(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p
}

// minimal returns valid prefixes, masked and sorted, without those that another one contains.
func minimal(prefixes []netip.Prefix) (all []netip.Prefix) {
	for _, p := range prefixes {
		if p.IsValid() {
			all = append(all, unmapped(p).Masked())
		}
	}
	// A prefix comes before those that it contains.
	slices.SortFunc(all, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	var kept []netip.Prefix
	for _, p := range all {
		if n := len(kept); n == 0 || !kept[n-1].Overlaps(p) {
			kept = append(kept, p)
		}
	}
	return kept
}

// covered reports whether the prefixes contain all addresses of p, together if not one of them does.
func covered(p netip.Prefix, by []netip.Prefix) bool {
	inside := false
	for _, b := range by {
		if b.Overlaps(p) {
			if b.Bits() <= p.Bits() {
				return true
			}
			inside = true
		}
	}
	if !inside {
		return false
	}
	low, high := halves(p)
	return covered(low, by) && covered(high, by)
}

// halves splits a prefix that is longer than one address.
func halves(p netip.Prefix) (low, high netip.Prefix) {
	low = netip.PrefixFrom(p.Masked().Addr(), p.Bits()+1)
	bytes := low.Addr().AsSlice()
	bytes[p.Bits()/8] |= 1 << (7 - p.Bits()%8)
	a, _ := netip.AddrFromSlice(bytes)
	return low, netip.PrefixFrom(a, p.Bits()+1)
}
