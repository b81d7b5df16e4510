// Package budget bounds what one host may cost the process that drives many. What a
// host says is read against limits; what exceeds one is an *ExceededError, and the
// driver of that host ends with it. The package knows no host and no pool: the
// readers of a host's words count them here, and the driver waits for Exceeded.
//
// Only what the host itself is to blame for is counted so. What a pod can cause (the
// output of its probe, a line of its log) is cut or refused where it is read, and
// costs the host nothing.
package budget
