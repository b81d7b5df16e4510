// Package hosts makes the hosts of a process of the cluster's Host objects, and says in
// their status what becomes of them.
//
//	translate.go   PURE: a Host object and the process's template become a config.Host
//	judge.go       whether a Host may be driven: its mistakes, other Hosts, the node, the Secret
//	source.go      one Host at a time, level-triggered: judge, finalizer, sink, status
//	share.go       where other processes have some of the Hosts: those are left alone
//	secrets.go     the Secrets that Hosts name, each followed by its name
//	machine.go     the machine that a Host was first driven on: recorded, and compared with
//	report.go      what drivers report; round trips made coarse
//	status.go      PURE: what the status shall be
//	remove.go      a deleted Host, step by step; removal.go decides PURELY which step is next
//
// A Host that is wrong changes nothing: it is told so, and what ran by it before runs on.
package hosts
