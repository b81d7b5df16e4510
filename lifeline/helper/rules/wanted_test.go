package rules

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

// TestRanges: ranges have the addresses of the prefixes and no others, in order, with a gap between two.
func TestRanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// Of a few addresses, so that prefixes overlap and touch.
		prefixes := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) netip.Prefix {
			last, host := rapid.Byte().Draw(t, "last"), rapid.IntRange(0, 8).Draw(t, "host bits")
			if rapid.Bool().Draw(t, "v6") {
				return netip.PrefixFrom(address6(last), 128-host)
			}
			return netip.PrefixFrom(address4(last), 32-host)
		}), 0, 8).Draw(t, "prefixes")
		all := ranges(prefixes)
		for i, r := range all {
			if r.first.Compare(r.last) > 0 {
				t.Fatalf("%v ends before it begins", r)
			}
			if i > 0 && all[i-1].first.Is4() == r.first.Is4() && r.first.Compare(all[i-1].last.Next()) <= 0 {
				t.Fatalf("%v and %v touch", all[i-1], r)
			}
		}
		for last := range 256 {
			for _, a := range []netip.Addr{address4(byte(last)), address6(byte(last))} {
				in, want := false, false
				for _, r := range all {
					in = in || r.first.BitLen() == a.BitLen() && r.first.Compare(a) <= 0 && a.Compare(r.last) <= 0
				}
				for _, p := range prefixes {
					want = want || p.Contains(a)
				}
				if in != want {
					t.Fatalf("%s is in %v: %v, want %v", a, all, in, want)
				}
			}
		}
	})
}

// The last addresses of IPv4, after which there is none, and some of IPv6.
func address4(last byte) netip.Addr { return netip.AddrFrom4([4]byte{255, 255, 255, last}) }
func address6(last byte) netip.Addr { return netip.AddrFrom16([16]byte{0: 0xff, 15: last}) }

func TestLastOf(t *testing.T) {
	for prefix, want := range map[string]string{
		"10.96.0.0/12": "10.111.255.255", "0.0.0.0/0": "255.255.255.255", "10.1.2.3/32": "10.1.2.3",
		"fd00::/8": "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "fd00::1/128": "fd00::1",
	} {
		if got := lastOf(netip.MustParsePrefix(prefix)); got != netip.MustParseAddr(want) {
			t.Errorf("%s: %s, want %s", prefix, got, want)
		}
	}
}

func TestValidate(t *testing.T) {
	cluster := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}
	many := make([]netip.Prefix, MaxPrefixes+1)
	for i := range many {
		many[i] = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(rand.Uint32())}), 32)
	}
	mapped := []netip.Prefix{netip.MustParsePrefix("::ffff:10.0.0.0/104")}
	zoned := netip.MustParseAddrPort("[fe80::1%eth0]:53")
	for name, test := range map[string]struct {
		wanted Wanted
		valid  bool
	}{
		"nothing":        {Wanted{}, true},
		"all":            {Wanted{Cluster: cluster, TCP4: 1, UDP: map[netip.AddrPort]uint16{dns: 5}}, true},
		"no listener":    {Wanted{Cluster: cluster, TCP6: 1}, false},
		"zero prefix":    {Wanted{Cluster: []netip.Prefix{{}}, TCP4: 1, TCP6: 1}, false},
		"mapped":         {Wanted{Local: mapped, TCP4: 1, TCP6: 1}, false},
		"too many":       {Wanted{Cluster: many, TCP4: 1}, false},
		"no port":        {Wanted{UDP: map[netip.AddrPort]uint16{dns: 0}}, false},
		"no destination": {Wanted{UDP: map[netip.AddrPort]uint16{{}: 5}}, false},
		"destination :0": {Wanted{UDP: map[netip.AddrPort]uint16{netip.AddrPortFrom(dns.Addr(), 0): 5}}, false},
		"with a zone":    {Wanted{UDP: map[netip.AddrPort]uint16{zoned: 5}}, false},
	} {
		if err := test.wanted.validate(); (err == nil) != test.valid {
			t.Errorf("%s: %v", name, err)
		}
	}
}
