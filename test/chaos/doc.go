// Package chaos kills Bowline at every call it makes. In a lab with real containerds, a Bowline
// built with -tags faults manages each host. Pods go through their whole life again and again, and
// each time one fault strikes at one call.
//
// The calls are discovered, not listed: while pods live without a fault, the hook that every call
// to the host and to the runtime passes writes down the call's label and its caller (see
// faultinject/faults.go). The matrix is these calls times
//
//	before    kill   the request was not sent
//	withheld  kill   it was carried out, the reply never seen
//	after     kill   the reply was seen, and used until the next call
//	before    error  a lost connection, the request not sent
//	withheld  error  a lost connection, the request carried out
//
// where kill is SIGKILL of the process, which is restarted at once, as a service manager would do.
// Calls that change something in the runtime are killed once more, some milliseconds (by the seed)
// after the request was sent; starts more often, over the whole time that they take. A call that
// changes something is struck each time it occurs in a life, a call that only reads at its first
// time. While a container starts, the process is also asked to stop, by SIGTERM: that start must
// not be lost. If any label that was seen was not struck at every point, the test fails.
//
// The same happens to a process that takes over a Ready pod, at each call from its first to its
// first probe; to a Job, which may not run twice; to a StatefulSet's pod that moves from one node
// to another; at times that the seed spreads over a life, without a call to mark the moment; and
// to the calls that remove what containerd loses when a start is cut off at the wrong millisecond,
// which the test plants.
//
// # What must hold, at every point
//
// The next process finds and adopts what was carried out, and does what was not. So the rules hold
// at every point, with exceptions only for hooks and for one kind of loss in the runtime:
// containerd gives up a start that was sent and not answered when its sender died (exit code 128,
// StartError). The call log shows where that happened. There, one container may be started a
// second time, and a Job, which may not try twice, may fail, but its work never begins twice.
//
//   - The init container starts exactly once and ends before main starts; main
//     starts exactly once. The containers count themselves, by lines in a file on
//     the host, and containerd's own events must agree: three tasks are started
//     in a life (sandbox, init, main), and a fourth only if the sandbox's own start
//     was cut off.
//   - Never more than four containers are created: an instance whose process was
//     never started may be replaced, because a create without its reply, or a
//     start that was not sent, cannot be distinguished from one whose file set-up is stale.
//   - Main gets its signal and its grace period, whatever struck: it writes a line as it
//     leaves.
//   - The pod becomes Ready. Phase, container states, restart counts (0), container
//     IDs, start times, addresses and readiness never go backwards while it lives.
//   - When the API object goes, containers and sandbox have ended, main has left,
//     and none of the pod's volumes is mounted.
//   - postStart runs once. If the process dies around it, it may not have run
//     (the kubelet's rule: at most once over restarts). If the start's reply was
//     lost before it, or its exec could not be sent, it runs later, and if only
//     its own reply is lost it runs again.
//   - preStop runs once; it runs again if the process died during the stop. If its
//     exec could not be sent at all, the pod ends without it.
//   - Within seconds of the end the machine is as it was before: sandboxes,
//     containers, containerd's own records and tasks, shims (their processes too),
//     mounts, network namespaces and links, addresses, cgroups,
//     pod and log directories, records.
//
// Environment: BOWLINE_E2E=1 runs it (needs root and the lab's programs). BOWLINE_CHAOS=quick
// strikes calls that only read at a sample of their points, by a seed that is printed
// (BOWLINE_CHAOS_SEED repeats it); brief strikes each label once at each of its points, in every
// matrix; part strikes each label once in every matrix; full, the default, strikes everywhere. BOWLINE_CHAOS_HOSTS is the number of hosts that
// work in parallel. BOWLINE_CHAOS_LAB is the directory of a lab to use and to leave running.
// BOWLINE_CHAOS_ONLY is a regular expression of case names.
package chaos
