package hostcheck

import (
	"errors"
	"strings"

	"golang.org/x/crypto/ssh"
)

// socketState is what came of opening the runtime's socket.
type socketState struct {
	near     bool
	path     string
	err      error // nil: it opens
	mayOpen  bool  // by the rights of its file
	missing  bool
	listened bool // a process listens on it
}

const allowForwarding = "in /etc/ssh/sshd_config of the machine write\nAllowStreamLocalForwarding yes\nAllowTcpForwarding yes\nthen\nsystemctl reload ssh"

// judgeSocket tells apart what OpenSSH does not: it says "open failed" to all of it.
func judgeSocket(s socketState) Line {
	subject := Forwarding
	if s.near {
		subject = Socket
	}
	runtime := serviceOf(s.path)
	var refused *ssh.OpenChannelError
	switch {
	case s.err == nil && s.near:
		return ok(subject, "%s opens", s.path)
	case s.err == nil:
		return ok(subject, "%s opens through sshd", s.path)
	case s.missing:
		return Line{Failure, subject, "there is no socket " + s.path, "see that the endpoint names the socket of the runtime, and " + runtime.start()}
	case errors.As(s.err, &refused) && refused.Reason != ssh.ConnectionFailed:
		return Line{Failure, subject, "sshd forbids to forward " + s.path, allowForwarding}
	case !s.mayOpen:
		return Line{Failure, subject, s.path + " does not open: the login may not use it", "see the rights above"}
	case !s.listened:
		return Line{Failure, subject, "no process listens on " + s.path, runtime.restart()}
	case s.near:
		return Line{Failure, subject, s.path + " does not open: " + s.err.Error(), runtime.logs()}
	}
	return Line{Failure, subject, "sshd does not forward " + s.path + ", on which a process listens", allowForwarding}
}

// listenedOn finds a listening socket in /proc/net/unix.
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
