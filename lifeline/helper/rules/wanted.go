package rules

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

const (
	// MaxPrefixes is the most prefixes of Cluster, and of Local.
	MaxPrefixes = 4096
	// MaxUDP is the most destinations of datagrams.
	MaxUDP = 1024
)

// validate lists what is wrong.
func (w Wanted) validate() error {
	var wrong []error
	if len(w.Cluster) > MaxPrefixes || len(w.Local) > MaxPrefixes || len(w.UDP) > MaxUDP {
		wrong = append(wrong, fmt.Errorf("%d and %d prefixes, and %d destinations of datagrams, are too many",
			len(w.Cluster), len(w.Local), len(w.UDP)))
	}
	for _, p := range slices.Concat(w.Cluster, w.Local) {
		if !p.IsValid() || p.Addr().Is4In6() {
			wrong = append(wrong, fmt.Errorf("%s is no prefix of IPv4 or IPv6", p))
			continue
		}
		if p.Addr().Is4() && w.TCP4 == 0 || p.Addr().Is6() && w.TCP6 == 0 {
			wrong = append(wrong, fmt.Errorf("no listener takes what is for %s", p))
		}
	}
	for dst, port := range w.UDP {
		if !dst.IsValid() || dst.Addr().Is4In6() || dst.Addr().Zone() != "" || dst.Port() == 0 || port == 0 {
			wrong = append(wrong, fmt.Errorf("datagrams for %s cannot be redirected to port %d", dst, port))
		}
	}
	return errors.Join(wrong...)
}

// span is a range of addresses, both of which belong to it.
type span struct{ first, last netip.Addr }

// ranges returns the addresses of prefixes as ranges that neither overlap nor touch each other, in order. An
// interval set of the kernel refuses overlaps.
func ranges(prefixes []netip.Prefix) (all []span) {
	sorted := make([]netip.Prefix, 0, len(prefixes))
	for _, p := range prefixes {
		sorted = append(sorted, p.Masked())
	}
	slices.SortFunc(sorted, netip.Prefix.Compare)
	for _, p := range sorted {
		next := span{p.Addr(), lastOf(p)}
		if n := len(all); n > 0 && all[n-1].first.Is4() == next.first.Is4() {
			before := &all[n-1]
			if after := before.last.Next(); !after.IsValid() || next.first.Compare(after) <= 0 {
				before.last = maxAddr(before.last, next.last)
				continue
			}
		}
		all = append(all, next)
	}
	return all
}

func lastOf(p netip.Prefix) netip.Addr {
	bytes := p.Addr().AsSlice()
	for bit := p.Bits(); bit < len(bytes)*8; bit++ {
		bytes[bit/8] |= 1 << (7 - bit%8)
	}
	last, _ := netip.AddrFromSlice(bytes)
	return last
}

func maxAddr(a, b netip.Addr) netip.Addr {
	if a.Compare(b) > 0 {
		return a
	}
	return b
}
