// Package fake is a container runtime that behaves: CRI v1 and containerd's
// events service over a real unix socket, sandboxes and containers with their
// states, names, addresses and log files, a registry, streaming, and faults on
// demand. Its containers are goroutines. cri/critest is the suite that it
// shares with real runtimes.
package fake
