// Package logind asks the systemd-logind of a host to delay a shutdown until the workloads there
// have ended in order. It uses host.Host alone, so it works the same locally and over SSH, and
// only programs that come with logind (busctl, systemd-inhibit), so nothing has to be installed.
//
//	Open      starts one process on the host (watch.sh): it monitors logind's signals and holds
//	          the inhibitor, a lock of mode "delay". Both end with the standard input of the
//	          process, so with the connection or with this process.
//	Session   Hold and Release take and release the inhibitor; Hints fires when a shutdown may
//	          have begun or been cancelled; Preparing asks logind for the fact.
//
// A signal on the system bus is only a hint: any user of the host may send one that looks like
// logind's. What counts is logind's property PreparingForShutdown. It also informs a process
// that starts during a shutdown.
//
// logind waits for InhibitDelayMaxSec at most, 5 s by default. If that is too short, Open writes
// a drop-in for it, as a kubelet does, but below /run, so that it disappears with a reboot.
// Restore removes the drop-in when the host is released.
package logind
