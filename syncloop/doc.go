// Package syncloop is the heart: one loop that hears of everything, one worker a
// pod that decides and acts.
//
//	sources ─► config ─┐
//	runtime ─► pleg ───┼─► Loop.Run ─► worker (one a UID) ─► plan.Decide ─► job.run
//	probes ─► prober ──┘                    ▲                                │
//	                                        └── outcome, fresh observation ──┘
//
// loop.go hears, handlers.go turns what it heard into workers' mail, worker.go
// is the per-pod loop, execute*.go carry operations out, report.go makes the
// status, why.go answers questions.
package syncloop
