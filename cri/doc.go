// Package cri is the client of a container runtime's CRI v1 socket. It has one method per verb.
// Each call has a deadline, runs under the caller's hook with a label ("cri/RunPodSandbox"), and
// returns errors with a kind. The client reaches the socket through a dial function, so the host
// may be local or remote.
//
// It adds two things to the CRI, from containerd's own services on the same socket: Events, which
// are only hints, and RemoveLeaked, which removes what containerd's CRI has lost track of. Containerd
// returns the connection for other services, such as those that store images.
package cri
