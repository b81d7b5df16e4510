package cri

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
)

// Kind classifies an error by the effect that the call may have had.
type Kind int

const (
	// KindFailed: the runtime answered, and its answer is a refusal or a failure.
	KindFailed Kind = iota
	// KindNotFound: the runtime answered that the object does not exist.
	KindNotFound
	// KindTransport: no answer. The call may or may not have happened.
	KindTransport
	// KindTimeout: the runtime answered that the command of an ExecSync exceeded its own timeout
	// and was killed.
	KindTimeout
	// KindExists: another sandbox or container has this name and attempt, most likely one from an
	// earlier call whose answer was lost.
	KindExists
	// KindUnimplemented: the runtime does not have the method.
	KindUnimplemented
)

var kindNames = [...]string{"Failed", "NotFound", "Transport", "Timeout", "Exists", "Unimplemented"}

func (k Kind) String() string {
	if k < 0 || int(k) >= len(kindNames) {
		return "Invalid"
	}
	return kindNames[k]
}

// Error is the error of every method of Client.
type Error struct {
	Method string // CRI method, for example "StopContainer"
	Object string // the call's ID, name or image; may be empty
	Kind   Kind
	Unsent bool  // the hook did not start the call: it has certainly not happened
	Err    error // a gRPC status, a context's error, or what the hook returned
}

func (e *Error) Error() string {
	text := e.Err.Error()
	if s, ok := status.FromError(e.Err); ok {
		text = s.Message()
	}
	var exceeded *budget.ExceededError
	if e.Kind == KindTransport && !errors.As(e.Err, &exceeded) {
		text = "no answer from the container runtime: " + text
	}
	if e.Object == "" {
		return fmt.Sprintf("cri %s: %s", e.Method, text)
	}
	return fmt.Sprintf("cri %s %q: %s", e.Method, e.Object, text)
}

func (e *Error) Unwrap() error { return e.Err }

// ErrorText returns the runtime's own answer without the request: its message, and the same with the
// gRPC code. ok is false if the error did not come from the runtime.
func ErrorText(err error) (message, coded string, ok bool) {
	var e *Error
	if !errors.As(err, &e) || e.Kind == KindTransport {
		return "", "", false
	}
	s, ok := status.FromError(e.Err)
	if !ok {
		return "", "", false
	}
	return s.Message(), e.Err.Error(), true
}

// IsNotFound reports whether the runtime answered that the object does not exist.
func IsNotFound(err error) bool { return hasKind(err, KindNotFound) }

// IsTransport reports whether the runtime did not answer (unreachable, deadline, cancelled,
// connection lost), so that the call may or may not have happened.
func IsTransport(err error) bool { return hasKind(err, KindTransport) }

// IsUnsent reports whether the call has certainly not happened, although IsTransport is true too.
func IsUnsent(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Unsent
}

// IsTimeout reports whether the command of an ExecSync exceeded its timeout. If the caller's own
// deadline passed, the error is IsTransport.
func IsTimeout(err error) bool { return hasKind(err, KindTimeout) }

// IsExists reports whether another sandbox or container has the name and attempt.
func IsExists(err error) bool { return hasKind(err, KindExists) }

// IsUnimplemented reports whether the runtime does not have the method.
func IsUnimplemented(err error) bool { return hasKind(err, KindUnimplemented) }

func hasKind(err error, k Kind) bool {
	var e *Error
	return errors.As(err, &e) && e.Kind == k
}

// classify returns the kind of the error of a call whose context had not ended. (Once the context
// has ended, the runtime's answer concerns the cancellation, not the object: KindTransport.)
func classify(method string, err error) Kind {
	if errors.Is(err, context.Canceled) || errors.Is(err, host.ErrUnreachable) {
		return KindTransport
	}
	s, ok := status.FromError(err)
	if !ok {
		if errors.Is(err, context.DeadlineExceeded) {
			return KindTransport
		}
		return KindFailed
	}
	switch s.Code() {
	case codes.NotFound:
		return KindNotFound
	case codes.Unimplemented:
		return KindUnimplemented
	case codes.AlreadyExists:
		return KindExists
	case codes.DeadlineExceeded:
		if method == "ExecSync" {
			return KindTimeout
		}
		return KindTransport
	case codes.Unavailable, codes.Canceled, codes.Aborted:
		return KindTransport
	}
	// containerd 1.6 has no code for a name that is taken, and 2 has several. Only this place reads
	// its message.
	if strings.Contains(s.Message(), "is reserved for") {
		return KindExists
	}
	return KindFailed
}

// shortened keeps the beginning and the end of a long message of the runtime. It must run after
// classify, which may need the middle.
func shortened(err error) error {
	s, ok := status.FromError(err)
	if !ok || len(s.Message()) <= budget.MaxText {
		return err
	}
	return status.Error(s.Code(), budget.Text(s.Message()))
}

// about sets the object of an error that the interceptor made.
func about(err error, object string) error {
	var e *Error
	if errors.As(err, &e) && e.Object == "" {
		e.Object = object
	}
	return err
}

// unlessNotFound turns "does not exist" into success: a stop or a removal has reached its goal.
// (The CRI requires this; older runtimes return an error.)
func unlessNotFound(err error) error {
	if IsNotFound(err) {
		return nil
	}
	return err
}
