package route

import (
	"fmt"
	"net/netip"
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/bowline-k8s/bowline/lifeline/flow"
)

// prefixes parses prefixes and addresses.
func prefixes(all ...string) (out []netip.Prefix) {
	for _, p := range all {
		if !strings.Contains(p, "/") {
			a := netip.MustParseAddr(p)
			out = append(out, netip.PrefixFrom(a, a.BitLen()))
			continue
		}
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

func addrs(all ...string) (out []netip.Addr) {
	for _, a := range all {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

// service is a Service with one port, "web" of TCP 80, unless change adds others.
func service(name, ip string, change ...func(*v1.Service)) *v1.Service {
	s := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{}}, Spec: v1.ServiceSpec{
		Type: v1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip},
		Ports: []v1.ServicePort{{Name: "web", Protocol: v1.ProtocolTCP, Port: 80}},
	}}
	for _, c := range change {
		c(s)
	}
	return s
}

func localOnly(s *v1.Service) {
	s.Spec.InternalTrafficPolicy = ptr.To(v1.ServiceInternalTrafficPolicyLocal)
}

func sticky(s *v1.Service) { s.Spec.SessionAffinity = v1.ServiceAffinityClientIP }

func udp(s *v1.Service) { s.Spec.Ports[0].Protocol = v1.ProtocolUDP }

// endpoints is an EndpointSlice of a Service for its port "web" at 8080. Each of all is the address of an
// endpoint, with its node after @, if there is one, and its conditions after that: - is not ready, ~ serves
// while it terminates, ! terminates only, + is ready while it terminates, ? has no conditions.
func endpoints(name string, all ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: name + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("web"), Protocol: ptr.To(v1.ProtocolTCP), Port: ptr.To(int32(8080))}},
	}
	for _, text := range all {
		set := func(ready, serving, terminating bool) discoveryv1.EndpointConditions {
			return discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating}
		}
		conditions := set(true, true, false)
		switch text[len(text)-1] {
		case '-':
			conditions = set(false, false, false)
		case '~':
			conditions = set(false, true, true)
		case '!':
			conditions = set(false, false, true)
		case '+':
			conditions = set(true, true, true)
		case '?':
			conditions = discoveryv1.EndpointConditions{}
		}
		address, node, known := strings.Cut(strings.TrimRight(text, "-~!+?"), "@")
		e := discoveryv1.Endpoint{Addresses: []string{address}, Conditions: conditions}
		if known {
			e.NodeName = &node
		}
		if strings.Contains(address, ":") {
			s.AddressType = discoveryv1.AddressTypeIPv6
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

// shop is a cluster with two of our hosts, edge-1 and edge-2. State is that of edge-1.
func shop(services []*v1.Service, slices []*discoveryv1.EndpointSlice, change ...func(*Config, *State)) State {
	c := Config{
		ServicePrefixes: prefixes("10.96.0.0/12", "fd00:96::/108"),
		PodPrefixes:     prefixes("10.244.0.0/24", "10.244.1.0/24", "fd00:244::/64"),
		Nodes:           addrs("192.168.7.10", "192.168.7.11", "10.244.0.1"),
		APIServer:       addrs("192.168.7.2"),
		Self:            addrs("10.244.0.99"),
		DNS:             addrs("10.96.0.10"),
		Remotes: []Remote{
			{"edge-1", prefixes("10.140.1.0/24"), addrs("203.0.113.21")},
			{"edge-2", prefixes("10.140.2.0/24", "10.150.0.0/24"), addrs("203.0.113.22")},
			{"edge-3", prefixes("10.150.0.0/24"), nil}, // as of edge-2
		},
	}
	s := State{Services: NewServices(services, slices), Host: c.Remotes[0]}
	for _, f := range change {
		f(&c, &s)
	}
	s.Network = NewNetwork(c)
	return s
}

func outside(c *Config, _ *State) { c.Outside = true }

func toward(protocol flow.Protocol, dst string) flow.Flow {
	return flow.Flow{Protocol: protocol, Src: netip.MustParseAddrPort("10.140.1.5:40000"), Dst: netip.MustParseAddrPort(dst)}
}

// String shows a verdict in tests.
func (v Verdict) String() string {
	switch v.Action {
	case Refuse:
		return v.Refusal.String()
	case Dial:
		return "dial " + v.Address.String()
	case DialLink:
		return fmt.Sprintf("dial %s by %s", v.Address, v.Node)
	case DialAPIServer:
		return "dial the API server"
	}
	return "?"
}
