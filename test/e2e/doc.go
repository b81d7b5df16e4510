// Package e2e tests Bowline in a whole cluster: a real API server, scheduler and controller
// manager, and a real container runtime. The tests run if BOWLINE_E2E=1 (hack/test-machine.sh), as
// root, in a lab that they share.
//
// The suite has two parts. A test that calls serial has the lab's node for itself: it stops
// Bowline, breaks its link, or counts everything on the machine. A test that calls parallel runs
// concurrently with others, or has its own lab. One process runs both parts, the serial one first;
// BOWLINE_E2E_PART=serial or parallel runs one part, so that two processes can run the suite
// concurrently.
//
// BOWLINE_E2E_HOST=ssh manages the host over SSH, BOWLINE_E2E_KEEP=1 keeps the lab, and
// BOWLINE_E2E_FULL=1 runs over SSH even the tests that do not depend on the link.
package e2e
