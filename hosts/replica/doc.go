// Package replica shares the hosts among the replicas of Bowline, by Leases in Bowline's own
// namespace. The pure package hosts/shard decides which replica gets which host; this package
// observes which replicas live, and takes and gives hosts.
//
//	replica.go  one loop, from the start to the end
//	step.go     a step of the loop: read the Leases, decide, take, give
//	view.go     what the Leases say, and for how long they have said it
//	pulse.go    renews this replica's own Lease
//	hand.go     writes the Leases of hosts, only when a host moves
//	leave.go    the end: the hosts are given away one by one
//
// # The Leases
//
//	bowline-replica-NAME  a replica; it lives while this changes, each 4 s
//	bowline-host-NAME     which replica holds a host (spec.holderIdentity)
//
// A replica is dead when its Lease has not been seen to change for 10 s by the local clock; clocks
// of two machines are never compared. A replica trusts what it sees only while it also sees its
// own renewals, because otherwise the API server may be the one that is down:
//
//   - Time by which its own renewals are late does not count against the others.
//   - If it has not seen them for 6 s, it neither takes nor gives hosts. When they are back, all
//     other replicas get their 10 s again.
//
// # The states of a host, at one replica
//
//	        its Lease names us, and we are heard
//	(not ours) ─────────────────────────────▶ Held ◀──┐
//	     ▲  ▲      its Lease names another     │  │    │ no other replica is to take it now,
//	     │  └──────────────────────────────────┘  ▼    │ or we are not heard
//	     └────────────────────────────────────── Given ┘
//	       its driver has stopped, and we wrote the new holder
//
// # What a Lease cannot do
//
// A replica that is paused or cut off does not learn that a host has moved to another replica, and
// continues to manage it: a stale view is no sign of death. So for a while two replicas may believe
// that they hold a host. The lock on the machine decides which of them manages it. The other one
// waits for the lock, and what the former holder sends over a connection that has lost the lock
// never arrives (ownership/holder.go, ownership/fence.go).
package replica
