// Package fake is a well-behaved container runtime for tests. It serves CRI v1 and containerd's
// events service over a real unix socket, with sandboxes and containers that have states, names,
// addresses and log files, a registry, streaming, and injected faults. Its containers are
// goroutines. cri/critest is the suite that it shares with real runtimes.
package fake
