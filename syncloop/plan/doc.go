// Package plan decides what a pod worker does next, and nothing else: Decide is
// a pure function from what is wanted, observed, remembered and under way to a
// list of operations, a new memory and a time to look again. Record turns the
// end of an operation into memory. The caller acts, observes, and asks again.
//
//	wanted (Pod, Terminate)   observed (pleg)   remembered (Ledger)
//	                \               |               /
//	                 `────────► Decide ◄───────────'
//	                               │
//	 Start, Cancel ◄───────────────┼──────────────► WakeAt, Reason
//	       │                       │
//	   executor ──Outcome──► Record ──► Ledger
//
// The decision reads from top to bottom in decide.go; each concern has a file:
//
//	phase.go      the one place where the phase moves
//	deadline.go   why a pod ends by itself: deadline, finished, failed
//	repair.go     what must not run now is stopped
//	restart.go    restart policies and rules
//	restartall.go the rule that restarts every container
//	resize.go     another size: in place, or by a restart
//	sandbox.go    one ready sandbox, volumes beside it
//	init.go       init containers in order, sidecars kept up
//	main.go       main and ephemeral containers
//	launch.go     one container's way up: back-off, pull, turn, start, hook
//	backoff.go    how long to wait, with the past of a container as evidence
//	terminate.go  Terminating: stop everything in order, within the grace
//	terminated.go Terminated: sandboxes, volumes, remains
//	ledger.go     copy-on-write memory, and what is forgotten
//	record.go     outcomes into memory
//
// Three rules hold everywhere. An observation that is stale, or older than the
// worker's own last mutation, decides nothing. An operation that is under way is
// neither repeated nor waited behind, except where order is the point. Nothing
// is remembered that can be derived from the runtime, so that a new process with
// an empty Ledger decides the same, or more cautiously.
//
// What the caller owes:
//
//   - It keeps Plan.Phase, Plan.Terminate and Plan.Ledger and hands them back; it
//     merges a new request into the one in force with Merge.
//   - It cancels the keys in Plan.Cancel before it begins Plan.Start. A cancelled
//     operation stays in InFlight until it has returned; cancelling it again is
//     harmless, and happens.
//   - When an operation returns it takes it out of InFlight, passes its Outcome to
//     Record, and, if its kind Mutates, sets NeedSeq to a sequence number taken
//     then, whatever the outcome: no observation begun earlier counts.
//   - An outcome that was cancelled, timed out or cut off is Transport, not Err.
//   - After any phase but Gone it asks again at WakeAt, on a new observation, a
//     verdict, an outcome, a change of the pod, of Hold or of Reported.
package plan
