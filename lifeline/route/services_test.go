package route

import (
	"fmt"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
)

// shown are the endpoints that take flows of the Service, and of these the ones that the table of edge-1 has.
func shown(s State) string {
	var all []string
	for _, e := range s.Services.ports[s.Services.sorted[0]].ends {
		all = append(all, e.Address.Addr().String())
	}
	var here []string
	if t := Table(s); len(t.Services) > 0 {
		for _, b := range t.Services[0].Backends {
			here = append(here, b.Addr().String())
		}
	}
	return fmt.Sprintf("all %v here %v", all, here)
}

// TestConditions are kube-proxy's cases: which endpoints take flows, in the cluster and on the node itself.
func TestConditions(t *testing.T) {
	for name, c := range map[string]struct {
		endpoints            []string
		cluster, localPolicy string // what a Service of either internal traffic policy uses
	}{
		"none": {nil, "all [] here []", "all [] here []"},
		"ready here and elsewhere": {[]string{"10.140.1.1@edge-1", "10.244.0.2@n1"},
			"all [10.140.1.1 10.244.0.2] here [10.140.1.1]", "all [10.140.1.1 10.244.0.2] here [10.140.1.1]"},
		"ready elsewhere only": {[]string{"10.244.0.2@n1", "10.140.2.2@edge-2"},
			"all [10.140.2.2 10.244.0.2] here []", "all [10.140.2.2 10.244.0.2] here []"},
		"conditions not set": {[]string{"10.140.1.1@edge-1?"},
			"all [10.140.1.1] here [10.140.1.1]", "all [10.140.1.1] here [10.140.1.1]"},
		"not ready": {[]string{"10.140.1.1@edge-1-", "10.140.1.2@edge-1"},
			"all [10.140.1.2] here [10.140.1.2]", "all [10.140.1.2] here [10.140.1.2]"},
		"none is ready": {[]string{"10.140.1.1@edge-1-", "10.244.0.2@n1-"}, "all [] here []", "all [] here []"},
		"ready while it terminates, as with publishNotReadyAddresses": {[]string{"10.140.1.1@edge-1+"},
			"all [10.140.1.1] here [10.140.1.1]", "all [10.140.1.1] here [10.140.1.1]"},
		"all terminate": {[]string{"10.140.1.1@edge-1~", "10.140.1.2@edge-1!", "10.244.0.2@n1~"},
			"all [10.140.1.1 10.244.0.2] here [10.140.1.1]", "all [10.140.1.1 10.244.0.2] here [10.140.1.1]"},
		"terminates here, ready elsewhere": {[]string{"10.140.1.1@edge-1~", "10.244.0.2@n1"},
			"all [10.244.0.2] here []", "all [10.244.0.2] here [10.140.1.1]"},
		"ready and terminating here": {[]string{"10.140.1.1@edge-1~", "10.140.1.2@edge-1"},
			"all [10.140.1.2] here [10.140.1.2]", "all [10.140.1.2] here [10.140.1.2]"},
		"not ready here, terminating elsewhere": {[]string{"10.140.1.1@edge-1-", "10.244.0.2@n1~"},
			"all [10.244.0.2] here []", "all [10.244.0.2] here []"},
		"without a node, by its address": {[]string{"10.140.1.1", "203.0.113.9"},
			"all [10.140.1.1 203.0.113.9] here [10.140.1.1]", "all [10.140.1.1 203.0.113.9] here [10.140.1.1]"},
		"of this node, but not of its pods": {[]string{"127.0.0.1@edge-1", "10.0.0.7@edge-1"},
			"all [10.0.0.7 127.0.0.1] here []", "all [10.0.0.7 127.0.0.1] here []"},
		"in the host's network": {[]string{"203.0.113.21@edge-1"},
			"all [203.0.113.21] here [203.0.113.21]", "all [203.0.113.21] here [203.0.113.21]"},
	} {
		for policy, want := range map[string]string{"Cluster": c.cluster, "Local": c.localPolicy} {
			s := service("a", "10.96.0.1")
			if policy == "Local" {
				localOnly(s)
			}
			if got := shown(shop([]*v1.Service{s}, []*discoveryv1.EndpointSlice{endpoints("a", c.endpoints...)})); got != want {
				t.Errorf("%s, internalTrafficPolicy %s: %s, want %s", name, policy, got, want)
			}
		}
	}
}

// TestSlices: how EndpointSlices become endpoints of a Service.
func TestSlices(t *testing.T) {
	second := func(change func(*discoveryv1.EndpointSlice), all ...string) *discoveryv1.EndpointSlice {
		s := endpoints("a", all...)
		s.Name = "a-2"
		change(s)
		return s
	}
	first := endpoints("a", "10.140.1.1@edge-1")
	for name, c := range map[string]struct {
		slice *discoveryv1.EndpointSlice
		want  string
	}{
		"several slices": {second(func(*discoveryv1.EndpointSlice) {}, "10.140.1.2@edge-1"), "10.140.1.1:8080 10.140.1.2:8080"},
		"another number for a named target port": {second(func(s *discoveryv1.EndpointSlice) { s.Ports[0].Port = ptr.To(int32(9090)) },
			"10.140.1.1@edge-1"), "10.140.1.1:8080 10.140.1.1:9090"},
		"another port": {second(func(s *discoveryv1.EndpointSlice) { s.Ports[0].Name = ptr.To("admin") }, "10.140.1.2@edge-1"), "10.140.1.1:8080"},
		"another protocol": {second(func(s *discoveryv1.EndpointSlice) { s.Ports[0].Protocol = ptr.To(v1.ProtocolUDP) },
			"10.140.1.2@edge-1"), "10.140.1.1:8080"},
		"no protocol":                           {second(func(s *discoveryv1.EndpointSlice) { s.Ports[0].Protocol = nil }, "10.140.1.2@edge-1"), "10.140.1.1:8080 10.140.1.2:8080"},
		"a port without name":                   {second(func(s *discoveryv1.EndpointSlice) { s.Ports[0].Name = nil }, "10.140.1.2@edge-1"), "10.140.1.1:8080"},
		"no number":                             {second(func(s *discoveryv1.EndpointSlice) { s.Ports[0].Port = nil }, "10.140.1.2@edge-1"), "10.140.1.1:8080"},
		"the number 0":                          {second(func(s *discoveryv1.EndpointSlice) { s.Ports[0].Port = ptr.To(int32(0)) }, "10.140.1.2@edge-1"), "10.140.1.1:8080"},
		"another family":                        {second(func(*discoveryv1.EndpointSlice) {}, "fd00:140:1::1@edge-1"), "10.140.1.1:8080"},
		"a name":                                {second(func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeFQDN }, "10.140.1.2@edge-1"), "10.140.1.1:8080"},
		"the wrong family":                      {second(func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeIPv6 }, "10.140.1.2@edge-1"), "10.140.1.1:8080"},
		"no address":                            {second(func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses = nil }, "10.140.1.2@edge-1"), "10.140.1.1:8080"},
		"of a headless one":                     {second(func(s *discoveryv1.EndpointSlice) { s.Labels[v1.IsHeadlessService] = "" }, "10.140.1.2@edge-1"), "10.140.1.1:8080"},
		"of no Service":                         {second(func(s *discoveryv1.EndpointSlice) { s.Labels = nil }, "10.140.1.2@edge-1"), "10.140.1.1:8080"},
		"of another namespace":                  {second(func(s *discoveryv1.EndpointSlice) { s.Namespace = "x" }, "10.140.1.2@edge-1"), "10.140.1.1:8080"},
		"an address that a terminating pod had": {second(func(*discoveryv1.EndpointSlice) {}, "10.140.1.1@edge-1!"), "10.140.1.1:8080"},
		"a pod that is not ready any more":      {second(func(*discoveryv1.EndpointSlice) {}, "10.140.1.1@edge-1-"), ""},
	} {
		for _, all := range [][]*discoveryv1.EndpointSlice{{first, c.slice}, {c.slice, first}} {
			var got []string
			s := NewServices([]*v1.Service{service("a", "10.96.0.1")}, all)
			for _, e := range s.ports[s.sorted[0]].ends {
				got = append(got, e.Address.String())
			}
			if text := fmt.Sprint(got); text != "["+c.want+"]" {
				t.Errorf("%s: %s, want %s", name, text, c.want)
			}
		}
	}
}

// TestServices: which ports of Services there are.
func TestServices(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*v1.Service)
		want   string
	}{
		"one port":      {func(*v1.Service) {}, "10.96.0.1:80/TCP"},
		"headless":      {func(s *v1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", []string{"None"} }, ""},
		"no address":    {func(s *v1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "", nil }, ""},
		"ExternalName":  {func(s *v1.Service) { s.Spec.Type = v1.ServiceTypeExternalName }, ""},
		"LoadBalancer":  {func(s *v1.Service) { s.Spec.Type = v1.ServiceTypeLoadBalancer }, "10.96.0.1:80/TCP"},
		"from old APIs": {func(s *v1.Service) { s.Spec.ClusterIPs = nil }, "10.96.0.1:80/TCP"},
		"dual stack": {func(s *v1.Service) { s.Spec.ClusterIPs = []string{"10.96.0.1", "fd00:96::1"} },
			"10.96.0.1:80/TCP [fd00:96::1]:80/TCP"},
		"several ports": {func(s *v1.Service) {
			s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{Name: "dns", Protocol: v1.ProtocolUDP, Port: 53},
				v1.ServicePort{Name: "dns-tcp", Port: 53}, v1.ServicePort{Name: "signal", Protocol: v1.ProtocolSCTP, Port: 36412})
		}, "10.96.0.1:53/TCP 10.96.0.1:53/UDP 10.96.0.1:80/TCP"},
	} {
		var got []string
		for _, k := range NewServices([]*v1.Service{service("a", "10.96.0.1", c.change)}, nil).sorted {
			got = append(got, fmt.Sprintf("%s/%s", k.address, k.protocol))
		}
		if text := fmt.Sprint(got); text != "["+c.want+"]" {
			t.Errorf("%s: %s, want %s", name, text, c.want)
		}
	}
}

// TestFamilies: each cluster IP of a dual-stack Service has the endpoints of its family.
func TestFamilies(t *testing.T) {
	v6 := endpoints("a", "fd00:140:1::1@edge-1")
	v6.Name = "a-6"
	s := shop([]*v1.Service{service("a", "10.96.0.1", func(s *v1.Service) { s.Spec.ClusterIPs = []string{"fd00:96::1", "10.96.0.1"} })},
		[]*discoveryv1.EndpointSlice{endpoints("a", "10.140.1.1@edge-1"), v6}, func(c *Config, s *State) {
			s.Host.Pods = append(s.Host.Pods, prefixes("fd00:140:1::/64")...)
		})
	got := Table(s).Services
	if len(got) != 2 || got[0].Backends[0].String() != "10.140.1.1:8080" || got[1].Backends[0].String() != "[fd00:140:1::1]:8080" {
		t.Errorf("got %v", got)
	}
}

func TestAffinity(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*v1.Service)
		want   time.Duration
	}{
		"none":    {func(*v1.Service) {}, 0},
		"None":    {func(s *v1.Service) { s.Spec.SessionAffinity = v1.ServiceAffinityNone }, 0},
		"default": {sticky, 3 * time.Hour},
		"a time": {func(s *v1.Service) {
			sticky(s)
			s.Spec.SessionAffinityConfig = &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: ptr.To(int32(60))}}
		}, time.Minute},
	} {
		s := shop([]*v1.Service{service("a", "10.96.0.1", c.change)}, []*discoveryv1.EndpointSlice{endpoints("a", "10.140.1.1@edge-1")})
		if got := Table(s).Services; len(got) != 1 || got[0].Affinity != c.want {
			t.Errorf("%s: %v, want %s", name, got, c.want)
		}
	}
}

// TestNewServicesIsDeterministic: the order of what a cache lists changes nothing.
func TestNewServicesIsDeterministic(t *testing.T) {
	var services []*v1.Service
	var all []*discoveryv1.EndpointSlice
	for i := range 20 {
		name := fmt.Sprintf("s%d", i)
		services = append(services, service(name, fmt.Sprintf("10.96.0.%d", i+1)))
		all = append(all, endpoints(name, "10.140.1.1@edge-1", "10.140.1.2@edge-1-"), endpoints(name, "10.140.1.2@edge-1", "10.140.1.3@edge-1~"))
		all[2*i].Name += "-b"
	}
	want := fmt.Sprint(Table(shop(services, all)))
	slices.Reverse(services)
	slices.Reverse(all)
	if got := fmt.Sprint(Table(shop(services, all))); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
