// Package cri is the client of a container runtime's CRI v1 socket: one method
// a verb, each with a deadline, a label under the caller's hook
// ("cri/RunPodSandbox") and errors whose kind can be asked for. It speaks to the
// socket through a dial function, so the machine may be this one or a far one.
//
// It adds two things to the CRI, from containerd's own services on the same
// socket: Events, which are hints, and the removal of what containerd's CRI has
// lost sight of (RemoveRemnants).
package cri
