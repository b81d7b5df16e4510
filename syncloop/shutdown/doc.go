// Package shutdown ends a node's pods in order before their machine goes down: the
// kubelet's graceful node shutdown. The order is order's; here it is watched for, and
// carried out.
//
//	watched   a Session holds the machine's inhibitor; whoever shuts the machine down waits
//	          for us. → going, when the machine says that it goes down
//	going     the node is not Ready, takes no pod, and its pods end, group by group; then
//	          the API server is given time to hear of it, and the inhibitor is given back,
//	          with which the machine goes. → watched, when the machine says that it does
//	          not go down (any more): it was called off, or it is up again
//
// A session that ends says nothing of the machine: what is going stays so, and what was
// not told to end yet is not, until a new session has asked. The inhibitor is as long as
// the session: a machine whose link to us dies need not wait for us, and may go.
package shutdown
