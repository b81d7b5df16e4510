// Package shutdown implements the kubelet's graceful node shutdown: it ends a node's pods in order
// before the host goes down. Package order defines the order; this package watches for the shutdown
// and ends the pods. A host is in one of two states:
//
//	watched   A Session holds an inhibitor lock: a shutdown of the host waits for us.
//	          → going, when the host reports that it goes down.
//	going     The node is not Ready and takes no pods. Its pods end, group by group. Then the
//	          API server gets time to receive their statuses, and we release the inhibitor,
//	          which lets the host go down.
//	          → watched, when the host reports that it does not go down: the shutdown was
//	          cancelled, or the host is up again.
//
// The end of a session says nothing about the host: going stays going, and no further pods are
// ended until a new session has asked. The inhibitor ends with its session: if the link dies, the
// host does not wait for us.
package shutdown
