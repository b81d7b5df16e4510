// Package e2e holds the tests of Bowline in a whole cluster: a real API server,
// scheduler and controller manager, a real containerd. They run where
// BOWLINE_E2E=1 says so (hack/test-machine.sh), as root, on a lab of their own
// that all of them share. Tests of what the node as a whole does run first, one
// after another; the others run beside each other once those are through.
package e2e
