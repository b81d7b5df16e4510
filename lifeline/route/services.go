package route

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/bowline-k8s/bowline/lifeline/flow"
)

// labelProxyName marks a Service that another program than kube-proxy serves.
const labelProxyName = "service.kubernetes.io/service-proxy-name"

// apiServer is the Service of the API server.
var apiServer = types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: "kubernetes"}

// Services are the Services of a cluster that have a cluster IP, with their endpoints. It is immutable; nil
// has none.
type Services struct {
	ports  map[key]*port
	sorted []key
}

// key is one port of a Service at one of its cluster IPs.
type key struct {
	address  netip.AddrPort
	protocol flow.Protocol
}

func compareKeys(a, b key) int {
	return cmp.Or(a.address.Compare(b.address), cmp.Compare(a.protocol, b.protocol))
}

// port is what is known of a key.
type port struct {
	service   types.NamespacedName
	localOnly bool          // internalTrafficPolicy is Local
	elsewhere bool          // another program than kube-proxy serves it
	affinity  time.Duration // 0: none
	all       []endpoint    // of the cluster IP's family, sorted by address
	ends      []Endpoint    // those of all that take flows, wherever they are
}

// endpoint is an endpoint that is ready, or that serves while it terminates. An EndpointSlice may say so of
// any address.
type endpoint struct {
	Endpoint
	ready bool
}

// Endpoint is where a flow ends. Node is the name of its node; empty: not known.
type Endpoint struct {
	Address netip.AddrPort
	Node    string
}

// NewServices compiles the Services and EndpointSlices of a cluster, as kube-proxy understands them: a
// Service without a cluster IP, or of type ExternalName, is left out, and so are ports that are neither TCP
// nor UDP, addresses that are no IP addresses, and EndpointSlices of no Service.
func NewServices(services []*v1.Service, endpointSlices []*discoveryv1.EndpointSlice) *Services {
	found := endpointsOf(endpointSlices)
	s := &Services{ports: make(map[key]*port, len(services))}
	for _, service := range services {
		if service.Spec.Type == v1.ServiceTypeExternalName {
			continue
		}
		for _, ip := range clusterIPs(service) {
			for _, servicePort := range service.Spec.Ports {
				if protocol, ok := protocolOf(servicePort.Protocol); ok {
					k := key{netip.AddrPortFrom(ip, uint16(servicePort.Port)), protocol}
					s.ports[k] = newPort(service, found[ofPort{
						namespacedName(service.Namespace, service.Name), servicePort.Name, protocol, ip.Is4()}])
				}
			}
		}
	}
	for k := range s.ports {
		s.sorted = append(s.sorted, k)
	}
	slices.SortFunc(s.sorted, compareKeys)
	return s
}

func newPort(service *v1.Service, endpoints map[netip.AddrPort]candidate) *port {
	p := &port{service: namespacedName(service.Namespace, service.Name), affinity: affinity(service)}
	_, p.elsewhere = service.Labels[labelProxyName]
	p.localOnly = ptr.Deref(service.Spec.InternalTrafficPolicy, "") == v1.ServiceInternalTrafficPolicyLocal
	for _, c := range endpoints {
		if c.ready || c.serving && c.terminating {
			p.all = append(p.all, c.endpoint)
		}
	}
	slices.SortFunc(p.all, func(a, b endpoint) int { return a.Address.Compare(b.Address) })
	for _, e := range taking(p.all) {
		p.ends = append(p.ends, e.Endpoint)
	}
	return p
}

// find returns nil if no Service has the port.
func (s *Services) find(protocol flow.Protocol, address netip.AddrPort) *port {
	if s == nil {
		return nil
	}
	return s.ports[key{address, protocol}]
}

// APIServer returns the addresses of the API server: the endpoints of default/kubernetes, in any order.
func (s *Services) APIServer() (all []netip.Addr) {
	if s == nil {
		return nil
	}
	for _, p := range s.ports {
		if p.service == apiServer {
			for _, e := range p.ends {
				all = append(all, e.Address.Addr())
			}
		}
	}
	return all
}

// taking returns the endpoints that take flows: those that are ready; if there are none, those that serve
// while they terminate.
func taking(all []endpoint) []endpoint {
	var ready []endpoint
	for _, e := range all {
		if e.ready {
			ready = append(ready, e)
		}
	}
	if len(ready) == 0 {
		return all
	}
	return ready
}

// ofPort is the endpoints' side of a key: EndpointSlices have the name of a Service's port instead of its
// number, and one family of addresses.
type ofPort struct {
	service  types.NamespacedName
	port     string
	protocol flow.Protocol
	is4      bool
}

// candidate is an endpoint in any condition.
type candidate struct {
	endpoint
	serving, terminating bool
}

// endpointsOf collects the endpoints of all Services by port and address. An address that is listed twice
// belongs to a pod that has moved to another EndpointSlice, or to a new pod with the address of one that
// terminates: the pod that does not terminate is meant. Among equals the slice with the last name counts.
func endpointsOf(endpointSlices []*discoveryv1.EndpointSlice) map[ofPort]map[netip.AddrPort]candidate {
	found := map[ofPort]map[netip.AddrPort]candidate{}
	for _, slice := range slices.SortedFunc(slices.Values(endpointSlices), func(a, b *discoveryv1.EndpointSlice) int {
		return cmp.Compare(a.Name, b.Name)
	}) {
		service := slice.Labels[discoveryv1.LabelServiceName]
		if _, headless := slice.Labels[v1.IsHeadlessService]; headless || service == "" {
			continue
		}
		for _, p := range slice.Ports {
			if p.Name == nil || p.Port == nil || *p.Port <= 0 || *p.Port > 65535 {
				continue
			}
			protocol, ok := protocolOf(ptr.Deref(p.Protocol, v1.ProtocolTCP))
			if !ok {
				continue
			}
			is4 := slice.AddressType == discoveryv1.AddressTypeIPv4
			of := ofPort{namespacedName(slice.Namespace, service), *p.Name, protocol, is4}
			for _, e := range slice.Endpoints {
				c, ok := candidateOf(e, slice.AddressType, uint16(*p.Port))
				if !ok {
					continue
				}
				if found[of] == nil {
					found[of] = map[netip.AddrPort]candidate{}
				}
				if _, known := found[of][c.Address]; !known || !c.terminating {
					found[of][c.Address] = c
				}
			}
		}
	}
	return found
}

// candidateOf reads an endpoint. Only the first address counts, as for kube-proxy. A condition that is not
// set means ready, serving, and not terminating.
func candidateOf(e discoveryv1.Endpoint, family discoveryv1.AddressType, port uint16) (c candidate, ok bool) {
	if len(e.Addresses) == 0 {
		return c, false
	}
	ip, err := netip.ParseAddr(e.Addresses[0])
	is := discoveryv1.AddressTypeIPv6
	if ip.Is4() {
		is = discoveryv1.AddressTypeIPv4
	}
	if err != nil || ip.Is4In6() || is != family {
		return c, false
	}
	set := func(condition *bool, unset bool) bool {
		return condition == nil && unset || condition != nil && *condition
	}
	c.Address = netip.AddrPortFrom(ip, port)
	if e.NodeName != nil {
		c.Node = *e.NodeName
	}
	c.ready, c.serving = set(e.Conditions.Ready, true), set(e.Conditions.Serving, true)
	c.terminating = set(e.Conditions.Terminating, false)
	return c, true
}

// clusterIPs returns the cluster IPs of a Service; a headless Service has none.
func clusterIPs(s *v1.Service) (ips []netip.Addr) {
	all := s.Spec.ClusterIPs
	if len(all) == 0 {
		all = []string{s.Spec.ClusterIP}
	}
	for _, text := range all {
		if ip, err := netip.ParseAddr(text); err == nil {
			ips = append(ips, ip.Unmap())
		}
	}
	return ips
}

func affinity(s *v1.Service) time.Duration {
	if s.Spec.SessionAffinity != v1.ServiceAffinityClientIP {
		return 0
	}
	seconds := int32(v1.DefaultClientIPServiceAffinitySeconds)
	if c := s.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		seconds = *c.ClientIP.TimeoutSeconds
	}
	return time.Duration(seconds) * time.Second
}

// protocolOf returns false for a protocol that a lifeline does not carry. No name means TCP.
func protocolOf(p v1.Protocol) (flow.Protocol, bool) {
	switch p {
	case v1.ProtocolTCP, "":
		return flow.TCP, true
	case v1.ProtocolUDP:
		return flow.UDP, true
	}
	return 0, false
}

func namespacedName(namespace, name string) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: name}
}
