// Package admit decides admission: whether a pod may run on this node, before anything of it is
// started. Pod checks the policy of the host's owner, no matter who created the pod. OnNode makes a
// kubelet's checks, against the node and the pods that it has admitted. The package is pure: a
// result depends only on the pod, the policy and the node.
//
// # What NoPrivileged covers
//
// A policy that forbids `privileged: true` but allows another way to the same power would be a
// hole. So NoPrivileged refuses, in every container:
//
//   - securityContext.privileged, and hostProcess, its counterpart on Windows;
//   - capabilities beyond those that a runtime gives to every container: SYS_ADMIN mounts,
//     SYS_PTRACE reads other processes, SYS_MODULE and SYS_RAWIO control the kernel, and so on.
//     Unknown capabilities and ALL are refused as well;
//   - procMount: Unmasked, which makes /proc/sys and /proc/sysrq-trigger writable;
//   - removing the confinement that a runtime sets by default: the AppArmor profile Unconfined
//     (also by its old annotation), and SELinux users, roles and types other than those of plain
//     containers, as spc_t is not confined at all;
//
// and in the pod:
//
//   - hostPID: root in a container may kill every process of the host and inspect many of them;
//   - hostIPC: the shared memory and queues of the host's own processes.
//
// It allows what a plain container has anyway: running as root, setuid programs, and seccomp
// Unconfined, which is what a pod without a seccomp profile gets. A seccomp or AppArmor profile of
// type Localhost is a file that the owner put on the host. Sysctls are limited to the pod's own
// namespaces; the runtime refuses every other one.
//
// # What NoHostPath, NoHostNetwork and NoNFS cover
//
// NoHostPath refuses hostPath volumes, read-only ones too, because /etc/shadow and the runtime's
// socket are readable. It also refuses persistent volumes of types hostPath and local (Volume), as
// soon as the claim's volume is known, because they name a path of the host too.
//
// NoHostNetwork refuses hostNetwork; hostPorts, which take ports of the host's addresses from its
// owner; and probes and hooks with a host of their own, because the host sends these, to its own
// loopback and to its owner's network.
//
// NoNFS refuses nfs volumes, of the pod and of persistent volumes (Volume): the host itself mounts
// them as root, from any server that they name.
//
// # Ephemeral containers
//
// An ephemeral container is added to a running pod, and the pod is not ended because of it.
// Ephemeral judges each one by itself, and a refused one is never started. Pod ignores them, so it
// makes no difference whether one was added before the node saw the pod.
package admit
