package status

import (
	"net/netip"

	v1 "k8s.io/api/core/v1"
)

// podIPs are the newest sandbox's addresses, one per family, the family of the node's primary
// address first. A pod without a ready sandbox keeps its old addresses; a pod on the host's network
// has the host's.
func (g *generator) podIPs() ([]v1.PodIP, string) {
	var ips []string
	sandboxes := g.in.Observed.Sandboxes
	switch {
	case g.spec.HostNetwork:
		ips = g.in.HostIPs
	case len(sandboxes) > 0 && sandboxes[0].Ready:
		ips = sandboxes[0].IPs
	}
	ips = g.byFamily(ips)
	if len(ips) == 0 && (g.spec.HostNetwork || len(sandboxes) == 0 || !sandboxes[0].Ready) {
		return g.old.PodIPs, g.old.PodIP
	}
	var out []v1.PodIP
	for _, ip := range ips {
		out = append(out, v1.PodIP{IP: ip})
	}
	if len(out) == 0 {
		return nil, ""
	}
	return out, out[0].IP
}

// hostIPs are the node's addresses, or the old ones if they are unknown.
func (g *generator) hostIPs() ([]v1.HostIP, string) {
	ips := g.byFamily(g.in.HostIPs)
	if len(ips) == 0 {
		return g.old.HostIPs, g.old.HostIP
	}
	var out []v1.HostIP
	for _, ip := range ips {
		out = append(out, v1.HostIP{IP: ip})
	}
	return out, ips[0]
}

// byFamily returns the first address of the node's primary family, then the
// first of the other, in canonical form.
func (g *generator) byFamily(ips []string) []string {
	v6First := false
	if len(g.in.HostIPs) > 0 {
		if a, err := netip.ParseAddr(g.in.HostIPs[0]); err == nil {
			v6First = a.Unmap().Is6()
		}
	}
	var v4, v6 string
	for _, s := range ips {
		a, err := netip.ParseAddr(s)
		if err != nil {
			continue
		}
		a = a.Unmap()
		switch {
		case a.Is4() && v4 == "":
			v4 = a.String()
		case a.Is6() && v6 == "":
			v6 = a.String()
		}
	}
	order := []string{v4, v6}
	if v6First {
		order = []string{v6, v4}
	}
	var out []string
	for _, s := range order {
		if s != "" {
			out = append(out, s)
		}
	}
	return out
}
