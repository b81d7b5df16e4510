package hostcheck

import (
	"errors"
	"strings"

	"golang.org/x/crypto/ssh"
)

// socketState is the result of opening the runtime's socket.
type socketState struct {
	local    bool
	path     string
	err      error // nil: it opens
	mayOpen  bool  // by the permissions of the file
	missing  bool
	listened bool // a process listens on it
}

const allowForwarding = "set in /etc/ssh/sshd_config of the host:\nAllowStreamLocalForwarding yes\nAllowTcpForwarding yes\nthen run:\nsystemctl reload ssh"

// checkSocket distinguishes causes that OpenSSH does not: it answers "open failed" for all of them.
func checkSocket(s socketState) Line {
	subject := Forwarding
	if s.local {
		subject = Socket
	}
	runtime := serviceOf(s.path)
	var refused *ssh.OpenChannelError
	switch {
	case s.err == nil && s.local:
		return ok(subject, "%s opens", s.path)
	case s.err == nil:
		return ok(subject, "%s opens through sshd", s.path)
	case s.missing:
		return Line{Failure, subject, "there is no socket " + s.path, "check that the endpoint has the runtime's socket, and " + runtime.start()}
	case errors.As(s.err, &refused) && refused.Reason != ssh.ConnectionFailed:
		return Line{Failure, subject, "sshd does not allow forwarding to " + s.path, allowForwarding}
	case !s.mayOpen:
		return Line{Failure, subject, s.path + " cannot be opened: the login lacks the permission", "see the rights above"}
	case !s.listened:
		return Line{Failure, subject, "no process listens on " + s.path, runtime.restart()}
	case s.local:
		return Line{Failure, subject, s.path + " does not open: " + s.err.Error(), runtime.logs()}
	}
	return Line{Failure, subject, "sshd does not forward to " + s.path + ", although a process listens there", allowForwarding}
}

// listenedOn reports whether path is a listening socket in /proc/net/unix.
func listenedOn(table, path string) bool {
	for line := range strings.Lines(table) {
		// Num RefCount Protocol Flags Type St Inode Path; __SO_ACCEPTCON is 0x10000.
		f := strings.Fields(line)
		if len(f) >= 8 && f[3] == "00010000" && strings.Join(f[7:], " ") == path {
			return true
		}
	}
	return false
}
