package policy

import (
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/lifeline/flow"
)

// End is one end of a flow: a pod, or an address outside of all pods.
type End struct {
	Address netip.Addr
	// Pod is nil for an address outside of all pods. A pod in its host's network counts as the address.
	Pod *v1.Pod
	// Unidentified: the address is of a pod, and it is not known of which one.
	Unidentified bool
}

// Flow is what Evaluate decides about. Port is the port of the destination, behind any Service.
type Flow struct {
	Source, Destination End
	Protocol            flow.Protocol
	Port                uint16
}

// Verdict says whether a flow is permitted. If not, By are the policies that isolate the end of this direction,
// of which none permits the flow. For an unidentified pod it is one that could.
type Verdict struct {
	Allowed   bool
	Direction Direction
	By        []types.NamespacedName
}

// At returns the end with an address, on the node with this name; empty: on any node, or on none. isPod says
// that the address can only be one of a pod: then, if no pod is known to have it, the end is unidentified.
// So it is if several pods have it, because each remote host chooses the addresses of its pods by itself.
func (p *Policies) At(a netip.Addr, node string, isPod bool) End {
	a = a.Unmap()
	var pods []*v1.Pod
	host := false
	if p != nil {
		for _, pod := range p.byAddress[a] {
			switch {
			case node != "" && pod.Spec.NodeName != node:
			case pod.Spec.HostNetwork:
				host = true
			default:
				pods = append(pods, pod)
			}
		}
	}
	switch {
	case len(pods) == 1 && !host:
		return End{Address: a, Pod: pods[0]}
	case len(pods) > 0, isPod && !host:
		return End{Address: a, Unidentified: true}
	}
	return End{Address: a}
}

// Evaluate decides about a flow. Without Policies, it permits none.
func (p *Policies) Evaluate(f Flow) Verdict {
	if p == nil {
		return Verdict{Direction: Egress}
	}
	from, to := f.Source.Pod, f.Destination.Pod
	if from != nil && to != nil && from.Namespace == to.Namespace && from.Name == to.Name {
		return Verdict{Allowed: true} // a pod cannot be isolated from itself
	}
	f.Source, f.Destination = f.Source.plain(), f.Destination.plain()
	if v := p.evaluate(Egress, f.Source, f.Destination, f); !v.Allowed {
		return v
	}
	return p.evaluate(Ingress, f.Destination, f.Source, f)
}

// plain returns the end as selectors see it: they do not select pods in their host's network.
func (e End) plain() End {
	e.Address = e.Address.Unmap()
	if e.Pod != nil && e.Pod.Spec.HostNetwork {
		e.Pod = nil
	}
	return e
}

// evaluate asks the policies of one end, for the other one.
func (p *Policies) evaluate(d Direction, of, other End, f Flow) Verdict {
	switch {
	case of.Unidentified && p.isolating[d] != nil:
		return Verdict{Direction: d, By: []types.NamespacedName{p.isolating[d].name}}
	case of.Unidentified, of.Pod == nil:
		return Verdict{Allowed: true}
	}
	var by []types.NamespacedName
	for _, one := range p.byNamespace[of.Pod.Namespace] {
		rules, isolates := one.rules[d]
		if !isolates || !one.selects.Matches(labels.Set(of.Pod.Labels)) {
			continue
		}
		for _, r := range rules {
			if p.permits(r, one.name.Namespace, other, f) {
				return Verdict{Allowed: true}
			}
		}
		by = append(by, one.name)
	}
	return Verdict{Allowed: len(by) == 0, Direction: d, By: by}
}

// permits reports whether a rule of a policy in a namespace permits the flow, whose other end this is.
func (p *Policies) permits(r rule, namespace string, other End, f Flow) bool {
	return (r.anyPort || slices.ContainsFunc(r.ports, func(port port) bool { return port.matches(f) })) &&
		(r.anyPeer || slices.ContainsFunc(r.peers, func(peer peer) bool { return p.matches(peer, namespace, other) }))
}

// matches reports whether a peer of a policy in a namespace is an end. A block matches pods too, by their
// addresses, but not one that is unidentified: another host may use the same addresses.
func (p *Policies) matches(peer peer, namespace string, e End) bool {
	switch {
	case e.Unidentified:
		return false
	case peer.pods == nil:
		in := func(prefix netip.Prefix) bool { return prefix.Contains(e.Address) }
		return in(peer.block) && !slices.ContainsFunc(peer.except, in)
	case e.Pod == nil || !p.namespaceMatches(peer.namespaces, namespace, e.Pod.Namespace):
		return false
	}
	return peer.pods.Matches(labels.Set(e.Pod.Labels))
}

// namespaceMatches reports whether a selector selects a namespace; nil selects the policy's own. One that is not
// known is only selected with all, because its labels could deny it.
func (p *Policies) namespaceMatches(selector labels.Selector, own, name string) bool {
	if selector == nil {
		return name == own
	}
	set, known := p.namespaces[name]
	return selector.Empty() || known && selector.Matches(set)
}

// matches reports whether the flow goes to the port.
func (p port) matches(f Flow) bool {
	switch {
	case p.protocol != f.Protocol:
		return false
	case p.name == "":
		return p.first <= f.Port && f.Port <= p.last
	case f.Destination.Pod == nil:
		return false
	}
	spec := f.Destination.Pod.Spec
	for _, c := range slices.Concat(spec.Containers, sidecars(spec.InitContainers)) {
		for _, named := range c.Ports {
			if named.Name == p.name && int32(f.Port) == named.ContainerPort && protocolOf(named.Protocol) == p.protocol {
				return true
			}
		}
	}
	return false
}

// sidecars are the init containers that run beside the others.
func sidecars(all []v1.Container) []v1.Container {
	return slices.DeleteFunc(slices.Clone(all), func(c v1.Container) bool {
		return c.RestartPolicy == nil || *c.RestartPolicy != v1.ContainerRestartPolicyAlways
	})
}

func protocolOf(p v1.Protocol) flow.Protocol {
	switch p {
	case v1.ProtocolTCP, "":
		return flow.TCP
	case v1.ProtocolUDP:
		return flow.UDP
	}
	return 0
}
