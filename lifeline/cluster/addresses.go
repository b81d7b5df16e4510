package cluster

import (
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// Node is what a lifeline knows of a Node.
type Node struct {
	Name string
	// Addresses are those of the node, also the ones that it has on the network of its pods; sorted.
	Addresses []netip.Addr
	// Pods are its podCIDRs. A CNI plugin that manages addresses itself need not use them.
	Pods []netip.Prefix
}

// nodeOf reads the addresses of a Node. Most CNI plugins give a node the first address of its podCIDR, and some
// also the address of the network, so that both lead to its kubelet. Calico gives them to pods, and has the
// addresses of the node in annotations.
func nodeOf(n *v1.Node) Node {
	node := Node{Name: n.Name}
	for _, a := range n.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil { // a name otherwise
			node.Addresses = append(node.Addresses, ip.Unmap())
		}
	}
	cidrs := n.Spec.PodCIDRs
	if len(cidrs) == 0 && n.Spec.PodCIDR != "" {
		cidrs = []string{n.Spec.PodCIDR}
	}
	for _, text := range cidrs {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			continue
		}
		p = p.Masked()
		node.Pods = append(node.Pods, p)
		if len(n.Annotations) == 0 { // provider/clusterwide keeps those of Calico only
			node.Addresses = append(node.Addresses, p.Addr(), p.Addr().Next())
		}
	}
	for _, text := range n.Annotations {
		if p, err := netip.ParsePrefix(text); err == nil {
			node.Addresses = append(node.Addresses, p.Addr().Unmap())
		} else if a, err := netip.ParseAddr(text); err == nil {
			node.Addresses = append(node.Addresses, a.Unmap())
		}
	}
	slices.SortFunc(node.Addresses, netip.Addr.Compare)
	node.Addresses = slices.Compact(node.Addresses)
	return node
}

// servicePrefixes returns the prefixes of ServiceCIDRs, also of those that are being deleted: their addresses
// are still in use.
func servicePrefixes(cidrs []*networkingv1.ServiceCIDR) []netip.Prefix {
	all := []netip.Prefix{}
	for _, c := range cidrs {
		for _, text := range c.Spec.CIDRs {
			if p, err := netip.ParsePrefix(text); err == nil {
				all = append(all, p.Masked())
			}
		}
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	return slices.Compact(all)
}
