// Package links breaks the links to far machines at the worst moments. One Bowline
// process drives many machines over SSH, each over a wire of its own; the machines
// have a real sshd in namespaces of their own and a fake runtime that the test holds
// in its hand (test/farm). On each machine lives a resident pod with probes each
// second, and pods come and go. A link fails in each of the ways in which links fail
//
//	cut half-open corrupt throttle delay
//
// while a call is in flight
//
//	RunPodSandbox CreateContainer StopContainer PullImage
//	an exec probe, and the write of a volume
//
// before the runtime has carried the call out or after it has, for a moment or for
// longer than it takes to find out.
//
// # What must hold
//
// It is judged by the log that the runtime itself keeps and by a counter that each
// container keeps on its machine, never by what Bowline says:
//
//   - a container is started once: none is restarted, and none runs twice;
//   - no container gets a signal or ends, and no sandbox of one is stopped, before
//     its pod's deletion is asked for; none is ever killed without its grace;
//   - a deleted pod's containers end when the link is back, and its API object stays
//     until then;
//   - a volume is whole;
//   - in the end every pod is Ready and has no restarts.
//
// TestClockIsWrong has machines whose clocks are four minutes off: a pod that ends
// while the link is down is told with its true times.
//
// Nothing else is a fault. A machine without time to spare makes it slow, and no more:
// what has to come is waited for many times as long as it takes.
//
// Environment: BOWLINE_E2E=1 runs it (root, and the lab's programs, needed).
// BOWLINE_LINKS=full has 20 links and 20 rounds of each way at each call, 600 faults;
// without it one round, on fewer links. BOWLINE_LINKS_ROUNDS is another number of
// rounds, BOWLINE_LINKS_HOSTS another number of links. The seed is printed;
// BOWLINE_LINKS_SEED repeats it.
package links
