// Package pool manages many hosts in one process, independently of each other: what one host does or
// fails to do does not affect another. It knows hosts only by name and configuration; the
// function that it is given does the work.
//
// # The phases of a host
//
//	          Set               its turn, and no claim in its way
//	(unknown) ───▶ Waiting ─────────────────────────────▶ Managed ◀──┐
//	                  ▲                                   │    │    │ after a pause
//	                  │     ended, and it is wanted again │    ▼    │
//	               Ending ◀──── Set: changed, or gone ────┘   Failed
//	                  │
//	                  ▼ ended, and not wanted: forgotten
//
// A Waiting or Failed host that is not wanted any more is forgotten at once. A Failed host that is
// changed is Waiting again.
//
// # Invariants
//
//   - Set is level-triggered: it passes all wanted hosts. A host with an unchanged configuration,
//     compared field by field, is not touched, whatever happens to the others.
//   - There are never two drivers of one name, nor of two hosts with the same claim (a machine's
//     endpoint, a node's name, a port: config.Host.Claims). The next driver waits until the one
//     before has ended. So one Set may rename a host, or pass a port from one host to another.
//   - A driver that ends by itself has failed, whatever it returns. The back-off is 5 s, doubled up
//     to a minute, each pause shortened by a random part of up to a quarter, so that hosts that
//     failed together do not return together. A run of more than a minute resets it to 5 s.
//   - A driver that panics, or returns an error that Options.Hostile recognizes, has its host
//     quarantined: the pause is a minute, doubled up to 32 minutes. A run of more than 32 minutes
//     resets it to a minute; so does a change of the host, which is then tried at once. In the
//     drawing, Quarantined has the place of Failed. It never ends Run.
//   - Starts are spaced 20 ms apart, so that hundreds of hosts do not connect at once. A turn is a
//     time and not a slot, so a driver that hangs does not block others. Package fleet bounds how many
//     connected hosts open at the same time.
//   - Run ends when its context does or, with Options.EndWhenAllFail, when a host fails and no other
//     one is managed or about to be. It returns only when all drivers have ended.
//
// One goroutine, that of Run, decides and keeps the state; drivers report their end to it.
package pool
