// Package logind asks a machine's systemd-logind to wait with a shutdown until what
// runs there has been ended in order: over host.Host alone, so that it is the same for
// a near machine and a far one, and with programs that come with logind itself
// (busctl, systemd-inhibit), so that nothing has to be installed.
//
//	Open      one process on the machine (watch.sh): a monitor of logind's signals, and the
//	          holder of the inhibitor, a lock of mode delay. Both end with its input,
//	          which is to say with the connection or with this process.
//	Session   Hold and Release the inhibitor; Hints pokes when a shutdown may have begun
//	          or been called off; Preparing asks logind which it is.
//
// A signal of the system bus is a hint and no more: any user of the machine may send one
// that looks like logind's. What counts is the property PreparingForShutdown, asked of
// logind, which also tells a process that comes in the middle of a shutdown.
//
// logind waits for InhibitDelayMaxSec at most, 5 s by default. Where that is too little
// Open writes a drop-in for it, as a kubelet does, but below /run, which the machine
// itself forgets when it goes down; Restore removes it from a machine that is handed
// back.
package logind
