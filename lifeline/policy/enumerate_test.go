package policy

import (
	"fmt"
	"net/netip"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

var (
	selectors = []*metav1.LabelSelector{all(), app("web"), app("nothing"), team("Roughly", "red")}
	kinds     = [][]networkingv1.PolicyType{nil, {networkingv1.PolicyTypeIngress}, {networkingv1.PolicyTypeEgress},
		{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}}
)

// each calls with every flow of the small world.
func each(f func(Flow)) {
	for _, from := range ends {
		for _, to := range ends {
			for _, d := range destinations {
				d.Source, d.Destination = from, to
				f(d)
			}
		}
	}
}

// compare evaluates every flow twice.
func compare(t interface{ Fatalf(string, ...any) }, c Config, allowed map[bool]int) {
	p := New(c)
	each(func(f Flow) {
		v, want := p.Evaluate(f), dumb(c, f)
		allowed[v.Allowed]++
		if v.Allowed != want || v.Allowed != (len(v.By) == 0) {
			t.Fatalf("%s to %s, %s %d: %+v, want %t, by %+v", describe(f.Source), describe(f.Destination), f.Protocol, f.Port, v, want, specs(c))
		}
	})
}

func describe(e End) string {
	switch {
	case e.Unidentified:
		return "unidentified"
	case e.Pod != nil:
		return e.Pod.Namespace + "/" + e.Pod.Name
	}
	return e.Address.String()
}

func specs(c Config) (all []string) {
	for _, p := range c.Policies {
		all = append(all, fmt.Sprintf("%s/%s %+v", p.Namespace, p.Name, p.Spec))
	}
	return all
}

// TestOnePolicy enumerates all policies with one rule of the small world, and all flows.
func TestOnePolicy(t *testing.T) {
	allowed := map[bool]int{}
	c := objects
	for _, selector := range selectors {
		for _, kind := range kinds {
			for _, peers := range peers {
				for _, ports := range ports {
					for _, direction := range []Direction{Egress, Ingress} {
						c.Policies = []*networkingv1.NetworkPolicy{policyOf("a", "p", selector, func(s *spec) {
							s.PolicyTypes = kind
							if direction == Egress {
								s.Egress = []egressRule{{To: peers, Ports: ports}}
							} else {
								s.Ingress = []ingressRule{{From: peers, Ports: ports}}
							}
						})}
						compare(t, c, allowed)
					}
				}
			}
			c.Policies = []*networkingv1.NetworkPolicy{policyOf("a", "p", selector, func(s *spec) { s.PolicyTypes = kind })}
			compare(t, c, allowed)
		}
	}
	if allowed[true] < 100_000 || allowed[false] < 100_000 {
		t.Errorf("flows that are permitted, and not: %v", allowed)
	}
}

// TestSeveralPolicies draws several policies with several rules.
func TestSeveralPolicies(t *testing.T) {
	allowed := map[bool]int{}
	rapid.Check(t, func(t *rapid.T) {
		c := objects
		for i := rapid.IntRange(0, 4).Draw(t, "policies"); i > 0; i-- {
			c.Policies = append(c.Policies, policyOf(rapid.SampledFrom([]string{"a", "b", "gone", "empty"}).Draw(t, "namespace"), fmt.Sprint("p", i),
				rapid.SampledFrom(selectors).Draw(t, "selector"), func(s *spec) {
					s.PolicyTypes = rapid.SampledFrom(kinds).Draw(t, "types")
					for range rapid.IntRange(0, 2).Draw(t, "egress") {
						s.Egress = append(s.Egress, egressRule{To: rapid.SampledFrom(peers).Draw(t, "to"), Ports: rapid.SampledFrom(ports).Draw(t, "ports")})
					}
					for range rapid.IntRange(0, 2).Draw(t, "ingress") {
						s.Ingress = append(s.Ingress, ingressRule{From: rapid.SampledFrom(peers).Draw(t, "from"), Ports: rapid.SampledFrom(ports).Draw(t, "ports")})
					}
				}))
		}
		compare(t, c, allowed)
	})
	if allowed[true] == 0 || allowed[false] == 0 {
		t.Errorf("flows that are permitted, and not: %v", allowed)
	}
}

// TestUnknownIsNeverBetter: no policy permits an unidentified end what it refuses each end that it may be.
// The unidentified pod may be web, db or other.
func TestUnknownIsNeverBetter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := objects
		for i := rapid.IntRange(0, 3).Draw(t, "policies"); i > 0; i-- {
			c.Policies = append(c.Policies, policyOf(rapid.SampledFrom([]string{"a", "b"}).Draw(t, "namespace"), fmt.Sprint("p", i),
				rapid.SampledFrom(selectors).Draw(t, "selector"), func(s *spec) {
					s.PolicyTypes = rapid.SampledFrom(kinds).Draw(t, "types")
					s.Egress = []egressRule{{To: rapid.SampledFrom(peers).Draw(t, "to"), Ports: rapid.SampledFrom(ports).Draw(t, "ports")}}
					s.Ingress = []ingressRule{{From: rapid.SampledFrom(peers).Draw(t, "from"), Ports: rapid.SampledFrom(ports).Draw(t, "ports")}}
				}))
		}
		p := New(c)
		each(func(f Flow) {
			if f.Source.Unidentified == f.Destination.Unidentified || !p.Evaluate(f).Allowed {
				return
			}
			for _, may := range []End{endOf(web), endOf(db), endOf(other)} {
				g := f
				if f.Source.Unidentified {
					g.Source = may
				} else {
					g.Destination = may
				}
				if !p.Evaluate(g).Allowed {
					t.Fatalf("%s to %s is permitted, %s to %s is not, by %v", describe(f.Source), describe(f.Destination),
						describe(g.Source), describe(g.Destination), specs(c))
				}
			}
		})
	})
}

// TestAt: which end an address is.
func TestAt(t *testing.T) {
	six := pod("a", "six", "10.0.0.6")
	six.Status.PodIPs = append(six.Status.PodIPs, netStatus("fd00::6"))
	ended := pod("a", "ended", "10.0.0.7")
	ended.Status.Phase = "Succeeded"
	successor := pod("a", "successor", "10.0.0.7")
	twin := pod("b", "twin", "10.0.0.2")
	twin.Spec.NodeName = "edge-2"
	second := pod("b", "host-2", "192.168.0.1", inHostNetwork)
	odd := pod("b", "odd", "192.168.0.1")
	odd.Spec.NodeName = "edge-3"
	c := objects
	c.Pods = append(c.Pods[:len(c.Pods):len(c.Pods)], six, ended, successor, twin, second, odd)
	p := New(c)
	for _, c := range []struct {
		address, node string
		isPod         bool
		want          string
	}{
		{"10.0.0.1", "edge-1", true, "a/web"},
		{"10.0.0.1", "", true, "a/web"},
		{"10.0.0.1", "", false, "a/web"},
		{"::ffff:10.0.0.1", "", false, "a/web"},
		{"10.0.0.1", "edge-2", true, "unidentified"},
		{"10.0.0.1", "edge-2", false, "10.0.0.1"},
		{"10.0.0.2", "edge-1", true, "a/db"},
		{"10.0.0.2", "edge-2", true, "b/twin"},
		{"10.0.0.2", "", true, "unidentified"},
		{"10.0.0.2", "", false, "unidentified"},
		{"fd00::6", "edge-1", true, "a/six"},
		{"10.0.0.7", "edge-1", true, "a/successor"},
		{"192.168.0.1", "edge-1", true, "192.168.0.1"},
		{"192.168.0.1", "", false, "unidentified"}, // a host's, and a pod's on another one
		{"192.168.0.1", "edge-3", true, "b/odd"},
		{"203.0.113.9", "", false, "203.0.113.9"},
		{"203.0.113.9", "edge-1", true, "unidentified"},
	} {
		if got := describe(p.At(netip.MustParseAddr(c.address), c.node, c.isPod)); got != c.want {
			t.Errorf("%s on %q, %t: %s, want %s", c.address, c.node, c.isPod, got, c.want)
		}
	}
}

// TestNoPolicies: before the policies are read, nothing is permitted; without any, everything is.
func TestNoPolicies(t *testing.T) {
	var unread *Policies
	each(func(f Flow) {
		if v := unread.Evaluate(f); v.Allowed {
			t.Fatalf("%s to %s is permitted by policies that are not read", describe(f.Source), describe(f.Destination))
		}
		if v := New(objects).Evaluate(f); !v.Allowed {
			t.Fatalf("%s to %s is not permitted without policies", describe(f.Source), describe(f.Destination))
		}
	})
	if e := unread.At(netip.MustParseAddr("10.0.0.1"), "", true); !e.Unidentified {
		t.Errorf("a pod is identified by policies that are not read: %+v", e)
	}
}
