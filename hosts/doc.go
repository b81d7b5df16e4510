// Package hosts turns the cluster's Host objects into the hosts that this process manages, and
// reports on each of them in its status.
//
//	translate.go   pure: a Host object and the process's template become a config.Host
//	validate.go    whether a Host may be managed: checks its spec, other Hosts, the Node, the Secret
//	source.go      the reconciler, level-triggered, per Host: validate, finalizer, sink, status
//	share.go       skips the Hosts that belong to another replica
//	secrets.go     one informer per Secret that a Host names
//	machine.go     records the machine that a Host was first managed on, and refuses any other
//	report.go      what drivers report; round-trip times are made coarse
//	status.go      pure: computes the status
//	remove.go      removes a deleted Host step by step; removal.go picks the next step, and is pure
//
// An invalid Host changes nothing: its status gives the reason, and what already runs continues.
package hosts
