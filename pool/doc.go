// Package pool drives many hosts in one process, each by itself: what one host does,
// or fails to do, is nothing to any other. It knows hosts by their names and their
// configurations, and nothing of machines and clusters: what drives a host is given.
//
// # The life of a host
//
//	          Set                its turn, and nobody in its way
//	(unknown) ───▶ Waiting ─────────────────────────────▶ Driven ◀──┐
//	                  ▲                                   │    │    │ after a pause
//	                  │     ended, and it is wanted again │    ▼    │
//	               Ending ◀──── Set: changed, or gone ────┘   Failed
//	                  │
//	                  ▼ ended, and not wanted: forgotten
//
// A host that is Waiting or Failed and not wanted any more is forgotten at once; one
// that is Failed and changed is Waiting again.
//
// # What holds
//
//   - Set is level-triggered: it says what is wanted, all of it. A host that is as it
//     was, field by field, is not touched, whatever becomes of the others.
//   - There are never two drivers of one name, nor of two hosts with one claim (of a
//     machine's endpoint, a node's name, a port: config.Host.Claims): who is to be driven
//     waits for the one before to have ended. So a host may be renamed, and a port pass
//     from one host to another, by one Set.
//   - A driver that ends by itself has failed, whatever it says. It is tried again 5 s
//     later, then ever later up to each minute, each time up to a quarter sooner, by
//     chance, so that many that failed together do not come back together. One that
//     had run for longer than a minute begins with 5 s again.
//   - A driver that ends with an error that Options.Hostile knows, or panics, has its
//     host quarantined: it is tried again a minute later, then after twice the pause
//     before, up to 32 minutes. One that had run for longer than that begins with a
//     minute again; so does one that is changed, which is tried at once. In the drawing
//     Quarantined stands where Failed does. It does not let Run end.
//   - Starts take turns, 20 ms apart, so that hundreds of hosts do not begin in one
//     instant. A turn is a moment and not a place that could be held: a driver that
//     hangs keeps nobody waiting.
//   - Run ends when its context does, or, with Options.EndWhenAllFail, when a host
//     fails and no other one is driven or about to be; not before every driver has
//     ended.
//
// One goroutine, Run's, decides and keeps the state; drivers tell it of their end.
package pool
