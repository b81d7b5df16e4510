// Package storm churns a full node: 110 pods of Deployments, StatefulSets, Jobs and by
// themselves, with probes, init containers, sidecars and configMaps, of which, the whole
// time, some are deleted, some containers are killed from inside or with their sandbox,
// and some fail their liveness probes; and three times Bowline itself is killed
// (SIGKILL), and started again at once.
//
//	storm_test.go    the lab, the storm's course, what is measured
//	workload_test.go the pods
//	strike_test.go   what is done to them
//	judge_test.go    PURE: what must not have been
//
// # What must hold
//
// The witness is containerd itself: its events of creates, starts and exits, read beside
// Bowline, and the API server's every version of every pod.
//
//   - A container is created only after the instance before it has ended, and an
//     instance ends only for a reason that is known: it was struck, with its sandbox or
//     by itself; it is made to end, with that exit code; its pod was deleted; its pod was
//     done without it; or its start was cut off by the kill of our process. Each restart
//     that a status counts is such an end.
//   - A container that is not to be restarted is not.
//   - Of a StatefulSet's pod and of each name of a pod by itself, the next one's
//     containers are created after the last one's have ended.
//   - An API object goes after its containers have ended, unless it was forced.
//   - Ready is lost only where a container ended; a container's readiness never, while
//     it runs.
//   - No status goes backwards.
//   - At the end the desired state holds, and each status says what containerd says:
//     instance, state, exit code, times, restarts, and the end before.
//   - Once all is deleted, the machine is as it was.
//
// Environment: BOWLINE_E2E=1 and BOWLINE_STORM=DURATION run it (root, and the lab's
// programs, needed). BOWLINE_E2E_HOST=ssh has the machine driven over SSH.
// BOWLINE_STORM_SEED repeats the choices of a run that printed it. BOWLINE_STORM_PODS is
// the number of pods. A failed run keeps its evidence.
package storm
