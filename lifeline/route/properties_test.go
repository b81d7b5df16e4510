package route

import (
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"pgregory.net/rapid"

	"github.com/bowline-k8s/bowline/lifeline/flow"
)

// interesting are addresses at and beside the edges of what Decide distinguishes.
var interesting = addrs("0.0.0.0", "10.96.0.1", "10.96.0.2", "10.96.0.3", "10.244.0.1", "10.244.0.2", "10.244.0.99", "10.244.1.255", "10.244.2.0",
	"10.140.1.1", "10.140.2.1", "10.150.0.1", "127.0.0.1", "128.0.0.1", "169.253.255.255", "169.254.0.0", "169.254.169.254", "169.255.0.0",
	"192.168.7.2", "192.168.7.10", "203.0.113.21", "203.0.113.22", "223.255.255.255", "224.0.0.1", "239.255.255.255", "240.0.0.0", "255.255.255.255",
	"168.63.129.16", "192.0.0.192", "198.51.100.1", "::", "::1", "::2", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:10.96.0.1", "::ffff:10.244.0.99",
	"::ffff:169.254.169.254", "64:ff9b::7f00:1", "64:ff9b::c000:201", "fd00:96::1", "fd00:244::2", "fd00:ec2::254", "fe80::1", "febf::1", "fec0::1",
	"ff02::1", "2001:db8::1", "fe80::1%eth0", "64:ff9b::a8c:101", "64:ff9b::a60:1")

// likely are those that make most of the cases.
var likely = addrs("10.96.0.1", "10.96.0.2", "10.96.0.3", "10.140.1.1", "10.140.1.1", "10.140.2.1", "10.140.2.1", "10.150.0.1", "10.244.0.2",
	"10.244.0.2", "10.244.0.99", "127.0.0.1", "169.254.169.254", "192.168.7.10", "fd00:96::1", "fd00:244::2")

func address(t *rapid.T, name string) netip.Addr {
	switch rapid.IntRange(0, 7).Draw(t, name+" kind") {
	case 0:
		return netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, name)))
	case 1:
		return netip.AddrFrom16([16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, name)))
	case 2, 3:
		return rapid.SampledFrom(interesting).Draw(t, name)
	}
	return rapid.SampledFrom(likely).Draw(t, name)
}

func prefixList(t *rapid.T, name string, most int) []netip.Prefix {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) netip.Prefix {
		a := address(t, name).WithZone("")
		return netip.PrefixFrom(a, rapid.IntRange(0, a.BitLen()).Draw(t, name+" bits"))
	}), 0, most).Draw(t, name)
}

// world draws a State with Services whose endpoints are anywhere.
func world(t *rapid.T) State {
	all := func(name string) []netip.Addr {
		return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) netip.Addr { return address(t, name).WithZone("") }), 0, 3).Draw(t, name)
	}
	node := rapid.SampledFrom([]string{"", "", "@edge-1", "@edge-2", "@edge-3", "@n1"})
	var services []*v1.Service
	var endpointSlices []*discoveryv1.EndpointSlice
	for i, ip := range []string{"10.96.0.1", "10.96.0.2", "10.96.0.3", "fd00:96::1"} {
		name := string(rune('a' + i))
		s := service(name, ip)
		if rapid.Bool().Draw(t, "local only") {
			localOnly(s)
		}
		if rapid.Bool().Draw(t, "sticky") {
			sticky(s)
		}
		if rapid.IntRange(0, 3).Draw(t, "other proxy") == 0 {
			s.Labels[labelProxyName] = "mesh"
		}
		services = append(services, s)
		for n := rapid.IntRange(0, 3).Draw(t, "endpoints"); n > 0; n-- {
			a := address(t, "endpoint").WithZone("").Unmap()
			state := rapid.SampledFrom([]string{"", "", "-", "~"}).Draw(t, "state")
			e := endpoints(name, a.String()+node.Draw(t, "node")+state)
			e.Name = name + string(rune('0'+n))
			endpointSlices = append(endpointSlices, e)
		}
	}
	return shop(services, endpointSlices, func(c *Config, s *State) {
		c.Outside = rapid.Bool().Draw(t, "outside")
		if rapid.Bool().Draw(t, "other prefixes") {
			c.ServicePrefixes, c.PodPrefixes = prefixList(t, "services", 2), prefixList(t, "pods", 2)
		}
		c.Nodes, c.Self, c.APIServer = append(c.Nodes, all("nodes")...), append(c.Self, all("self")...), append(c.APIServer, all("API server")...)
		c.Remotes[1].Addresses, s.Host.Addresses = all("remote host"), append(s.Host.Addresses, all("host")...)
		c.Remotes[1].Pods = append(c.Remotes[1].Pods, prefixList(t, "remote", 2)...)
		s.Host.Pods = append(s.Host.Pods, prefixList(t, "host", 2)...)
		s.Exclude = prefixList(t, "exclude", 1)
		if a := address(t, "excluded").WithZone(""); rapid.Bool().Draw(t, "one excluded") {
			s.Exclude = []netip.Prefix{netip.PrefixFrom(a, a.BitLen())}
		}
		for _, p := range prefixList(t, "allow", 2) {
			s.Allow = append(s.Allow, Allowed{Prefix: p, Protocol: rapid.SampledFrom([]flow.Protocol{0, flow.TCP, flow.UDP}).Draw(t, "allowed"),
				Last: rapid.SampledFrom([]uint16{0, 100, 65535}).Draw(t, "last")})
		}
	})
}

// contains is the plain meaning of a list of prefixes.
func contains(prefixes []netip.Prefix, a netip.Addr) bool {
	for _, p := range prefixes {
		if p.Contains(a) || p.Contains(netip.AddrFrom16(a.As16())) && p.Bits() >= 96 {
			return true
		}
	}
	return false
}

// forbidden is the never list, written down a second time: by what an address is, not by prefixes. nodes are
// the addresses that never is asked for.
func forbidden(a netip.Addr, owned map[netip.Addr]bool) bool {
	if b := a.As16(); a.Is6() && [12]byte(b[:12]) == [12]byte{0, 0x64, 0xff, 0x9b} {
		a = netip.AddrFrom4([4]byte(b[12:]))
	}
	a = a.Unmap()
	b := a.AsSlice()
	switch {
	case a.Zone() != "", owned[a], a.IsLoopback(), a.IsMulticast(), a.IsUnspecified(), a.IsLinkLocalUnicast():
		return true
	case a.Is4():
		return b[0] == 0 || b[0] >= 240
	}
	return [12]byte(b[:12]) == [12]byte{}
}

// TestNothingElseIsDialled: whatever the cluster and the flow are, the exit dials only what the cluster or
// the allow list has, never what the never list has, and a link only for a pod of its host.
func TestNothingElseIsDialled(t *testing.T) {
	actions := map[Action]int{}
	rapid.Check(t, func(t *rapid.T) {
		s := world(t)
		n := s.Network
		f := flow.Flow{Protocol: rapid.SampledFrom([]flow.Protocol{flow.TCP, flow.TCP, flow.UDP, 1}).Draw(t, "protocol"),
			Src: netip.AddrPortFrom(address(t, "src"), 1234),
			Dst: netip.AddrPortFrom(address(t, "dst"), rapid.SampledFrom([]uint16{0, 80, 80, 80, 6443}).Draw(t, "port"))}
		v := Decide(f, s)
		actions[v.Action]++
		switch v.Action {
		case Refuse:
			if v.Refusal == 0 || v.Address.IsValid() || v.Node != "" || v.Ends != nil {
				t.Fatalf("a refusal is %+v", v)
			}
			return
		case DialAPIServer:
			if v.Address.IsValid() || !n.outside || f.Protocol != flow.TCP {
				t.Fatalf("%+v for %v", v, f)
			}
			return
		}
		a, owned := v.Address.Addr(), map[netip.Addr]bool{}
		for _, set := range []map[netip.Addr]bool{n.nodes, n.self, setOf(s.Host.Addresses)} {
			for o := range set {
				owned[o] = true
			}
		}
		if forbidden(a, owned) || forbidden(f.Dst.Addr(), owned) || a.Is4In6() || v.Address.Port() == 0 || f.Dst.Port() == 0 ||
			contains(s.Exclude, f.Dst.Addr().Unmap()) || contains(s.Exclude, a) {
			t.Fatalf("%v: %s", f, v)
		}
		if v.Action == DialLink {
			r, ok := s.remote(v.Node)
			if !ok || !contains(r.Pods, a) || f.Protocol != flow.TCP {
				t.Fatalf("%v: %s, whose pods are %v", f, v, r.Pods)
			}
			return
		}
		allowed := false
		for _, e := range s.Allow {
			allowed = allowed || contains([]netip.Prefix{e.Prefix}, a) && (e.Protocol == 0 || e.Protocol == f.Protocol) && (e.Last == 0 || v.Address.Port() <= e.Last)
		}
		if !allowed && (n.outside || !contains(n.services, a) && !contains(n.pods, a)) {
			t.Fatalf("%v: %s, outside %t", f, v, n.outside)
		}
		for _, e := range v.Ends {
			if n.self[e.Address.Addr()] && !allowed {
				t.Fatalf("%v: %s may end at Bowline: %v", f, v, v.Ends)
			}
		}
		if len(v.Ends) == 0 {
			t.Fatalf("%v: %s ends nowhere", f, v)
		}
	})
	for a := Refuse; a <= DialLink; a++ {
		if actions[a] == 0 {
			t.Errorf("no flow had the action %d: %v", a, actions)
		}
	}
}

// TestTableAgrees: whatever the helper serves by itself, is on its host; and what it redirects, the exit
// knows: it is of the cluster, or of the allow list.
func TestTableAgrees(t *testing.T) {
	served := 0
	rapid.Check(t, func(t *rapid.T) {
		s := world(t)
		table := Table(s)
		for _, row := range table.Services {
			for _, b := range row.Backends {
				served++
				here := contains(s.Host.Pods, b.Addr()) || setOf(s.Host.Addresses)[b.Addr()]
				if !here || forbidden(b.Addr(), s.Network.self) {
					t.Fatalf("the helper serves %s by %s", row.Address, b)
				}
			}
			if !contains(table.Cluster, row.Address.Addr()) || contains(table.Local, row.Address.Addr()) {
				t.Fatalf("%s is not redirected", row.Address)
			}
		}
		a := address(t, "redirected").WithZone("").Unmap()
		redirected := contains(table.Cluster, a) && !contains(table.Local, a)
		var all []netip.Prefix
		all = append(append(all, s.Network.services...), s.Network.pods...)
		for _, r := range s.Network.remotes {
			if r.Node != s.Host.Node {
				all = append(all, r.Pods...)
			}
		}
		for _, e := range s.Allow {
			all = append(all, e.Prefix)
		}
		want := contains(all, a) && !contains(s.Host.Pods, a) && !contains(s.Exclude, a) && !contains(specialPrefixes, a) && !setOf(s.Host.Addresses)[a]
		if redirected != want {
			t.Fatalf("%s is redirected: %t, want %t, by %v without %v", a, redirected, want, table.Cluster, table.Local)
		}
	})
	if served == 0 {
		t.Error("no table had a backend")
	}
}
