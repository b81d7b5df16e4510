package link

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/bowline-k8s/bowline/host"
)

// DownError says that there is no link to the machine. It wraps
// host.ErrUnreachable and, where one is known, the cause: an
// *endpoint.HostKeyError, an *endpoint.AuthError, an error of the network.
type DownError struct {
	Address string        // "host:port" of the machine
	For     time.Duration // how long the link has been down; 0 when it just went
	Cause   error         // nil before the first try has ended
}

func (e *DownError) Error() string {
	var silent *silentError
	down, cause := e.For, ""
	if errors.As(e.Cause, &silent) {
		down = max(down, silent.after)
	} else if e.Cause != nil {
		cause = ": " + e.Cause.Error()
	}
	msg := "ssh: no answer from " + e.Address
	if cause != "" {
		msg = "ssh: no connection to " + e.Address
	}
	if down >= time.Second {
		msg += fmt.Sprintf(" for %d s", down/time.Second)
	}
	return msg + cause
}

func (e *DownError) Unwrap() []error {
	if e.Cause == nil {
		return []error{host.ErrUnreachable}
	}
	return []error{host.ErrUnreachable, e.Cause}
}

// silentError ends a connection whose other end sent nothing.
type silentError struct{ after time.Duration }

func (e *silentError) Error() string { return fmt.Sprintf("no answer for %d s", e.after/time.Second) }

// errClosed is the cause after Close.
var errClosed = errors.New("the link is closed")

// UnansweredError says that a call ended with its context before the machine had
// answered. It wraps host.ErrUnreachable and the context's error.
type UnansweredError struct {
	Address string // "host:port" of the machine
	// Silence is how long nothing at all had come from the machine. Where it is
	// short (a keepalive is sent every 3 s) the link is not what is slow: a dial
	// waits for an address that drops packets, a program for a busy machine.
	Silence time.Duration
	Cause   error
}

func (e *UnansweredError) Error() string {
	return fmt.Sprintf("no answer from %s, last heard %.1f s ago: %v", e.Address, e.Silence.Seconds(), e.Cause)
}

func (e *UnansweredError) Unwrap() []error { return []error{host.ErrUnreachable, e.Cause} }

// refusal explains a channel that the machine did not open. It is an answer, and
// never wraps host.ErrUnreachable. what is "unix", "tcp" or "session".
func refusal(what, object string, err *ssh.OpenChannelError) error {
	text := err.Message
	if text == "" || text == "open failed" {
		text = err.Reason.String()
	}
	var kind error
	switch lower := strings.ToLower(err.Message); {
	case strings.Contains(lower, "connection refused"):
		kind = syscall.ECONNREFUSED
	case strings.Contains(lower, "no such file"):
		kind = fs.ErrNotExist
	case strings.Contains(lower, "permission denied"):
		kind = fs.ErrPermission
	case strings.Contains(lower, "no route to host"):
		kind = syscall.EHOSTUNREACH
	case strings.Contains(lower, "network is unreachable"):
		kind = syscall.ENETUNREACH
	case strings.Contains(lower, "timed out"), strings.Contains(lower, "timeout"):
		kind = syscall.ETIMEDOUT
	case err.Reason == ssh.Prohibited:
		kind = fs.ErrPermission
	}
	hint := ""
	switch {
	case what == "session":
		hint = ": sshd gives a connection no more sessions (MaxSessions in sshd_config)"
	case what == "unix" && err.Reason == ssh.ConnectionFailed && kind == nil:
		// OpenSSH says no more than this, whatever is the matter with a socket.
		hint = ": nothing listens there, or the login user may not use it, or sshd_config has no AllowStreamLocalForwarding yes"
	case what == "unix" && err.Reason != ssh.ConnectionFailed:
		hint = ": sshd forbids it, set AllowStreamLocalForwarding yes in its sshd_config"
	case what == "tcp" && err.Reason == ssh.Prohibited:
		hint = ": sshd forbids it, set AllowTcpForwarding yes in its sshd_config and look for PermitOpen (a certificate of the login needs permit-port-forwarding)"
	}
	return &answerError{text: object + ": " + text + hint, kind: kind, channel: err}
}

// answerError is what the machine answered: not a failure of the link.
type answerError struct {
	text    string
	kind    error // what errors.Is finds, or nil
	channel error // what x/crypto/ssh said, or nil
}

func (e *answerError) Error() string { return e.text }

func (e *answerError) Unwrap() []error {
	var errs []error
	for _, err := range []error{e.kind, e.channel} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}
