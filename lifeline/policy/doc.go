// Package policy evaluates NetworkPolicies (networking.k8s.io/v1) for the flows of a lifeline. To the CNI plugin
// of the cluster, all of them come from the pod of Bowline, so it cannot evaluate them itself.
//
//	Policies  the NetworkPolicies, namespaces and pods of a cluster
//	At        the pod that an address belongs to: an End
//	Evaluate  whether a flow between two ends is permitted
//
// A flow needs the permission of the source's policies for egress and of the destination's for ingress. The
// destination of a flow to a Service is the endpoint, as after kube-proxy. What is not known is refused: a pod
// that At cannot identify is isolated as soon as any policy could isolate it, and a selector, a CIDR or a port
// that cannot be read permits nothing.
//
// The package is pure: what it decides depends on its arguments alone. Policies is immutable, so that all
// hosts of a cluster share it.
package policy
