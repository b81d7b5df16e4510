package helper

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/lifeline/wire"
)

var (
	podAddress = netip.MustParseAddrPort("10.1.0.9:4000")
	web        = netip.MustParseAddrPort("10.96.0.7:80")
	dnsServer  = netip.MustParseAddrPort("10.96.0.10:53")
)

// clusterTable is the table of a cluster with the Services, on a host whose pods have 10.1.0.0/16.
func clusterTable(services ...wire.Service) wire.Table {
	return wire.Table{
		Cluster: []netip.Prefix{
			netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("10.0.0.0/14"), netip.MustParsePrefix("fd00::/16"),
		},
		Local:    []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")},
		Services: services,
		DNS:      []netip.Addr{dnsServer.Addr()},
	}
}

func addresses(all ...string) (parsed []netip.AddrPort) {
	for _, a := range all {
		parsed = append(parsed, netip.MustParseAddrPort(a))
	}
	return parsed
}

// TestDecide enumerates what there is at a destination, and both protocols.
func TestDecide(t *testing.T) {
	const toExit, forbidden, refused = "exit", "refusal 3", "refusal 1"
	for _, test := range []struct {
		dst       string
		backends  []string
		localOnly bool
		service   bool
		want      string
	}{
		{dst: "10.96.0.7:80", want: toExit},
		{dst: "10.96.0.7:80", service: true, want: toExit},
		{dst: "10.96.0.7:80", service: true, localOnly: true, want: refused},
		{dst: "10.96.0.7:80", service: true, backends: []string{"10.1.0.2:8080"}, want: "[10.1.0.2:8080]"},
		{dst: "10.96.0.7:80", service: true, localOnly: true, backends: []string{"10.1.0.2:8080"},
			want: "[10.1.0.2:8080]"},
		// A pod in the host's network, whose address is not redirected, is a backend; what is redirected is none.
		{dst: "10.96.0.7:80", service: true, backends: []string{"192.168.1.5:80", "10.2.0.2:8080"},
			want: "[192.168.1.5:80]"},
		{dst: "10.96.0.7:80", service: true, backends: []string{"10.96.0.7:80"}, want: toExit},
		{dst: "10.96.0.7:80", service: true, localOnly: true, backends: []string{"10.2.0.2:8080"}, want: refused},
		{dst: "10.2.0.4:9090", want: toExit},
		{dst: "[fd00::4]:9090", want: toExit},
		{dst: "10.1.0.4:9090", want: forbidden}, // a pod of this host
		{dst: "192.168.1.5:41000", want: forbidden},
		{dst: "127.0.0.1:41000", want: forbidden},
		{dst: "169.254.169.254:80", want: forbidden},
		{dst: "[fe80::1]:80", want: forbidden},
	} {
		for _, protocol := range []wire.Protocol{wire.TCP, wire.UDP} {
			for _, of := range []wire.Protocol{wire.TCP, wire.UDP} { // whose Service it is
				dst := netip.MustParseAddrPort(test.dst)
				table := clusterTable()
				if test.service {
					table.Services = []wire.Service{{
						Protocol: of, Address: dst, Backends: addresses(test.backends...), LocalOnly: test.localOnly,
					}}
				}
				v := newRouting(table).decide(wire.Flow{Protocol: protocol, Src: podAddress, Dst: dst})
				got := toExit
				if v.refusal != 0 {
					got = fmt.Sprintf("refusal %d", v.refusal)
				} else if v.service != nil {
					got = fmt.Sprint(v.service.Backends)
				}
				want := test.want
				if test.service && of != protocol {
					want = toExit
				}
				if got != want {
					t.Errorf("%+v, a flow of protocol %d, a Service of %d: %s, want %s", test, protocol, of, got, want)
				}
			}
		}
	}
}

func TestUDPDestinations(t *testing.T) {
	table := clusterTable(
		wire.Service{Protocol: wire.UDP, Address: netip.MustParseAddrPort("10.96.0.2:514")},
		wire.Service{Protocol: wire.UDP, Address: dnsServer},
		wire.Service{Protocol: wire.TCP, Address: web},
		wire.Service{Protocol: wire.UDP, Address: netip.MustParseAddrPort("203.0.113.9:514")}, // not redirected
		wire.Service{Protocol: wire.UDP, Address: netip.MustParseAddrPort("10.96.0.3:514")},
	)
	for limit, want := range map[int][]netip.AddrPort{
		5: addresses("10.96.0.10:53", "10.96.0.2:514", "10.96.0.3:514"),
		3: addresses("10.96.0.10:53", "10.96.0.2:514", "10.96.0.3:514"),
		2: addresses("10.96.0.10:53", "10.96.0.2:514"),
	} {
		if got, more := udpDestinations(table, limit); !slices.Equal(got, want) || more != (limit == 2) {
			t.Errorf("at most %d: %v, %v", limit, got, more)
		}
	}
}

// TestChooser: backends take turns; with affinity, a source keeps its backend for the time, while it is one.
func TestChooser(t *testing.T) {
	var c chooser
	now := time.Now()
	service := func(affinity time.Duration, backends ...string) *target {
		return &target{Service: wire.Service{
			Protocol: wire.TCP, Address: web, Affinity: affinity, Backends: addresses(backends...),
		}}
	}
	source := podAddress.Addr()
	take := func(s *target, source netip.Addr, now time.Time) netip.AddrPort {
		all := c.order(s, source, now)
		if sorted := slices.SortedFunc(slices.Values(all), netip.AddrPort.Compare); !slices.Equal(sorted, s.Backends) {
			t.Fatalf("the order %v of %v", all, s.Backends)
		}
		c.keep(s, source, all[0], now)
		return all[0]
	}
	turns := service(0, "10.1.0.1:80", "10.1.0.2:80", "10.1.0.3:80")
	for i := range 9 {
		if got := take(turns, source, now); got != turns.Backends[i%3] {
			t.Errorf("flow %d goes to %s", i, got)
		}
	}
	sticky := service(time.Minute, "10.1.0.1:80", "10.1.0.2:80", "10.1.0.3:80")
	first := take(sticky, source, now)
	for i := range 9 {
		now = now.Add(59 * time.Second) // each flow begins the time again
		if got := take(sticky, source, now); got != first {
			t.Errorf("flow %d goes to %s, not to %s", i, got, first)
		}
		take(sticky, netip.MustParseAddr("10.1.0.77"), now)
	}
	rest := slices.DeleteFunc(slices.Clone(sticky.Backends), func(b netip.AddrPort) bool { return b == first })
	if got := take(service(time.Minute, rest[0].String(), rest[1].String()), source, now); got == first {
		t.Errorf("a flow goes to %s, which is no backend", got)
	}
	other := map[netip.AddrPort]bool{}
	for range 3 {
		now = now.Add(time.Minute)
		other[take(sticky, source, now)] = true
	}
	if len(other) < 2 {
		t.Errorf("after its time, the source has %v", other)
	}
	for i := range maxAffinities + 10 {
		take(sticky, netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)}), now)
	}
	if len(c.kept) > maxAffinities {
		t.Errorf("%d sources are remembered", len(c.kept))
	}
}

func TestValidate(t *testing.T) {
	good := func() Config {
		both := []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
		return Config{Sessions: noSessions, Rules: (&fakeRules{}).open, Listen: both}
	}
	for name, change := range map[string]func(*Config){
		"good":             func(*Config) {},
		"no sessions":      func(c *Config) { c.Sessions = nil },
		"no rules":         func(c *Config) { c.Rules = nil },
		"no address":       func(c *Config) { c.Listen = nil },
		"a zero address":   func(c *Config) { c.Listen = make([]netip.Addr, 1) },
		"two of a family":  func(c *Config) { c.Listen = append(c.Listen, netip.MustParseAddr("::1")) },
		"a mapped address": func(c *Config) { c.Listen = []netip.Addr{netip.MustParseAddr("::ffff:127.0.0.1")} },
		"a negative time":  func(c *Config) { c.Stale = -1 },
		"negative flows":   func(c *Config) { c.MaxFlows = -1 },
	} {
		c := good()
		change(&c)
		if err := c.validate(); (err == nil) != (name == "good") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
