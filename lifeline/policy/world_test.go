package policy

import (
	"net"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/bowline-k8s/bowline/lifeline/flow"
)

// pod is a pod with the label app, an address, and the port "http" at TCP 80, "dns" at UDP 53.
func pod(namespace, app, ip string, change ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: app, Labels: map[string]string{"app": app}},
		Spec: v1.PodSpec{NodeName: "edge-1", Containers: []v1.Container{{Ports: []v1.ContainerPort{
			{Name: "http", ContainerPort: 80}, {Name: "dns", ContainerPort: 53, Protocol: v1.ProtocolUDP},
		}}}},
		Status: v1.PodStatus{Phase: v1.PodRunning, PodIP: ip, PodIPs: []v1.PodIP{{IP: ip}}},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func inHostNetwork(p *v1.Pod) { p.Spec.HostNetwork = true }

func namespace(name, team string) *v1.Namespace {
	n := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelMetadataName: name}}}
	if team != "" {
		n.Labels["team"] = team
	}
	return n
}

// app selects pods by their label, all all of them.
func app(name string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
}

func all() *metav1.LabelSelector { return &metav1.LabelSelector{} }

func team(operator metav1.LabelSelectorOperator, values ...string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "team", Operator: operator, Values: values}}}
}

func policyOf(namespace, name string, selector *metav1.LabelSelector, change func(*networkingv1.NetworkPolicySpec)) *networkingv1.NetworkPolicy {
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: networkingv1.NetworkPolicySpec{PodSelector: *selector}}
	change(&p.Spec)
	return p
}

type (
	spec        = networkingv1.NetworkPolicySpec
	ingressRule = networkingv1.NetworkPolicyIngressRule
	egressRule  = networkingv1.NetworkPolicyEgressRule
	apiPeer     = networkingv1.NetworkPolicyPeer
	apiPort     = networkingv1.NetworkPolicyPort
)

// The small world: every kind of end.
var (
	web     = pod("a", "web", "10.0.0.1")
	db      = pod("a", "db", "10.0.0.2")
	other   = pod("b", "web", "10.0.1.1")
	host    = pod("a", "host", "192.168.0.1", inHostNetwork)
	lost    = pod("gone", "web", "10.0.2.1") // its namespace is not known
	objects = Config{Namespaces: []*v1.Namespace{namespace("a", "red"), namespace("b", "")}, Pods: []*v1.Pod{web, db, other, host, lost}}
	ends    = []End{
		endOf(web), endOf(db), endOf(other), endOf(host), endOf(lost),
		{Address: netip.MustParseAddr("203.0.113.9")}, {Address: netip.MustParseAddr("10.0.0.9"), Unidentified: true},
	}
)

func endOf(p *v1.Pod) End { return End{Address: netip.MustParseAddr(p.Status.PodIP), Pod: p} }

// Every kind of peer and of port of a rule; nil: the list is empty.
var (
	peers = [][]apiPeer{
		nil,
		{{PodSelector: app("web")}},
		{{PodSelector: all()}},
		{{NamespaceSelector: all()}},
		{{NamespaceSelector: team(metav1.LabelSelectorOpIn, "red")}},
		{{NamespaceSelector: team(metav1.LabelSelectorOpNotIn, "red")}},
		{{NamespaceSelector: team(metav1.LabelSelectorOpExists)}},
		{{NamespaceSelector: team(metav1.LabelSelectorOpDoesNotExist)}},
		{{NamespaceSelector: all(), PodSelector: app("web")}},
		{{NamespaceSelector: team(metav1.LabelSelectorOpExists), PodSelector: app("db")}},
		{{NamespaceSelector: team(metav1.LabelSelectorOpExists)}, {PodSelector: app("db")}},
		{{IPBlock: &networkingv1.IPBlock{CIDR: "0.0.0.0/0"}}},
		{{IPBlock: &networkingv1.IPBlock{CIDR: "10.0.0.0/16", Except: []string{"10.0.0.2/32", "10.0.1.0/24"}}}},
		{{IPBlock: &networkingv1.IPBlock{CIDR: "203.0.113.0/24"}}, {IPBlock: &networkingv1.IPBlock{CIDR: "192.168.0.0/24"}}},
		{{IPBlock: &networkingv1.IPBlock{CIDR: "ten"}}},
		{{IPBlock: &networkingv1.IPBlock{CIDR: "0.0.0.0/0", Except: []string{"ten"}}}},
		{{IPBlock: &networkingv1.IPBlock{CIDR: "0.0.0.0/0"}, PodSelector: all()}},
		{{PodSelector: team("Roughly", "red")}},
		{{NamespaceSelector: team("Roughly", "red"), PodSelector: all()}},
		{{}},
	}
	ports = [][]apiPort{
		nil,
		{{Port: ptr.To(intstr.FromInt32(80))}},
		{{Protocol: ptr.To(v1.ProtocolUDP), Port: ptr.To(intstr.FromInt32(53))}},
		{{Protocol: ptr.To(v1.ProtocolUDP)}},
		{{}},
		{{Port: ptr.To(intstr.FromString("http"))}},
		{{Port: ptr.To(intstr.FromString("dns"))}}, // of UDP, so not of TCP
		{{Protocol: ptr.To(v1.ProtocolUDP), Port: ptr.To(intstr.FromString("dns"))}},
		{{Port: ptr.To(intstr.FromInt32(79)), EndPort: ptr.To(int32(81))}},
		{{Port: ptr.To(intstr.FromInt32(81)), EndPort: ptr.To(int32(79))}},
		{{Port: ptr.To(intstr.FromString("http")), EndPort: ptr.To(int32(81))}},
		{{EndPort: ptr.To(int32(81))}},
		{{Protocol: ptr.To(v1.ProtocolSCTP)}},
		{{Port: ptr.To(intstr.FromInt32(70000))}, {Port: ptr.To(intstr.FromInt32(53))}},
	}
	destinations = []Flow{{Protocol: flow.TCP, Port: 80}, {Protocol: flow.TCP, Port: 53}, {Protocol: flow.UDP, Port: 53}, {Protocol: flow.UDP, Port: 80}}
)

// dumb evaluates a flow a second time, straight from the objects and the sentences of their documentation.
func dumb(c Config, f Flow) bool {
	if f.Source.Pod != nil && f.Source.Pod == f.Destination.Pod {
		return true
	}
	return dumbSide(c, f, true) && dumbSide(c, f, false)
}

func dumbSide(c Config, f Flow, egress bool) bool {
	self, peer := f.Destination, f.Source
	if egress {
		self, peer = peer, self
	}
	isolated := false
	for _, p := range c.Policies {
		declared := slices.Contains(p.Spec.PolicyTypes, networkingv1.PolicyTypeIngress) && !egress ||
			slices.Contains(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress) && egress ||
			len(p.Spec.PolicyTypes) == 0 && (!egress || len(p.Spec.Egress) > 0)
		selected, readable := dumbSelects(p.Spec.PodSelector, labelsOf(self))
		onPod := self.Pod != nil && !self.Pod.Spec.HostNetwork && self.Pod.Namespace == p.Namespace && (selected || !readable)
		if !declared || !onPod && !self.Unidentified {
			continue
		}
		isolated = true
		if self.Unidentified || !readable {
			continue
		}
		if egress {
			for _, r := range p.Spec.Egress {
				if dumbPeers(c, r.To, p.Namespace, peer) && dumbPorts(r.Ports, f) {
					return true
				}
			}
		} else {
			for _, r := range p.Spec.Ingress {
				if dumbPeers(c, r.From, p.Namespace, peer) && dumbPorts(r.Ports, f) {
					return true
				}
			}
		}
	}
	return !isolated
}

func labelsOf(e End) map[string]string {
	if e.Pod == nil {
		return nil
	}
	return e.Pod.Labels
}

func dumbPeers(c Config, list []apiPeer, own string, e End) bool {
	if len(list) == 0 {
		return true
	}
	for _, p := range list {
		if p.IPBlock != nil {
			if p.PodSelector == nil && p.NamespaceSelector == nil && !e.Unidentified && dumbBlock(*p.IPBlock, net.IP(e.Address.AsSlice())) {
				return true
			}
			continue
		}
		if e.Pod == nil || e.Pod.Spec.HostNetwork || p.PodSelector == nil && p.NamespaceSelector == nil {
			continue
		}
		namespaceMatches := e.Pod.Namespace == own
		if s := p.NamespaceSelector; s != nil {
			namespaceMatches = len(s.MatchLabels) == 0 && len(s.MatchExpressions) == 0
			for _, n := range c.Namespaces {
				if yes, _ := dumbSelects(*s, n.Labels); n.Name == e.Pod.Namespace && yes {
					namespaceMatches = true
				}
			}
		}
		podMatches := p.PodSelector == nil
		if p.PodSelector != nil {
			podMatches, _ = dumbSelects(*p.PodSelector, e.Pod.Labels)
		}
		if namespaceMatches && podMatches {
			return true
		}
	}
	return false
}

func dumbBlock(b networkingv1.IPBlock, ip net.IP) bool {
	_, block, err := net.ParseCIDR(b.CIDR)
	if err != nil || !block.Contains(ip) {
		return false
	}
	for _, text := range b.Except {
		if _, except, err := net.ParseCIDR(text); err != nil || except.Contains(ip) {
			return false
		}
	}
	return true
}

func dumbPorts(list []apiPort, f Flow) bool {
	if len(list) == 0 {
		return true
	}
	for _, p := range list {
		protocol := "TCP"
		if p.Protocol != nil {
			protocol = string(*p.Protocol)
		}
		switch {
		case protocol != f.Protocol.String():
		case p.Port == nil && p.EndPort == nil:
			return true
		case p.Port == nil:
		case p.Port.Type == intstr.String && p.EndPort == nil && f.Destination.Pod != nil && !f.Destination.Pod.Spec.HostNetwork:
			if p.Port.StrVal == "http" && f.Protocol == flow.TCP && f.Port == 80 || p.Port.StrVal == "dns" && f.Protocol == flow.UDP && f.Port == 53 {
				return true
			}
		case p.Port.Type == intstr.Int && p.EndPort == nil:
			if p.Port.IntVal == int32(f.Port) {
				return true
			}
		case p.Port.Type == intstr.Int:
			if p.Port.IntVal <= int32(f.Port) && int32(f.Port) <= *p.EndPort {
				return true
			}
		}
	}
	return false
}

func dumbSelects(s metav1.LabelSelector, labels map[string]string) (selects, readable bool) {
	selects = true
	for key, value := range s.MatchLabels {
		got, has := labels[key]
		selects = selects && has && got == value
	}
	for _, e := range s.MatchExpressions {
		value, has := labels[e.Key]
		switch e.Operator {
		case metav1.LabelSelectorOpIn:
			selects = selects && has && slices.Contains(e.Values, value)
		case metav1.LabelSelectorOpNotIn:
			selects = selects && !(has && slices.Contains(e.Values, value))
		case metav1.LabelSelectorOpExists:
			selects = selects && has
		case metav1.LabelSelectorOpDoesNotExist:
			selects = selects && !has
		default:
			return false, false
		}
	}
	return selects, true
}
