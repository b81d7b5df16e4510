// Package budget bounds what one host may cost the process that manages many. Readers compare
// the output of a host with limits and count it here. What exceeds a limit is an *ExceededError
// and ends the driver of that host, which waits for Exceeded. The package knows neither hosts
// nor the pool.
//
// It counts only what the host itself causes. What a pod can cause (the output of its probe, a
// line of its log) is cut or refused where it is read, and does not count against the host.
package budget
