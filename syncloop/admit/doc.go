// Package admit decides admission: whether a pod may run on this node, before anything of it is
// started. Pod checks the policy of the host's owner, no matter who created the pod. OnNode makes a
// kubelet's checks, against the node and the pods that it has admitted. FitsResized and Victims
// decide on resizes. The package is pure: a result depends only on the pod, the policy and the node.
//
// A policy must not leave another way to the power that it forbids; docs/identity.md lists what each
// field refuses. What a plain container has anyway is allowed: running as root, setuid programs,
// seccomp Unconfined, which a pod without a profile gets, and profiles of type Localhost, which are
// files that the owner put on the host. Read-only hostPath volumes are refused too, because
// /etc/shadow and the runtime's socket are readable; and probes and hooks with a host of their own,
// because the host sends them, to its own loopback and its owner's network.
//
// An ephemeral container is added to a running pod, and the pod is not ended because of it.
// Ephemeral checks each one by itself; Pod ignores them, so it makes no difference whether one was
// added before the node saw the pod.
package admit
