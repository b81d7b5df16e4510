// Package plan decides what a pod worker does next. The package is pure: from the desired state, the
// observation, the ledger and the operations in flight, Decide makes a list of operations, a new
// ledger and a time to decide again. Record updates the ledger when an operation ends. The caller
// executes the operations, observes, and calls Decide again.
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
//	phase.go      the only place where the phase changes
//	deadline.go   why a pod ends by itself: deadline, finished, failed
//	repair.go     stops what must not run now
//	restart.go    restart policies and rules
//	restartall.go the rule RestartAllContainers
//	resize.go     a new size: in place, or by a restart
//	redefined.go  whether a container runs another image than its spec names
//	sandbox.go    one ready sandbox, and the volumes
//	init.go       init containers in order, sidecars kept running
//	main.go       main and ephemeral containers
//	launch.go     the steps to a running container: back-off, pull, turn, start, hook
//	backoff.go    how long to wait, derived from the container's history
//	terminate.go  Terminating: stop everything in order, within the grace period
//	terminated.go Terminated: sandboxes, volumes, remains
//	stopcause.go  why a container is stopped
//	ledger.go     the copy-on-write ledger, and when it drops records
//	record.go     outcomes into the ledger
//	view.go       look-ups in the observation and the spec
//
// Three rules always hold:
//
//   - An observation that is stale, or older than the worker's own last mutation, decides nothing.
//   - An operation in flight is not repeated. Nothing waits for it unless order requires that.
//   - The ledger holds nothing that can be derived from the runtime, so a new process with an empty
//     Ledger decides the same, or more cautiously.
//
// What the caller must do:
//
//   - Keep Plan.Phase, Plan.Terminate and Plan.Ledger and pass them to the next call; merge a new
//     request into the one in force with Merge.
//   - Cancel the keys in Plan.Cancel before it begins Plan.Start. A cancelled operation stays in
//     InFlight until it has returned. A key may be cancelled repeatedly; that is harmless.
//   - When an operation returns, take it out of InFlight, pass its Outcome to Record, and, if its
//     kind Mutates, set NeedSeq to a sequence number taken then, whatever the outcome: no
//     observation that began earlier counts.
//   - Report an operation that was cancelled, timed out or cut off with Outcome.Transport.
//   - In every phase but Gone, call Decide again at WakeAt and on a new observation, a verdict, an
//     outcome, and a change of the pod, of Hold or of Reported.
package plan
