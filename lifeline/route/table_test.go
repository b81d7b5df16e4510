package route

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/lifeline/flow"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestTable compares the table of a cluster with testdata/table.txt.
func TestTable(t *testing.T) {
	dns := service("kube-dns", "10.96.0.10", func(s *v1.Service) {
		s.Spec.Ports = []v1.ServicePort{{Name: "dns", Protocol: v1.ProtocolUDP, Port: 53}, {Name: "dns-tcp", Protocol: v1.ProtocolTCP, Port: 53}}
	})
	dnsSlice := endpoints("kube-dns", "10.244.0.2@n1")
	dnsSlice.Ports = []discoveryv1.EndpointPort{{Name: ptr.To("dns"), Protocol: ptr.To(v1.ProtocolUDP), Port: ptr.To(int32(53))},
		{Name: ptr.To("dns-tcp"), Protocol: ptr.To(v1.ProtocolTCP), Port: ptr.To(int32(53))}}
	ntp := endpoints("ntp", "10.140.1.6@edge-1")
	*ntp.Ports[0].Protocol = v1.ProtocolUDP
	s := shop([]*v1.Service{
		dns, service("here", "10.96.0.20", sticky), service("mixed", "10.96.0.21"), service("elsewhere", "10.96.0.22"),
		service("node-only", "10.96.0.23", localOnly), service("ntp", "10.96.0.24", udp), service("mesh", "10.96.0.25",
			func(s *v1.Service) { s.Labels[labelProxyName] = "mesh" }),
		service("mesh-udp", "10.96.0.26", udp, localOnly, func(s *v1.Service) { s.Labels[labelProxyName] = "mesh" }),
		service("excluded", "10.97.0.5"), service("unknown-prefix", "172.20.0.1"), service("headless", "None"),
	}, []*discoveryv1.EndpointSlice{
		dnsSlice, ntp, endpoints("here", "10.140.1.4@edge-1", "10.140.1.3@edge-1"), endpoints("mixed", "10.140.1.3@edge-1", "10.244.0.3@n1", "10.140.2.3@edge-2"),
		endpoints("elsewhere", "10.244.0.3@n1"), endpoints("mesh", "10.140.1.3@edge-1"), endpoints("excluded", "10.140.1.3@edge-1"),
		endpoints("unknown-prefix", "10.140.1.3@edge-1"), endpoints("headless", "10.140.1.3@edge-1"),
	}, func(c *Config, s *State) {
		s.Exclude = prefixes("10.97.0.0/16")
		s.Allow = []Allowed{{Prefix: netip.MustParsePrefix("172.30.0.5/24"), Protocol: flow.TCP, First: 5432, Last: 5432}}
		c.PodPrefixes = append(c.PodPrefixes, prefixes("10.140.0.0/16")...) // has the pods of the hosts too
	})
	got := show(Table(s))
	if *update {
		testutil.Must(t, os.WriteFile("testdata/table.txt", []byte(got), 0o644))
	}
	if want := string(testutil.ReadFile(t, "testdata/table.txt")); got != want {
		t.Errorf("the table is\n%s\nwant\n%s", got, want)
	}
}

func show(t flow.Table) string {
	var b strings.Builder
	fmt.Fprintf(&b, "cluster %v\nlocal   %v\ndns     %v\n", t.Cluster, t.Local, t.DNS)
	for _, s := range t.Services {
		fmt.Fprintf(&b, "%s %s to %v", s.Protocol, s.Address, s.Backends)
		if s.LocalOnly {
			b.WriteString(", local only")
		}
		if s.Affinity > 0 {
			fmt.Fprintf(&b, ", affinity %s", s.Affinity)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// TestEverythingAllowed: with a default route through the lifeline, the host keeps what is its own.
func TestEverythingAllowed(t *testing.T) {
	s := shop(nil, nil, func(_ *Config, s *State) {
		s.Allow = []Allowed{{Prefix: netip.MustParsePrefix("0.0.0.0/0")}}
		s.Exclude = prefixes("192.168.7.0/24")
	})
	table := Table(s)
	for _, kept := range addrs("127.0.0.1", "169.254.169.254", "224.0.0.1", "255.255.255.255", "10.140.1.7", "192.168.7.9") {
		if !within(table.Local, kept) {
			t.Errorf("%s is redirected", kept)
		}
	}
	if fmt.Sprint(table.Cluster) != "[0.0.0.0/0 fd00:96::/108 fd00:244::/64]" {
		t.Errorf("redirected: %v", table.Cluster)
	}
}

// TestBounded: a table that is too large keeps what only the helper can serve.
func TestBounded(t *testing.T) {
	var services []*v1.Service
	var all []*discoveryv1.EndpointSlice
	for i := range MaxServices + 10 {
		name, ip := fmt.Sprintf("s%d", i), fmt.Sprintf("10.100.%d.%d", i/256, i%256)
		switch {
		case i < 100:
			services = append(services, service(name, ip, udp))
		default:
			services, all = append(services, service(name, ip)), append(all, endpoints(name, "10.140.1.1@edge-1"))
		}
	}
	services = append(services, service("last", "10.111.0.1", localOnly), service("kube-dns", "10.96.0.10", udp))
	s := shop(services, all)
	table := Table(s)
	counts := map[string]int{}
	for i, row := range table.Services {
		switch {
		case row.LocalOnly:
			counts["local only"]++
		case len(row.Backends) > 0:
			counts["here"]++
		default:
			counts["udp"]++
		}
		if i > 0 && compareKeys(key{table.Services[i-1].Address, table.Services[i-1].Protocol}, key{row.Address, row.Protocol}) >= 0 {
			t.Fatalf("%s is not sorted", row.Address)
		}
	}
	if len(table.Services) != MaxServices || counts["local only"] != 1 || counts["here"] != MaxServices+10-100 || table.Services[0].Address.Addr() != table.DNS[0] {
		t.Errorf("%d rows: %v", len(table.Services), counts)
	}
	many := make([]string, MaxBackends+1)
	for i := range many {
		many[i] = fmt.Sprintf("10.140.%d.%d@edge-1", 10+i/256, i%256)
	}
	s = shop([]*v1.Service{service("a", "10.96.0.1")}, []*discoveryv1.EndpointSlice{endpoints("a", many...)},
		func(_ *Config, s *State) { s.Host.Pods = prefixes("10.140.0.0/16") })
	if got := Table(s).Services[0].Backends; len(got) != MaxBackends {
		t.Errorf("a Service has %d backends", len(got))
	}
}

// TestOverlap: a network of the host conflicts with a prefix of the cluster, unless all that they share is
// left alone.
func TestOverlap(t *testing.T) {
	for name, c := range map[string]struct {
		exclude, networks []netip.Prefix
		want              string
	}{
		"none":                         {nil, prefixes("192.168.1.0/24", "fe80::/64"), "[]"},
		"the network of its pods":      {nil, prefixes("10.140.1.0/24"), "[]"},
		"a LAN in the Services":        {nil, prefixes("10.100.3.7/24"), "[{10.96.0.0/12 10.100.3.0/24}]"},
		"a LAN around the Services":    {nil, prefixes("10.0.0.0/8"), "[{10.96.0.0/12 10.0.0.0/8} {10.140.2.0/24 10.0.0.0/8} {10.150.0.0/24 10.0.0.0/8} {10.244.0.0/24 10.0.0.0/8} {10.244.1.0/24 10.0.0.0/8}]"},
		"a default route":              {nil, prefixes("0.0.0.0/0", "::/0"), "[]"},
		"excluded":                     {prefixes("10.100.3.0/24"), prefixes("10.100.3.0/24"), "[]"},
		"excluded by more":             {prefixes("10.100.0.0/16"), prefixes("10.100.3.0/24"), "[]"},
		"excluded with the prefix":     {prefixes("10.96.0.0/11"), prefixes("10.100.3.0/24"), "[]"},
		"excluded in two halves":       {prefixes("10.100.3.0/25", "10.100.3.128/25"), prefixes("10.100.3.0/24"), "[]"},
		"excluded in part":             {prefixes("10.100.3.0/25"), prefixes("10.100.3.0/24"), "[{10.96.0.0/12 10.100.3.0/24}]"},
		"IPv6":                         {nil, prefixes("fd00:96::/64"), "[{fd00:96::/108 fd00:96::/64}]"},
		"loopback and link-local":      {nil, prefixes("127.0.0.0/8", "169.254.0.0/16"), "[]"},
		"the network of another host":  {nil, prefixes("10.140.2.0/24"), "[{10.140.2.0/24 10.140.2.0/24}]"},
		"one address of it":            {nil, prefixes("10.140.2.9"), "[{10.140.2.0/24 10.140.2.9/32}]"},
		"one address of it, excluded":  {prefixes("10.140.2.9"), prefixes("10.140.2.9"), "[]"},
		"a network that is not valid":  {nil, []netip.Prefix{{}}, "[]"},
		"all but one address excluded": {prefixes("10.140.2.0/25", "10.140.2.128/26", "10.140.2.192/27", "10.140.2.224/28", "10.140.2.240/29", "10.140.2.248/30", "10.140.2.252/31", "10.140.2.254"), prefixes("10.140.2.0/24"), "[{10.140.2.0/24 10.140.2.0/24}]"},
	} {
		s := shop(nil, nil, func(_ *Config, s *State) { s.Exclude = c.exclude })
		if got := fmt.Sprint(Overlap(Table(s), c.networks)); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
