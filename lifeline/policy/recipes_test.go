package policy

import (
	"fmt"
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/bowline-k8s/bowline/lifeline/flow"
)

func netStatus(ip string) v1.PodIP { return v1.PodIP{IP: ip} }

// TestRecipes: what users write, with the flows that they mean. db has the port 5432, and api calls it.
func TestRecipes(t *testing.T) {
	const in, out = networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress
	named := func(p *v1.Pod) {
		p.Spec.Containers[0].Ports = []v1.ContainerPort{{Name: "sql", ContainerPort: 5432}}
		p.Spec.InitContainers = []v1.Container{
			{Ports: []v1.ContainerPort{{Name: "metrics", ContainerPort: 9187}}, RestartPolicy: ptr.To(v1.ContainerRestartPolicyAlways)},
			{Ports: []v1.ContainerPort{{Name: "setup", ContainerPort: 1}}},
		}
	}
	pods := map[string]*v1.Pod{
		"api": pod("shop", "api", "10.1.0.1"), "db": pod("shop", "db", "10.1.0.2", named), "job": pod("ops", "job", "10.1.1.1"),
		"dns": pod("kube-system", "dns", "10.1.2.1"), "prometheus": pod("monitoring", "prometheus", "10.1.3.1"),
	}
	c := Config{Namespaces: []*v1.Namespace{namespace("shop", "shop"), namespace("ops", "ops"), namespace("kube-system", ""), namespace("monitoring", "ops")}}
	for _, p := range pods {
		c.Pods = append(c.Pods, p)
	}
	end := func(name string) End {
		if p := pods[name]; p != nil {
			return endOf(p)
		}
		return End{Address: netip.MustParseAddr(name)}
	}
	toDNS := egressRule{To: []apiPeer{{NamespaceSelector: all(), PodSelector: app("dns")}},
		Ports: []apiPort{{Protocol: ptr.To(v1.ProtocolUDP), Port: ptr.To(intstr.FromInt32(53))}}}
	for name, r := range map[string]struct {
		policies []*networkingv1.NetworkPolicy
		allowed  []string // "from to port", the port with u for UDP
		refused  []string // with what isolates
	}{
		"deny all ingress of a namespace": {
			[]*networkingv1.NetworkPolicy{policyOf("shop", "deny", all(), func(s *spec) { s.PolicyTypes = []networkingv1.PolicyType{in} })},
			[]string{"api job 80", "api 203.0.113.1 443", "job dns 53u"},
			[]string{"api db 5432 Ingress shop/deny", "job api 80 Ingress shop/deny", "203.0.113.1 api 80 Ingress shop/deny"},
		},
		"deny all egress of a namespace": {
			[]*networkingv1.NetworkPolicy{policyOf("shop", "deny", all(), func(s *spec) { s.PolicyTypes = []networkingv1.PolicyType{out} })},
			[]string{"job api 80", "203.0.113.1 api 80"},
			[]string{"api db 5432 Egress shop/deny", "api dns 53u Egress shop/deny", "api 203.0.113.1 443 Egress shop/deny"},
		},
		"egress to DNS only, and what another policy adds": {
			[]*networkingv1.NetworkPolicy{
				policyOf("shop", "dns", all(), func(s *spec) { s.PolicyTypes, s.Egress = []networkingv1.PolicyType{out}, []egressRule{toDNS} }),
				policyOf("shop", "to-db", app("api"), func(s *spec) {
					s.PolicyTypes, s.Egress = []networkingv1.PolicyType{out}, []egressRule{{To: []apiPeer{{PodSelector: app("db")}}}}
				}),
			},
			[]string{"api dns 53u", "db dns 53u", "api db 5432", "api db 1"},
			[]string{"api dns 53 Egress shop/dns shop/to-db", "db api 80 Egress shop/dns", "api 203.0.113.1 443 Egress shop/dns shop/to-db"},
		},
		"a database that only its application reaches, by a named port": {
			[]*networkingv1.NetworkPolicy{policyOf("shop", "db", app("db"), func(s *spec) {
				s.Ingress = []ingressRule{{From: []apiPeer{{PodSelector: app("api")}}, Ports: []apiPort{{Port: ptr.To(intstr.FromString("sql"))}}}}
			})},
			[]string{"api db 5432", "db api 80", "job api 80", "db db 1"},
			[]string{"api db 5433 Ingress shop/db", "job db 5432 Ingress shop/db", "api db 5432u Ingress shop/db"},
		},
		"the port of a sidecar, not of an init container": {
			[]*networkingv1.NetworkPolicy{policyOf("shop", "db", app("db"), func(s *spec) {
				s.Ingress = []ingressRule{{Ports: []apiPort{{Port: ptr.To(intstr.FromString("metrics"))}, {Port: ptr.To(intstr.FromString("setup"))}}}}
			})},
			[]string{"prometheus db 9187"},
			[]string{"prometheus db 1 Ingress shop/db"},
		},
		"from a namespace by its name": {
			[]*networkingv1.NetworkPolicy{policyOf("shop", "monitored", all(), func(s *spec) {
				selector := all()
				selector.MatchLabels = map[string]string{v1.LabelMetadataName: "monitoring"}
				s.Ingress = []ingressRule{{From: []apiPeer{{NamespaceSelector: selector}}}}
			})},
			[]string{"prometheus api 80", "prometheus db 9187"},
			[]string{"job api 80 Ingress shop/monitored", "api db 5432 Ingress shop/monitored"},
		},
		"a range of ports to addresses, but not to some": {
			[]*networkingv1.NetworkPolicy{policyOf("shop", "range", app("api"), func(s *spec) {
				s.PolicyTypes = []networkingv1.PolicyType{out}
				s.Egress = []egressRule{{To: []apiPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "203.0.113.0/24", Except: []string{"203.0.113.128/25"}}}},
					Ports: []apiPort{{Port: ptr.To(intstr.FromInt32(32000)), EndPort: ptr.To(int32(32768))}}}}
			})},
			[]string{"api 203.0.113.1 32000", "api 203.0.113.1 32768", "db 203.0.113.200 32000"},
			[]string{"api 203.0.113.1 31999 Egress shop/range", "api 203.0.113.1 32769 Egress shop/range",
				"api 203.0.113.200 32000 Egress shop/range", "api db 32000 Egress shop/range"},
		},
		"both ends have to permit": {
			[]*networkingv1.NetworkPolicy{
				policyOf("ops", "out", all(), func(s *spec) {
					s.PolicyTypes, s.Egress = []networkingv1.PolicyType{out}, []egressRule{{To: []apiPeer{{NamespaceSelector: all()}}}}
				}),
				policyOf("shop", "in", app("db"), func(s *spec) { s.PolicyTypes = []networkingv1.PolicyType{in} }),
			},
			[]string{"job api 80"},
			[]string{"job db 5432 Ingress shop/in", "job 203.0.113.1 443 Egress ops/out"},
		},
		"one policy of both directions, and an empty rule that permits everything": {
			[]*networkingv1.NetworkPolicy{policyOf("shop", "open", all(), func(s *spec) {
				s.PolicyTypes, s.Ingress = []networkingv1.PolicyType{in, out}, []ingressRule{{}}
			})},
			[]string{"job api 80", "203.0.113.1 db 1"},
			[]string{"api dns 53u Egress shop/open"},
		},
	} {
		c.Policies = r.policies
		p := New(c)
		check := func(text string, allowed bool) {
			var from, to, port, direction string
			var by [2]string
			n, _ := fmt.Sscan(text, &from, &to, &port, &direction, &by[0], &by[1])
			f := Flow{Source: end(from), Destination: end(to), Protocol: flow.TCP}
			if port[len(port)-1] == 'u' {
				f.Protocol = flow.UDP
			}
			fmt.Sscan(port, &f.Port)
			v := p.Evaluate(f)
			got := fmt.Sprint(v.Direction)
			for _, one := range v.By {
				got += " " + one.String()
			}
			want := direction
			for i := range max(0, n-4) {
				want += " " + by[i]
			}
			if v.Allowed != allowed || !allowed && got != want {
				t.Errorf("%s: %s: permitted %t, %s", name, text, v.Allowed, got)
			}
		}
		for _, text := range r.allowed {
			check(text, true)
		}
		for _, text := range r.refused {
			check(text, false)
		}
	}
}
