// Package clusterwide reads what is the same for every node of a cluster, such as Services and
// RuntimeClasses, once for all nodes of this process in that cluster. What only lifelines need, is read
// while one runs.
//
//	Services, RuntimeClasses  one node's reader; empty before Run has joined its cluster
//	Objects                   the same for a lifeline, which learns of changes
//	Shared                    owns a view per kind of object and cluster
//	view                      one informer, as long as any node reads through it
//	sources                   the clients of these nodes; the first one is used
//
// A node joins once its own client has shown that the node may read the kind. So a node that may not
// is never synced, whatever the others may. From then on any node's client reads for all. If it
// fails, or its node leaves, the next client continues the watch where it was, without a new list.
//
// Nodes share only objects of one API server with the same trust (Cluster). What an API server says
// about itself is not enough, because another one could say the same.
package clusterwide
