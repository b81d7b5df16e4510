// Package cluster reads the objects of a cluster by which the exits of lifelines decide, once for all hosts of
// this process in that cluster.
//
//	Shared    owns a feed per cluster
//	feed      compiles what has changed into a Snapshot, as long as any host reads it
//	Reader    one host's Snapshot, and the signal that it has changed
//
// The informers are those of provider/clusterwide, so that a host that leaves hands its watches on. They run
// while a lifeline does. Pods and Namespaces are read only once there is a NetworkPolicy: pods are by far the
// most objects, and nothing else needs them.
//
// The client of a Reader needs list and watch of these resources:
//
//	services                            required
//	endpointslices.discovery.k8s.io     required
//	networkpolicies.networking.k8s.io   without it no flow is permitted, unless policies are ignored
//	namespaces, pods                    as networkpolicies, once there is one
//	nodes                               without it the Snapshot has no Nodes
//	servicecidrs.networking.k8s.io      without it the Snapshot has no prefixes of Services
//
// The role of a node (system:node) may list Services, but none of the others as a whole.
package cluster
