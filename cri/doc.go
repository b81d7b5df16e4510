// Package cri is the client of a container runtime's CRI v1 socket: one method
// a verb, each with a deadline, a label under the caller's hook
// ("cri/RunPodSandbox") and errors whose kind can be asked for. It speaks to the
// socket through a dial function, so the machine may be this one or a far one.
//
// The one thing that it adds to the CRI is Events: hints from containerd's own
// events service on the same socket.
package cri
