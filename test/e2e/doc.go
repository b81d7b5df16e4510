// Package e2e tests Bowline in a whole cluster: a real API server, scheduler and controller
// manager, a real container runtime. The tests run where BOWLINE_E2E=1 says so
// (hack/test-machine.sh), as root, in a lab that they share.
//
// The suite has two parts. A test that calls serial has the lab's node for itself: it stops
// Bowline, breaks its link, or counts all that the machine holds. A test that calls parallel
// runs beside others, or has a lab of its own. One process runs both parts, the serial one
// first; BOWLINE_E2E_PART=serial or parallel runs one part, so that two processes run the
// suite side by side.
//
// BOWLINE_E2E_HOST=ssh drives the host over SSH, BOWLINE_E2E_KEEP=1 keeps the lab, and
// BOWLINE_E2E_FULL=1 runs over SSH what does not depend on the link as well.
package e2e
