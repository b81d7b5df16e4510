// Package replica shares hosts out among the replicas of Bowline, by Leases in its own
// namespace. Which replica is to have which host decides hosts/shard, purely; here it is
// seen who lives, and hosts are taken and given away.
//
//	replica.go  one loop, from the start to the end
//	step.go     its step: look at the Leases, decide, take, give
//	view.go     what the Leases say, and for how long they have said it
//	pulse.go    this replica's own Lease, renewed
//	hand.go     the Leases of hosts, written on moves alone
//	leave.go    the end: hosts are given away one by one
//
// # The Leases
//
//	bowline-replica-NAME  a replica; it lives while this changes, each 4 s
//	bowline-host-NAME     whose a host is (spec.holderIdentity)
//
// A replica is dead when its Lease was not seen to change for 10 s by this machine's
// own clock: clocks of two machines are never compared. What is seen is only believed
// while this replica's own renewals are seen in the same way, as it may be the API
// server that is away: time in which they are late does not count against the others;
// when they were not seen for 6 s this replica takes no hosts, nor gives any away, and
// afterwards all others have their 10 s anew.
//
// # The life of a host, at one replica
//
//	        its Lease names us, and we are heard
//	(not ours) ─────────────────────────────▶ Held ◀──┐
//	     ▲  ▲      its Lease names another     │  │    │ nobody is to have it any more,
//	     │  └──────────────────────────────────┘  ▼    │ or we are not heard
//	     └────────────────────────────────────── Given ┘
//	       its driver has ended, and we wrote who has it
//
// # What a Lease cannot do
//
// A replica that does not hear of its host's being another's, as it was paused or cut
// off, goes on driving it: stale is never dead. So for a while two may believe that they
// have a host. It is the machine's own lock that lets one of them drive it: the other
// one waits for it, and what the one before sends by a connection that lost the lock
// never arrives (cmd/bowline/holding.go, fence.go).
package replica
