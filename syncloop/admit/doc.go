// Package admit judges a pod before anything of it is started: by the policy of the
// machine's owner (Pod), as what the owner of a lent machine does not allow is not
// started there, whoever asks for it in the cluster; and as a kubelet does, by the node
// and by the pods that it has taken (OnNode). It is pure: a judgement is a function of
// the pod, the policy and the node.
//
// # What privileged covers
//
// A policy that forbids `privileged: true` and allows another way to the same power
// is a hole, so NoPrivileged refuses, in every container:
//
//   - securityContext.privileged, and hostProcess, which is Windows' word for it;
//   - capabilities beyond the ones that a runtime gives to every container: SYS_ADMIN
//     mounts, SYS_PTRACE reads other processes, SYS_MODULE and SYS_RAWIO are the
//     kernel, and so on; one that is not known here is refused as well, and so is ALL;
//   - procMount: Unmasked, which makes /proc/sys and /proc/sysrq-trigger writable;
//   - what takes away the confinement that a runtime sets by itself: an AppArmor
//     profile Unconfined (by its old annotation as well), and SELinux users, roles and
//     types other than those of plain containers, as spc_t is not confined at all;
//
// and in the pod:
//
//   - hostPID: root in a container may kill every process of the machine and look
//     into many of them;
//   - hostIPC: the shared memory and queues of the machine's own processes.
//
// It leaves alone what a plain container has anyway: running as root, setuid programs,
// and seccomp Unconfined, which is what a pod has that asks for nothing. A seccomp or
// AppArmor profile of type Localhost is a file that the owner put there. Sysctls are
// those of the pod's own namespaces; the runtime refuses every other.
//
// # What hostPath, hostNetwork and NFS cover
//
// NoHostPath refuses volumes of type hostPath, read-only ones too: /etc/shadow and the
// runtime's socket can be read. It refuses persistent volumes of types hostPath and
// local as well (Volume), as soon as the claim's volume is known: they name a path of
// the machine too. NoHostNetwork refuses hostNetwork, hostPorts, which take ports of
// the machine's addresses from its owner, and probes and hooks with a host of their
// own: the machine sends these, to its own loopback and to its owner's network. NoNFS
// refuses volumes of type nfs, of the pod and of persistent volumes (Volume): the machine
// itself mounts them as root, from whatever server of its networks they name.
//
// # Ephemeral containers
//
// They come to a pod that runs already, which is not ended for them: Ephemeral judges
// each by itself, and one that is refused is never started. So they do not count in
// Pod, and it makes no difference whether one was added before the node saw the pod.
package admit
