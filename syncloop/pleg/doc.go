// Package pleg is the Pod Lifecycle Event Generator. It alone writes the Cache of observations:
// each pod's sandboxes and containers in the runtime. Relists are authoritative; an event only triggers
// an earlier look at its pod. Each look takes a sequence number before it sends its first request, so "newer than my
// last change" never depends on a clock.
//
//	events (hints) ───────────┐
//	relist timer ─────────────┼─► look ─► Cache (by UID) ─► TakeChanged
//	Observe (from a worker) ──┘
//
// Files: generator.go (when to look), follow.go (event stream), look.go (how to look), patience.go
// (pods that do not answer), cache.go (the Cache), users.go (user ID ranges, also of pods whose
// look fails), message.go (termination messages), bounds.go (limits on what the runtime reports).
package pleg
