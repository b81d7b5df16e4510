package policy

import (
	"cmp"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/bowline-k8s/bowline/lifeline/flow"
)

// Config has the objects of a cluster that decide about flows. They are kept, and must not be modified.
type Config struct {
	Policies   []*networkingv1.NetworkPolicy
	Namespaces []*v1.Namespace
	Pods       []*v1.Pod
}

// Policies are NetworkPolicies that are compiled for Evaluate. It is immutable.
type Policies struct {
	byNamespace map[string][]*policy     // sorted by name
	isolating   map[Direction]*policy    // any one that isolates
	namespaces  map[string]labels.Set    // their labels
	byAddress   map[netip.Addr][]*v1.Pod // those that have not ended
}

// Direction is the direction of a flow, as its pod sees it.
type Direction networkingv1.PolicyType

const (
	Egress  = Direction(networkingv1.PolicyTypeEgress)
	Ingress = Direction(networkingv1.PolicyTypeIngress)
)

// policy is a NetworkPolicy.
type policy struct {
	name    types.NamespacedName
	selects labels.Selector
	rules   map[Direction][]rule // a pod is isolated in a direction that has an entry, even an empty one
}

// rule permits what one of its peers and one of its ports match.
type rule struct {
	anyPeer, anyPort bool
	peers            []peer
	ports            []port
}

// peer is a block of addresses, or it selects pods.
type peer struct {
	block      netip.Prefix
	except     []netip.Prefix
	namespaces labels.Selector // nil: the policy's own namespace
	pods       labels.Selector // nil: it is a block
}

// port is a range of ports, or a named port of the destination.
type port struct {
	protocol    flow.Protocol
	name        string
	first, last uint16
}

// New compiles the objects of a cluster.
func New(c Config) *Policies {
	p := &Policies{
		byNamespace: map[string][]*policy{}, isolating: map[Direction]*policy{},
		namespaces: make(map[string]labels.Set, len(c.Namespaces)),
		byAddress:  make(map[netip.Addr][]*v1.Pod, len(c.Pods)),
	}
	byName := func(a, b *networkingv1.NetworkPolicy) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	}
	for _, object := range slices.SortedFunc(slices.Values(c.Policies), byName) {
		one := compile(object)
		p.byNamespace[object.Namespace] = append(p.byNamespace[object.Namespace], one)
		for d := range one.rules {
			if p.isolating[d] == nil {
				p.isolating[d] = one
			}
		}
	}
	for _, n := range c.Namespaces {
		p.namespaces[n.Name] = n.Labels
	}
	for _, pod := range c.Pods {
		for _, a := range addressesOf(pod) {
			p.byAddress[a] = append(p.byAddress[a], pod)
		}
	}
	return p
}

// addressesOf returns the addresses of a pod that has not ended. The network may have given those of one that
// has ended to another pod.
func addressesOf(pod *v1.Pod) (all []netip.Addr) {
	if pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed {
		return nil
	}
	for _, ip := range append([]v1.PodIP{{IP: pod.Status.PodIP}}, pod.Status.PodIPs...) {
		if a, err := netip.ParseAddr(ip.IP); err == nil && !slices.Contains(all, a.Unmap()) {
			all = append(all, a.Unmap())
		}
	}
	return all
}

// compile reads a NetworkPolicy. One with a selector that cannot be read isolates all pods of its namespace,
// and permits nothing.
func compile(object *networkingv1.NetworkPolicy) *policy {
	name := types.NamespacedName{Namespace: object.Namespace, Name: object.Name}
	p := &policy{name: name, rules: map[Direction][]rule{}}
	var readable bool
	if p.selects, readable = selectorOf(&object.Spec.PodSelector); !readable {
		p.selects = labels.Everything()
	}
	kinds := object.Spec.PolicyTypes
	if len(kinds) == 0 {
		kinds = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		if len(object.Spec.Egress) > 0 {
			kinds = append(kinds, networkingv1.PolicyTypeEgress)
		}
	}
	for _, kind := range kinds {
		var rules []rule
		switch {
		case !readable:
		case Direction(kind) == Egress:
			for _, r := range object.Spec.Egress {
				rules = append(rules, ruleOf(r.To, r.Ports))
			}
		case Direction(kind) == Ingress:
			for _, r := range object.Spec.Ingress {
				rules = append(rules, ruleOf(r.From, r.Ports))
			}
		}
		p.rules[Direction(kind)] = rules
	}
	return p
}

func ruleOf(peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) rule {
	r := rule{anyPeer: len(peers) == 0, anyPort: len(ports) == 0}
	for _, object := range peers {
		if p, ok := peerOf(object); ok {
			r.peers = append(r.peers, p)
		}
	}
	for _, object := range ports {
		if p, ok := portOf(object); ok {
			r.ports = append(r.ports, p)
		}
	}
	return r
}

// peerOf returns false for a peer that matches nothing.
func peerOf(object networkingv1.NetworkPolicyPeer) (p peer, ok bool) {
	if object.IPBlock != nil {
		return blockOf(object)
	}
	if object.NamespaceSelector != nil {
		if p.namespaces, ok = selectorOf(object.NamespaceSelector); !ok {
			return peer{}, false
		}
		p.pods = labels.Everything()
	}
	if object.PodSelector != nil {
		if p.pods, ok = selectorOf(object.PodSelector); !ok {
			return peer{}, false
		}
	}
	return p, p.pods != nil
}

func blockOf(object networkingv1.NetworkPolicyPeer) (p peer, ok bool) {
	if object.NamespaceSelector != nil || object.PodSelector != nil {
		return peer{}, false
	}
	if p.block, ok = prefixOf(object.IPBlock.CIDR); !ok {
		return peer{}, false
	}
	for _, text := range object.IPBlock.Except {
		except, ok := prefixOf(text)
		if !ok {
			return peer{}, false
		}
		p.except = append(p.except, except)
	}
	return p, true
}

func prefixOf(text string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(text)
	if err == nil && p.Addr().Is4In6() {
		p, err = p.Addr().Unmap().Prefix(p.Bits() - 96) // an error if it is wider than all IPv4 addresses
	}
	return p, err == nil
}

func portOf(object networkingv1.NetworkPolicyPort) (p port, ok bool) {
	switch ptr.Deref(object.Protocol, v1.ProtocolTCP) {
	case v1.ProtocolTCP:
		p.protocol = flow.TCP
	case v1.ProtocolUDP:
		p.protocol = flow.UDP
	default: // a lifeline carries no other
		return port{}, false
	}
	switch {
	case object.Port == nil:
		p.first, p.last = 0, 65535
		return p, object.EndPort == nil
	case object.Port.Type == intstr.String:
		p.name = object.Port.StrVal
		return p, p.name != "" && object.EndPort == nil
	}
	first, last := object.Port.IntVal, ptr.Deref(object.EndPort, object.Port.IntVal)
	if first < 1 || last < first || last > 65535 {
		return port{}, false
	}
	p.first, p.last = uint16(first), uint16(last)
	return p, true
}

func selectorOf(object *metav1.LabelSelector) (labels.Selector, bool) {
	s, err := metav1.LabelSelectorAsSelector(object)
	return s, err == nil
}
