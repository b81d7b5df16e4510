// Package clusterwide reads what is the same for every node of a cluster, Services and
// RuntimeClasses, once for all nodes of the process that are in it.
//
//	Services, RuntimeClasses  what one node reads by; empty before Run has joined its cluster
//	Shared                    owns a view of each kind of object in each cluster
//	view                      one informer, while any node reads by it
//	sources                   the clients of these nodes, of which the first is used
//
// A node joins when its own client has shown that the node may read the kind: a node that
// may not has never synced, whatever others may. From then on any node's client reads for
// all. One that fails, or whose node leaves, gives way to the next, which goes on with the
// watch from where it was: nothing is listed again.
//
// Nodes share only what comes from one API server by one trust (Cluster). What an API
// server says of itself is not enough: another could say the same.
package clusterwide
