// Package ssh is host.Host for a machine at the end of an SSH connection. Nothing
// is installed there: sshd, a POSIX shell and the usual tools (coreutils and
// util-linux, or busybox) do all that is asked of the machine.
//
// It stands on three packages, each of which can be tested without the others:
//
//	host/ssh/endpoint  ssh://user@host[:port]/path and ssh_config to a Target: who to
//	                   dial, as whom, with which keys, by which jumps, pinned to which
//	                   host keys. Reads files, dials nothing.
//	host/ssh/link      Link: the two connections of a machine (control and bulk), made,
//	                   watched by keepalives, and made again with back-off and jitter.
//	                   It hands out sessions, channels to sockets, and its state.
//	host/ssh/shell     Shell: one long-lived sh behind a framed protocol; a request is a
//	                   script with arguments, standard input and a time limit, and one
//	                   round trip.
//
// Host, here, says what each operation of host.Host is as a script, and parses what
// the script prints. What it needs of a Link is the interface Transport, so that
// the whole of it is tested over a shell of this machine as well.
//
// Files are read whole and written by the shell; ranged reads go by SFTP. A lock is a
// session of its own (see Host.Lock). A request carries all that it needs and is
// answered once, so a request that was sent takes effect even if whoever sent it dies
// before the answer: it is bounded by its time limit, WriteTree by flock(1) on the
// directory as well.
//
// An error of the link wraps host.ErrUnreachable: nothing is known of the machine
// then, and whether the operation took effect is not known either. Every operation
// can therefore be repeated.
package ssh
