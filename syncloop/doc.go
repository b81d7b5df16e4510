// Package syncloop is the sync loop of one node. One loop receives every change and passes it to
// the pod's worker; there is one worker per pod UID, and it decides and acts.
//
//	sources ─► podconfig ─┐
//	runtime ─► pleg ──────┼─► Loop.Run ─► worker (one per UID) ─► plan.Decide ─► job.run
//	probes ─► prober ─────┘                    ▲                                  │
//	                                           └── outcome, fresh observation ────┘
//
// handlers.go receives changes and turns them into mail for the workers, inbox.go delivers it,
// worker.go is the pod worker, package allocation admits pods and keeps their allocations,
// admission.go asks it and applies its answers, execute*.go carry out operations, report.go generates
// the pod status, why.go explains what a worker does.
package syncloop
