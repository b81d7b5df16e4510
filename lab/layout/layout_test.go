package layout

import (
	"net/netip"
	"testing"
)

// Labs and hosts must not overlap in anything that exists once on the machine.
func TestNothingIsSharedBetweenLabs(t *testing.T) {
	names := map[string]string{}
	var nets []netip.Prefix
	for i := range MaxIndex + 1 {
		lab := Lab{Dir: "/x", Index: i}
		claim := func(what string) {
			if owner, taken := names[what]; taken {
				t.Errorf("%s and %s both have %q", owner, lab.Name(), what)
			}
			names[what] = lab.Name()
		}
		claim(lab.Name())
		claim(lab.Bridge())
		claim(lab.Loopback().String())
		for _, net := range []netip.Prefix{lab.NodeNet(), lab.PodNet(), lab.ServiceNet()} {
			for _, other := range nets {
				if net.Overlaps(other) {
					t.Errorf("%s: %s overlaps %s", lab.Name(), net, other)
				}
			}
			nets = append(nets, net)
		}
		if !lab.ServiceNet().Contains(lab.DNSServiceIP()) || !lab.ServiceNet().Contains(lab.APIServiceIP()) {
			t.Errorf("%s: a service lies outside the service network", lab.Name())
		}
		for _, ip := range lab.OutsideAddresses() {
			claim(ip.String())
			if !lab.NodeNet().Contains(ip) || ip == lab.Gateway() {
				t.Errorf("%s: %s is no address for a process beside the hosts", lab.Name(), ip)
			}
		}
		pods := map[netip.Prefix]bool{}
		for _, h := range lab.Hosts(MaxHosts) {
			claim(h.Link())
			claim(h.PeerLink())
			claim(h.IP().String())
			if !lab.NodeNet().Contains(h.IP()) || h.IP() == lab.Gateway() {
				t.Errorf("%s of %s has address %s", h.Name(), lab.Name(), h.IP())
			}
			if pods[h.PodCIDR()] || !lab.PodNet().Contains(h.PodCIDR().Addr()) {
				t.Errorf("%s of %s has pods in %s", h.Name(), lab.Name(), h.PodCIDR())
			}
			pods[h.PodCIDR()] = true
			for _, link := range []string{lab.Bridge(), h.Link(), h.PeerLink()} {
				if len(link) > 15 {
					t.Errorf("the kernel takes no link name as long as %q", link)
				}
			}
		}
	}
}
