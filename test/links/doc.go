// Package links breaks the links to remote hosts at the worst moments. One Bowline process manages
// many hosts over SSH, each over its own wire. Each host has a real sshd in its own namespaces and
// a fake runtime that the test controls (test/fakehosts), and a resident pod with probes each second,
// while other pods come and go. A link fails in each of these ways
//
//	cut half-open corrupt throttle delay
//
// while a call is in flight
//
//	RunPodSandbox CreateContainer StopContainer PullImage
//	an exec probe, and the write of a volume
//
// before the runtime has carried the call out or after it, for a moment or for longer than the
// detection of a dead link takes.
//
// # What must hold
//
// The rules are checked on the runtime's own log and on a counter that each container keeps on its
// machine, never on what Bowline reports:
//
//   - a container is started once: none is restarted, and none runs twice;
//   - no container gets a signal or ends, and no sandbox of one is stopped, before
//     its pod's deletion is requested; none is ever killed without its grace period;
//   - a deleted pod's containers end when the link is back, and its API object stays
//     until then;
//   - a volume is complete;
//   - in the end every pod is Ready and has no restarts.
//
// TestClockIsWrong uses machines whose clocks are four minutes off: a pod that ends while the link
// is down is reported with its true times.
//
// Slowness is no failure: an overloaded machine makes the test slow, and every wait is many times
// as long as the awaited step takes.
//
// Environment: BOWLINE_E2E=1 runs it (needs root and the lab's programs). BOWLINE_LINKS=full uses
// 20 links and 20 rounds of each fault at each call, 600 faults; without it there is one round, on
// fewer links. BOWLINE_LINKS_ROUNDS and BOWLINE_LINKS_HOSTS set other numbers of rounds and links.
// The seed is printed; BOWLINE_LINKS_SEED repeats it.
package links
