// Package pleg is the Pod Lifecycle Event Generator: the only writer of what is
// observed of the runtime. Relists are the truth; the runtime's events only
// bring a look forward. Each look takes a sequence number before its first
// request is sent, so "newer than my last change" never depends on a clock.
//
//	events (hints) ──┐
//	relist timer ────┼─► look ─► Cache (by UID) ─► Changed
//	Observe (a worker's own) ─┘
//
// Files: generator.go (when to look), look.go (how), cache.go (what is kept),
// users.go (ranges of user IDs, also of pods at which a look fails), message.go
// (termination messages).
package pleg
