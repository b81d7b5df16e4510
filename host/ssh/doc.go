// Package ssh implements host.Host for a remote host over SSH. It installs nothing there: sshd,
// a POSIX shell and the usual tools (coreutils and util-linux, or busybox) do everything on the
// host.
//
// It builds on three packages, each of which can be tested alone:
//
//	host/ssh/endpoint  resolves ssh://user@host[:port]/path and ssh_config to a Target: the
//	                   address, user, keys, jump hosts and pinned host keys. Reads files,
//	                   dials nothing.
//	host/ssh/link      Link: the two connections to a host (control and bulk). Connects,
//	                   checks with keepalives, and reconnects with back-off and jitter.
//	                   Provides sessions, channels to sockets, and its state.
//	host/ssh/shell     Shell: one long-lived sh behind a framed protocol. A request is a
//	                   script with arguments, standard input and a time limit, and takes
//	                   one round trip.
//
// Host, in this package, implements each operation of host.Host as a script and parses its
// output. It uses a Link through the interface Transport, so that tests can also run it over a
// local shell.
//
// The shell reads and writes whole files; ranged reads use SFTP. A lock is a session of its own
// (see Host.Lock). A request carries everything that it needs and is answered once. So a request
// that was sent takes effect even if its sender ends before the answer: its time limit bounds
// it, and for WriteTree also flock(1) on the directory.
//
// An error of the link wraps host.ErrUnreachable: then the state of the host is unknown, and
// also whether the operation took effect. Every operation can therefore be repeated.
package ssh
