// Package storm churns a full node: 110 pods of Deployments, StatefulSets and Jobs, and bare pods,
// with probes, init containers, sidecars and configMaps. All the time some pods are deleted, some
// containers are killed from inside or with their sandbox, and some fail their liveness probes; and
// three times Bowline itself is killed (SIGKILL) and restarted at once.
//
//	storm_test.go    the lab, the course of the storm, the measurements
//	workload_test.go the pods
//	strike_test.go   what is done to them
//	rules_test.go    PURE: the rules and their violations
//
// # What must hold
//
// The witness is containerd itself: its events of creates, starts and exits, read independently of
// Bowline, and every version of every pod from the API server.
//
//   - A container is created only after the instance before it has ended, and an
//     instance ends only for a known reason: it was struck, with its sandbox or
//     alone; it is made to end, with that exit code; its pod was deleted; its pod was
//     done without it; or its start was cut off when our process was killed. Each restart
//     that a status counts is such an end.
//   - A container that must not be restarted is not.
//   - The containers of a StatefulSet's pod, and of a bare pod, are created after those of
//     the previous pod of that name have ended.
//   - An API object goes after its containers have ended, unless it was deleted by force.
//   - A pod loses Ready only if a container ended; a container never loses its readiness
//     while it runs.
//   - No status goes backwards.
//   - At the end the desired state holds, and each status agrees with containerd:
//     instance, state, exit code, times, restarts, and the previous end.
//   - Once everything is deleted, the machine is as it was.
//
// Environment: BOWLINE_E2E=1 and BOWLINE_STORM=DURATION run it (needs root and the lab's programs).
// BOWLINE_E2E_HOST=ssh manages the host over SSH. BOWLINE_STORM_SEED repeats the choices of a run
// that printed it. BOWLINE_STORM_PODS is the number of pods. A failed run keeps its evidence.
package storm
