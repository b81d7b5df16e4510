// Package hostile makes one host of many lie, and measures what that costs the others. One Bowline
// process manages good hosts over SSH, each with a real sshd in its own namespaces and a fake
// runtime (test/fakehosts), and one more host. The runtime of that host is replaced by one whose replies
// exhaust a reader (cri/lying), and then its sshd by a similar one:
//
//	lists of empty items    lists beyond every limit     pods without end
//	statuses of megabytes   statuses that fill memory    replies that never end
//	lists just within the limits, as fast as they are asked for
//
//	shells that print for ever, without an end of the line, and to standard error
//	answers that keep to the shells' protocol, and list hundreds of thousands of mounts
//	SFTP packets that claim to be of gigabytes           shells that say nothing
//
// Then another sshd of the host takes over, whose shells are true, and whose SFTP server lies when a
// log is read.
//
// # What must hold
//
//   - the peak of the process's resident memory is at most 64 MiB more than without it;
//   - neither the process, nor any other host's driver, nor any container is restarted;
//     no other node becomes NotReady even for a moment;
//   - the host that exceeds a budget is quarantined: its node has the condition
//     HostQuarantined with the budget's name, and an event; the process's metrics count
//     it for that host and for no other. A lie that exceeds none is only refused, and shows none
//     of these; the tables of lies say which;
//   - when the host behaves again, Bowline manages it again without help, its pod has not
//     been touched, and a new one starts on it;
//   - pods start on the others as fast as without it.
//
// The last is a ratio of medians, at most 1.1. The machines, the API server and the process share the
// processors of the machine that runs the test, and two runs without any hostile host differ by
// more; so rounds with a lie and without one alternate.
//
// Environment: BOWLINE_E2E=1 runs it (needs root and the lab's programs). BOWLINE_HOSTILE_HOSTS is
// the number of good hosts, 20 by default.
package hostile
