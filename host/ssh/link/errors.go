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

// DownError reports that there is no link to the host. It wraps host.ErrUnreachable and, if
// known, the cause: an *endpoint.HostKeyError, an *endpoint.AuthError, or a network error.
type DownError struct {
	Address string        // "host:port" of the host
	For     time.Duration // how long the link has been down; 0 if it just went down
	Cause   error         // nil before the first attempt has ended
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

// silentError ends a connection from which nothing arrives.
type silentError struct{ after time.Duration }

func (e *silentError) Error() string { return fmt.Sprintf("no answer for %d s", e.after/time.Second) }

// errClosed is the cause after Close.
var errClosed = errors.New("the link is closed")

// UnansweredError reports that a call ended with its context before the host answered. It wraps
// host.ErrUnreachable and the error of the context.
type UnansweredError struct {
	Address string // "host:port" of the host
	// Silence is how long nothing at all had arrived from the host. If that is short (a
	// keepalive is sent every 3 s), the link is not the cause: a dial waits for an address that
	// drops packets, or a program for a busy host.
	Silence time.Duration
	Cause   error
}

func (e *UnansweredError) Error() string {
	return fmt.Sprintf("no answer from %s, last heard %.1f s ago: %v", e.Address, e.Silence.Seconds(), e.Cause)
}

func (e *UnansweredError) Unwrap() []error { return []error{host.ErrUnreachable, e.Cause} }

// refusal explains a channel that the host did not open. The host has answered, so the error
// never wraps host.ErrUnreachable. what is "unix", "tcp" or "session".
func refusal(what, object string, err *ssh.OpenChannelError) error {
	text := err.Message
	if text == "" || text == "open failed" {
		text = err.Reason.String()
	}
	var kind error
	// The protocol has no errno: sshd and dropbear send the words of strerror(3).
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
		// For a socket OpenSSH does not report any reason.
		hint = ": nothing listens there, or the login user may not use it, or sshd_config has no AllowStreamLocalForwarding yes"
	case what == "unix" && err.Reason != ssh.ConnectionFailed:
		hint = ": sshd forbids it, set AllowStreamLocalForwarding yes in its sshd_config"
	case what == "tcp" && err.Reason == ssh.Prohibited:
		hint = ": sshd forbids it, set AllowTcpForwarding yes in its sshd_config and look for PermitOpen (a certificate of the login needs permit-port-forwarding)"
	}
	return &answerError{text: object + ": " + text + hint, kind: kind, channel: err}
}

// answerError is an answer of the host, not a failure of the link.
type answerError struct {
	text    string
	kind    error // the error that errors.Is finds, or nil
	channel error // the error of x/crypto/ssh, or nil
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
