package clusterwide

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodeAnnotations is the prefix of the annotations that Nodes keep: Calico's addresses of a node are there.
const NodeAnnotations = "projectcalico.org/"

// lean drops what nodes and lifelines do not read. Many objects consist mostly of annotations and managed
// fields, and of the largest kinds only some fields are read.
func lean(obj any) (any, error) {
	switch o := obj.(type) {
	case *discoveryv1.EndpointSlice:
		return leanSlice(o), nil
	case *v1.Pod:
		return leanPod(o), nil
	case *v1.Node:
		return leanNode(o), nil
	}
	if m, err := meta.Accessor(obj); err == nil {
		m.SetManagedFields(nil)
		m.SetAnnotations(nil)
	}
	return obj, nil
}

// identity is what an informer needs of an object's metadata.
func identity(m metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion,
	}
}

// leanSlice keeps what a proxy reads: of each endpoint the first address, its conditions and its node.
func leanSlice(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	small := &discoveryv1.EndpointSlice{
		ObjectMeta: identity(s.ObjectMeta), AddressType: s.AddressType, Ports: s.Ports,
	}
	small.Labels = map[string]string{}
	for _, key := range []string{discoveryv1.LabelServiceName, v1.IsHeadlessService} {
		if value, has := s.Labels[key]; has {
			small.Labels[key] = value
		}
	}
	small.Endpoints = make([]discoveryv1.Endpoint, len(s.Endpoints))
	for i, e := range s.Endpoints {
		first := e.Addresses[:min(1, len(e.Addresses))]
		small.Endpoints[i] = discoveryv1.Endpoint{Addresses: first, Conditions: e.Conditions, NodeName: e.NodeName}
	}
	return small
}

// leanPod keeps what policies read: labels, addresses, named ports.
func leanPod(p *v1.Pod) *v1.Pod {
	small := &v1.Pod{
		ObjectMeta: identity(p.ObjectMeta),
		Spec:       v1.PodSpec{NodeName: p.Spec.NodeName, HostNetwork: p.Spec.HostNetwork},
		Status:     v1.PodStatus{Phase: p.Status.Phase, PodIP: p.Status.PodIP, PodIPs: p.Status.PodIPs},
	}
	small.Labels = p.Labels
	small.Spec.Containers = namedPorts(p.Spec.Containers)
	small.Spec.InitContainers = namedPorts(p.Spec.InitContainers)
	return small
}

// namedPorts keeps the containers that have a named port, with these ports.
func namedPorts(containers []v1.Container) (kept []v1.Container) {
	for _, c := range containers {
		var ports []v1.ContainerPort
		for _, p := range c.Ports {
			if p.Name != "" {
				p.HostIP, p.HostPort = "", 0
				ports = append(ports, p)
			}
		}
		if len(ports) > 0 {
			kept = append(kept, v1.Container{Ports: ports, RestartPolicy: c.RestartPolicy})
		}
	}
	return kept
}

// leanNode keeps the addresses of a node and of its pods.
func leanNode(n *v1.Node) *v1.Node {
	small := &v1.Node{
		ObjectMeta: identity(n.ObjectMeta),
		Spec:       v1.NodeSpec{PodCIDR: n.Spec.PodCIDR, PodCIDRs: n.Spec.PodCIDRs},
		Status:     v1.NodeStatus{Addresses: n.Status.Addresses},
	}
	for key, value := range n.Annotations {
		if strings.HasPrefix(key, NodeAnnotations) {
			metav1.SetMetaDataAnnotation(&small.ObjectMeta, key, value)
		}
	}
	return small
}
