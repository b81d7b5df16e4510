package route

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/bowline-k8s/bowline/lifeline/flow"
)

// TestDecide enumerates every kind of address, without and with an allow list that has everything, in and
// outside of the cluster.
func TestDecide(t *testing.T) {
	services := []*v1.Service{
		service("in-cluster", "10.96.0.1"), service("on-edge-2", "10.96.0.2"), service("both", "10.96.0.3"), service("none", "10.96.0.4"),
		service("own", "10.96.0.5"), service("local", "10.96.0.6", localOnly), service("udp", "10.96.0.7", udp),
		service("external", "10.96.0.8"), service("on-nodes", "10.96.0.9"), service("unreachable", "10.96.0.11"),
		service("kubernetes", "10.96.0.12", func(s *v1.Service) { s.Namespace = "default" }), service("six", "fd00:96::1"),
		service("own-and-more", "10.96.0.13"), service("ambiguous", "10.96.0.14"), service("local-here", "10.96.0.15", localOnly),
		service("other-proxy", "10.96.0.16", localOnly, func(s *v1.Service) { s.Labels[labelProxyName] = "mesh" }),
		service("link-local", "10.96.0.17"), service("excluded", "10.96.0.20"), service("more-of-nodes", "10.96.0.21"), service("of-us", "10.96.0.18"), service("udp-both", "10.96.0.19", udp),
	}
	endpointSlices := []*discoveryv1.EndpointSlice{
		endpoints("in-cluster", "10.244.0.2@n1", "10.244.1.2@n2"), endpoints("on-edge-2", "10.140.2.2@edge-2"),
		endpoints("both", "10.140.2.2@edge-2", "10.244.0.2@n1-"), endpoints("own", "10.244.0.99@n1"), endpoints("local", "10.244.0.2@n1"),
		endpoints("udp", "10.140.2.2@edge-2"), endpoints("external", "198.51.100.7"), endpoints("on-nodes", "192.168.7.10@n1"),
		endpoints("unreachable", "203.0.113.22@edge-2", "10.140.2.3@edge-3"), endpoints("kubernetes", "192.168.7.2"),
		endpoints("six", "fd00:244::2@n1"), endpoints("own-and-more", "10.244.0.99@n1", "10.244.0.2@n1"), endpoints("ambiguous", "10.150.0.2@edge-3"),
		endpoints("local-here", "10.140.1.2@edge-1"), endpoints("other-proxy", "10.244.0.2@n1"),
		endpoints("link-local", "169.254.169.254@n1", "10.244.0.2@n1"), endpoints("of-us", "10.140.2.2", "10.140.2.3@x-"),
		endpoints("excluded", "10.140.2.2@edge-2", "10.244.1.200@n2"), endpoints("more-of-nodes", "10.140.2.2@edge-2", "192.168.7.10@n1"),
		endpoints("udp-both", "10.140.2.2@edge-2", "10.244.0.2@n1"),
	}
	for _, s := range endpointSlices {
		switch {
		case s.Name == "kubernetes-1":
			s.Namespace = "default"
		case strings.HasPrefix(s.Name, "udp"):
			*s.Ports[0].Protocol = v1.ProtocolUDP
		}
	}
	if got := NewServices(services, endpointSlices).APIServer(); fmt.Sprint(got) != "[192.168.7.2]" {
		t.Errorf("the API server is at %v", got)
	}
	everything := []Allowed{{Prefix: netip.MustParsePrefix("0.0.0.0/0")}, {Prefix: netip.MustParsePrefix("::/0")}}
	for _, c := range []struct {
		what, dst string
		protocol  flow.Protocol
		// what Decide says in the cluster, in the cluster with everything allowed, outside, and outside with
		// everything allowed. An empty one is as the one before.
		want [4]string
	}{
		{"a Service in the cluster", "10.96.0.1:80", flow.TCP, [4]string{"dial 10.96.0.1:80", "", "Unreachable", "dial 10.96.0.1:80"}},
		{"the same, mapped", "[::ffff:10.96.0.1]:80", flow.TCP, [4]string{"dial 10.96.0.1:80", "", "Unreachable", "dial 10.96.0.1:80"}},
		{"its IPv6", "[fd00:96::1]:80", flow.TCP, [4]string{"dial [fd00:96::1]:80", "", "Unreachable", "dial [fd00:96::1]:80"}},
		{"another protocol of it", "10.96.0.1:80", flow.UDP, [4]string{"Refused", "", "", "dial 10.96.0.1:80"}},
		{"another port of it", "10.96.0.1:81", flow.TCP, [4]string{"Refused", "", "", "dial 10.96.0.1:81"}},
		{"a Service on another host", "10.96.0.2:80", flow.TCP, [4]string{"dial 10.140.2.2:8080 by edge-2", "", "", "dial 10.96.0.2:80"}},
		{"with one that is not ready", "10.96.0.3:80", flow.TCP, [4]string{"dial 10.140.2.2:8080 by edge-2", "", "", "dial 10.96.0.3:80"}},
		{"without endpoints", "10.96.0.4:80", flow.TCP, [4]string{"Refused", "", "", "dial 10.96.0.4:80"}},
		{"Bowline's own Service", "10.96.0.5:80", flow.TCP, [4]string{"Unreachable", "", "", "dial 10.96.0.5:80"}},
		{"with an endpoint of Bowline", "10.96.0.13:80", flow.TCP, [4]string{"dial 10.244.0.2:8080", "", "Unreachable", "dial 10.96.0.13:80"}},
		{"only for its node, on another", "10.96.0.6:80", flow.TCP, [4]string{"Refused", "", "", "dial 10.96.0.6:80"}},
		{"only for its node, on this one", "10.96.0.15:80", flow.TCP, [4]string{"dial 10.140.1.2:8080 by edge-1", "", "", "dial 10.96.0.15:80"}},
		{"of another proxy", "10.96.0.16:80", flow.TCP, [4]string{"dial 10.96.0.16:80", "", "Unreachable", "dial 10.96.0.16:80"}},
		{"UDP on another host", "10.96.0.7:80", flow.UDP, [4]string{"Unreachable", "", "", "dial 10.96.0.7:80"}},
		{"UDP also on another host", "10.96.0.19:80", flow.UDP, [4]string{"dial 10.244.0.2:8080", "", "Unreachable", "dial 10.96.0.19:80"}},
		{"a Service without selector", "10.96.0.8:80", flow.TCP, [4]string{"dial 10.96.0.8:80", "", "Unreachable", "dial 10.96.0.8:80"}},
		{"a Service of nodes", "10.96.0.9:80", flow.TCP, [4]string{"dial 10.96.0.9:80", "", "Unreachable", "dial 10.96.0.9:80"}},
		{"of a host itself, and of wrong pods", "10.96.0.11:80", flow.TCP, [4]string{"Unreachable", "", "", "dial 10.96.0.11:80"}},
		{"with an address of two hosts", "10.96.0.14:80", flow.TCP, [4]string{"dial 10.150.0.2:8080 by edge-3", "", "", "dial 10.96.0.14:80"}},
		{"with a link-local endpoint", "10.96.0.17:80", flow.TCP, [4]string{"dial 10.244.0.2:8080", "", "Unreachable", "dial 10.96.0.17:80"}},
		{"without a node, on another host", "10.96.0.18:80", flow.TCP, [4]string{"dial 10.140.2.2:8080 by edge-2", "", "", "dial 10.96.0.18:80"}},
		{"with an excluded endpoint", "10.96.0.20:80", flow.TCP, [4]string{"dial 10.140.2.2:8080 by edge-2", "", "", "dial 10.96.0.20:80"}},
		{"also on a Node", "10.96.0.21:80", flow.TCP, [4]string{"dial 10.140.2.2:8080 by edge-2", "", "", "dial 10.96.0.21:80"}},
		{"the API server", "10.96.0.12:80", flow.TCP, [4]string{"dial 10.96.0.12:80", "", "dial the API server", ""}},
		{"another port of it", "10.96.0.12:81", flow.TCP, [4]string{"Refused", "", "", "dial 10.96.0.12:81"}},
		{"no Service", "10.96.7.7:80", flow.TCP, [4]string{"Refused", "", "", "dial 10.96.7.7:80"}},
		{"a pod", "10.244.1.7:5432", flow.TCP, [4]string{"dial 10.244.1.7:5432", "", "Unreachable", "dial 10.244.1.7:5432"}},
		{"a pod, UDP", "10.244.1.7:5432", flow.UDP, [4]string{"dial 10.244.1.7:5432", "", "Unreachable", "dial 10.244.1.7:5432"}},
		{"a pod of another host", "10.140.2.9:5432", flow.TCP, [4]string{"dial 10.140.2.9:5432 by edge-2", "", "", ""}},
		{"a pod of this host", "10.140.1.9:5432", flow.TCP, [4]string{"dial 10.140.1.9:5432 by edge-1", "", "", ""}},
		{"a pod of another host, UDP", "10.140.2.9:5432", flow.UDP, [4]string{"Unreachable", "", "", ""}},
		{"a pod of one of two hosts", "10.150.0.9:5432", flow.TCP, [4]string{"Unreachable", "", "", ""}},
		{"Bowline", "10.244.0.99:10250", flow.TCP, [4]string{"Forbidden", "", "", ""}},
		{"a Node", "192.168.7.10:22", flow.TCP, [4]string{"Forbidden", "", "", ""}},
		{"a Node on the network of pods", "10.244.0.1:10250", flow.TCP, [4]string{"Forbidden", "", "", ""}},
		{"the address of the API server", "192.168.7.2:6443", flow.TCP, [4]string{"Forbidden", "", "", ""}},
		{"another port there", "192.168.7.2:2379", flow.TCP, [4]string{"Forbidden", "", "", ""}},
		{"another host", "203.0.113.22:22", flow.TCP, [4]string{"Forbidden", "", "", ""}},
		{"this host", "203.0.113.21:22", flow.TCP, [4]string{"Forbidden", "", "", ""}},
		{"a Node, mapped", "[::ffff:192.168.7.10]:22", flow.TCP, [4]string{"Forbidden", "", "", ""}},
		{"a Node, by NAT64", "[64:ff9b::c0a8:70a]:22", flow.TCP, [4]string{"Forbidden", "", "", ""}},
		{"any address", "198.51.100.1:443", flow.TCP, [4]string{"Forbidden", "dial 198.51.100.1:443", "Forbidden", "dial 198.51.100.1:443"}},
		{"any IPv6 address", "[2001:db8::1]:443", flow.UDP, [4]string{"Forbidden", "dial [2001:db8::1]:443", "Forbidden", "dial [2001:db8::1]:443"}},
		{"port 0", "10.244.1.7:0", flow.TCP, [4]string{"Forbidden", "", "", ""}},
		{"SCTP", "10.244.1.7:80", 132, [4]string{"Forbidden", "", "", ""}},
		{"what the Host excludes", "10.244.1.200:80", flow.TCP, [4]string{"Forbidden", "", "", ""}},
		{"an excluded Service", "10.97.0.1:80", flow.TCP, [4]string{"Forbidden", "", "", ""}},
		{"loopback", "127.0.0.1:80", flow.TCP, [4]string{"Forbidden", "", "", ""}},
		{"all of loopback", "127.1.2.3:80", flow.TCP, [4]string{"Forbidden", "", "", ""}},
		{"loopback, mapped", "[::ffff:127.0.0.1]:80", flow.TCP, [4]string{"Forbidden", "", "", ""}},
		{"loopback, compatible", "[::7f00:1]:80", flow.TCP, [4]string{"Forbidden", "", "", ""}},
		{"loopback, IPv6", "[::1]:80", flow.TCP, [4]string{"Forbidden", "", "", ""}},
		{"unspecified", "0.0.0.0:80", flow.TCP, [4]string{"Forbidden", "", "", ""}},
		{"this network", "0.1.2.3:80", flow.TCP, [4]string{"Forbidden", "", "", ""}},
		{"unspecified, IPv6", "[::]:80", flow.TCP, [4]string{"Forbidden", "", "", ""}},
		{"metadata", "169.254.169.254:80", flow.TCP, [4]string{"Forbidden", "", "", ""}},
		{"metadata, mapped", "[::ffff:169.254.169.254]:80", flow.TCP, [4]string{"Forbidden", "", "", ""}},
		{"metadata, by NAT64", "[64:ff9b::a9fe:a9fe]:80", flow.TCP, [4]string{"Forbidden", "", "", ""}},
		{"metadata, IPv6", "[fd00:ec2::254]:80", flow.TCP, [4]string{"Forbidden", "", "", ""}},
		{"link-local", "[fe80::1]:80", flow.TCP, [4]string{"Forbidden", "", "", ""}},
		{"a zone", "[2001:db8::1%eth0]:80", flow.TCP, [4]string{"Forbidden", "", "", ""}},
		{"multicast", "224.0.0.251:5353", flow.UDP, [4]string{"Forbidden", "", "", ""}},
		{"multicast, IPv6", "[ff02::fb]:5353", flow.UDP, [4]string{"Forbidden", "", "", ""}},
		{"broadcast", "255.255.255.255:67", flow.UDP, [4]string{"Forbidden", "", "", ""}},
		{"reserved", "240.0.0.1:80", flow.TCP, [4]string{"Forbidden", "", "", ""}},
	} {
		last := ""
		for i, want := range c.want {
			if want == "" {
				want = last
			}
			last = want
			s := shop(services, endpointSlices, func(cfg *Config, s *State) {
				cfg.Outside = i >= 2
				s.Exclude = prefixes("10.244.1.200", "10.97.0.0/16")
				if i%2 == 1 {
					s.Allow = everything
				}
			})
			if got := Decide(toward(c.protocol, c.dst), s).String(); got != want {
				t.Errorf("%s, outside %t, allowed %t: %s, want %s", c.what, i >= 2, i%2 == 1, got, want)
			}
		}
	}
}

// TestAllow enumerates protocols and ports against entries of an allow list.
func TestAllow(t *testing.T) {
	db := netip.MustParsePrefix("172.30.0.0/24")
	for _, c := range []struct {
		entry    Allowed
		protocol flow.Protocol
		dst      string
		want     bool
	}{
		{Allowed{Prefix: db}, flow.TCP, "172.30.0.5:1", true},
		{Allowed{Prefix: db}, flow.UDP, "172.30.0.5:65535", true},
		{Allowed{Prefix: db}, flow.TCP, "172.30.1.5:1", false},
		{Allowed{Prefix: db, Protocol: flow.TCP}, flow.TCP, "172.30.0.5:1", true},
		{Allowed{Prefix: db, Protocol: flow.TCP}, flow.UDP, "172.30.0.5:1", false},
		{Allowed{Prefix: db, First: 5432, Last: 5433}, flow.TCP, "172.30.0.5:5431", false},
		{Allowed{Prefix: db, First: 5432, Last: 5433}, flow.TCP, "172.30.0.5:5432", true},
		{Allowed{Prefix: db, First: 5432, Last: 5433}, flow.TCP, "172.30.0.5:5433", true},
		{Allowed{Prefix: db, First: 5432, Last: 5433}, flow.TCP, "172.30.0.5:5434", false},
		{Allowed{Prefix: db, First: 5432}, flow.TCP, "172.30.0.5:5432", false}, // an empty range
		{Allowed{Prefix: db, Last: 5432}, flow.TCP, "172.30.0.5:1", true},
		{Allowed{Prefix: netip.MustParsePrefix("::ffff:172.30.0.0/120")}, flow.TCP, "172.30.0.5:1", true},
		{Allowed{}, flow.TCP, "172.30.0.5:1", false},
	} {
		s := shop(nil, nil, func(_ *Config, s *State) { s.Allow = []Allowed{c.entry} })
		if got := Decide(toward(c.protocol, c.dst), s).Action == Dial; got != c.want {
			t.Errorf("%+v, %s %s: %t, want %t", c.entry, c.protocol, c.dst, got, c.want)
		}
	}
}

// TestChoice: the exit spreads flows over the endpoints that it can reach, whatever carries them. With
// session affinity a source keeps its endpoint, and loses it only with the endpoint.
func TestChoice(t *testing.T) {
	ends := []string{"10.140.2.2@edge-2", "10.140.2.3@edge-2", "10.244.0.2@n1", "10.244.1.3@n2"}
	chosen := func(src string, left []string, change ...func(*v1.Service)) string {
		s := shop([]*v1.Service{service("a", "10.96.0.1", change...)}, []*discoveryv1.EndpointSlice{endpoints("a", left...)})
		f := toward(flow.TCP, "10.96.0.1:80")
		f.Src = netip.MustParseAddrPort(src)
		v := Decide(f, s)
		if len(v.Ends) != 1 || v.Ends[0].Address != v.Address || v.Ends[0].Node == "" {
			t.Fatalf("%s may end at %v", v, v.Ends)
		}
		return v.String()
	}
	const sources = 1000
	plain, affine := map[string]int{}, map[string]int{}
	for i := range sources {
		src := fmt.Sprintf("10.140.1.5:%d", 30000+i)
		plain[chosen(src, ends)]++
		before := chosen(fmt.Sprintf("10.140.%d.%d:%d", i/200, i%200, 1+i), ends, sticky)
		affine[before]++
		after := chosen(fmt.Sprintf("10.140.%d.%d:%d", i/200, i%200, 60000-i), ends[1:], sticky)
		if before != after && before != "dial 10.140.2.2:8080 by edge-2" {
			t.Fatalf("the source moved from %s to %s when another endpoint went", before, after)
		}
	}
	for name, counts := range map[string]map[string]int{"without affinity": plain, "with affinity": affine} {
		if len(counts) != len(ends) {
			t.Errorf("%s: %v", name, counts)
		}
		for _, n := range counts {
			if n < sources/len(ends)*3/4 || n > sources/len(ends)*5/4 {
				t.Errorf("%s the choice is not even: %v", name, counts)
			}
		}
	}
}

// TestEnds: a flow that the cluster routes may end at any endpoint that takes flows.
func TestEnds(t *testing.T) {
	s := shop([]*v1.Service{service("a", "10.96.0.1")}, []*discoveryv1.EndpointSlice{endpoints("a", "10.244.0.2@n1", "10.244.1.3@n2", "10.244.1.4@n2-")})
	v := Decide(toward(flow.TCP, "10.96.0.1:80"), s)
	if got := fmt.Sprint(v.Ends); got != "[{10.244.0.2:8080 n1} {10.244.1.3:8080 n2}]" {
		t.Errorf("a flow to the Service ends at %s", got)
	}
	if v := Decide(toward(flow.TCP, "10.140.2.2:80"), s); fmt.Sprint(v.Ends) != "[{10.140.2.2:80 edge-2}]" {
		t.Errorf("a flow to a pod of a host ends at %v", v.Ends)
	}
	if v := Decide(toward(flow.TCP, "10.244.0.2:80"), s); fmt.Sprint(v.Ends) != "[{10.244.0.2:80 }]" {
		t.Errorf("a flow to a pod ends at %v", v.Ends)
	}
}

// TestIsPod: which addresses can only be those of pods.
func TestIsPod(t *testing.T) {
	for address, want := range map[string]bool{
		"10.244.0.2": true, "::ffff:10.244.0.2": true, "10.140.1.7": true, "10.140.2.7": true, "10.150.0.1": true,
		"10.244.0.1": false, "203.0.113.21": false, "10.96.0.1": false, "198.51.100.1": false,
	} {
		if got := shop(nil, nil).IsPod(netip.MustParseAddr(address)); got != want {
			t.Errorf("%s: %t, want %t", address, got, want)
		}
	}
}

// TestNoServices: before the Services are read, no address of a Service is dialled.
func TestNoServices(t *testing.T) {
	s := shop(nil, nil)
	s.Services = nil
	if v := Decide(toward(flow.TCP, "10.96.0.1:80"), s); v.String() != "Refused" {
		t.Errorf("got %s", v)
	}
	if got := Table(s); len(got.Services) != 0 || len(got.Cluster) == 0 {
		t.Errorf("got %v", got)
	}
}
