// Package chaos kills Bowline at every call it makes. On a lab of its own, with
// real containerds, a Bowline built with -tags faults drives each host; pods go
// through their whole life again and again, and each time one fault strikes at
// one call.
//
// The calls are found, not listed: the hook that every call to the machine and
// to the runtime passes writes down its label and its caller while pods live
// without a fault (see cmd/bowline/faults.go). The matrix is these calls times
//
//	before    kill   the request was not sent
//	withheld  kill   it was carried out, the reply never seen
//	after     kill   the reply was seen, and used until the next call
//	before    error  a lost connection, the request not sent
//	withheld  error  a lost connection, the request carried out
//
// where kill is SIGKILL of the process, which is started again at once, as a
// service manager would. Calls that change something in the runtime are killed
// once more, some milliseconds (by the seed) after the request was sent; starts more
// often, all along the time that they take. A call that changes something is struck
// each time that it comes in a life, one that only reads at its first; if a label
// is seen anywhere that was not struck at every point, the test fails.
//
// The same is done to a process that takes over a pod that is Ready, at each call
// from its first to its first probe; to a Job, which may not run twice; to a
// StatefulSet's pod on its way from one node to another; and, without a call to
// mark the moment, at times spread over a life by the seed. And to the calls that
// end what containerd loses when a start is cut off at the wrong millisecond, which
// is planted for the purpose.
//
// # What must hold, at every point
//
// What was carried out is found and adopted, what was not is done by the next
// process, so the rules know no exception by point, but for hooks, and for one
// kind of loss that is the runtime's: a start that was sent and not answered when
// its sender died is given up by containerd (exit code 128, StartError). The call
// log tells where that was so; there one container may be started a second time,
// and a Job, which may not try twice, may fail, but its work is never begun twice.
//
//   - The init container starts exactly once and ends before main starts; main
//     starts exactly once. The containers count themselves, by lines in a file on
//     the host, and containerd's own events say the same: three tasks are started
//     in a life (sandbox, init, main), no fourth, but for a sandbox whose own start
//     was cut off.
//   - Never more than four containers are created: an instance whose process was
//     never started may be replaced, because a create without its reply, or a
//     start that was not sent, cannot be told from one whose file set-up is stale.
//   - Main gets its signal and its grace, whatever struck: it writes a line as it
//     leaves.
//   - The pod gets Ready. Phase, container states, restart counts (0), container
//     IDs, start times, addresses and readiness never go backwards while it lives.
//   - When the API object goes, containers and sandbox have ended, main has left,
//     and none of the pod's volumes is mounted.
//   - postStart runs once. If the process dies around it, it may not have run
//     (the kubelet's rule: at most once over restarts); if the start's reply was
//     lost before it, or its exec could not be sent, it is made up for, and if only
//     its own reply is lost it is run again.
//   - preStop runs once; it runs again where the process died during the stop;
//     where its exec could not be sent at all, the pod ends without it.
//   - Within seconds of the end the machine is as it was before: sandboxes,
//     containers, containerd's own records and tasks, shims (their processes too),
//     mounts, network namespaces and links, addresses, cgroups,
//     pod and log directories, records.
//
// Environment: BOWLINE_E2E=1 runs it (root, and the lab's programs, needed).
// BOWLINE_CHAOS=quick strikes calls that only read at a sample of their points,
// by a seed that is printed (BOWLINE_CHAOS_SEED repeats it); brief strikes each label
// once at each of its points, in every matrix; full, the default,
// strikes at all. BOWLINE_CHAOS_HOSTS is the number of hosts that work side by side.
// BOWLINE_CHAOS_LAB is the directory of a lab to use and to leave running.
// BOWLINE_CHAOS_ONLY is a regular expression of case names.
package chaos
