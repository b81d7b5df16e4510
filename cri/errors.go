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

// Kind is what an error says of the call's effect.
type Kind int

const (
	// KindFailed: the runtime answered, and its answer is a refusal or a failure.
	KindFailed Kind = iota
	// KindNotFound: the runtime answered that the object does not exist.
	KindNotFound
	// KindTransport: no answer. The call may or may not have happened.
	KindTransport
	// KindTimeout: the runtime answered that the command of an ExecSync ran out
	// of its own time and was killed.
	KindTimeout
	// KindExists: another sandbox or container holds this name and attempt, most
	// likely one whose answer was lost.
	KindExists
	// KindUnimplemented: the runtime does not know the method.
	KindUnimplemented
)

var kindNames = [...]string{"Failed", "NotFound", "Transport", "Timeout", "Exists", "Unimplemented"}

func (k Kind) String() string {
	if k < 0 || int(k) >= len(kindNames) {
		return "Invalid"
	}
	return kindNames[k]
}

// Error is the error of every verb of Client.
type Error struct {
	Method string // CRI method, "StopContainer"
	Object string // what it was asked of: an ID, a name, an image; may be empty
	Kind   Kind
	Unsent bool  // the hook did not let the call begin: it has certainly not happened
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

// Said is the runtime's own answer, without what it was asked: its message, and the same
// with its code as gRPC has it. Not OK: it was not the runtime that said no.
func Said(err error) (message, coded string, ok bool) {
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

// IsNotFound: the runtime says that the object does not exist.
func IsNotFound(err error) bool { return hasKind(err, KindNotFound) }

// IsTransport: the runtime did not answer (unreachable, deadline, cancelled,
// connection lost), so the call may or may not have happened.
func IsTransport(err error) bool { return hasKind(err, KindTransport) }

// IsUnsent: the call has certainly not happened, although it is also IsTransport.
func IsUnsent(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Unsent
}

// IsTimeout: the command of an ExecSync ran out of its time. A deadline of the
// caller's own is IsTransport.
func IsTimeout(err error) bool { return hasKind(err, KindTimeout) }

// IsExists: the name and attempt are taken by another sandbox or container.
func IsExists(err error) bool { return hasKind(err, KindExists) }

// IsUnimplemented: the runtime does not have the method.
func IsUnimplemented(err error) bool { return hasKind(err, KindUnimplemented) }

func hasKind(err error, k Kind) bool {
	var e *Error
	return errors.As(err, &e) && e.Kind == k
}

// classify tells the kind of an error that a call ended with whose context was
// not over. (Once it is, whatever the runtime still says is about the cut, not
// about the object: KindTransport.)
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
	// containerd 1.6 has no code for a name that is taken, and 2 several; this
	// is the one place that reads its words.
	if strings.Contains(s.Message(), "is reserved for") {
		return KindExists
	}
	return KindFailed
}

// shortened keeps the beginning and the end of a long sentence of the runtime's. It comes
// after classify, which may need what is between them.
func shortened(err error) error {
	s, ok := status.FromError(err)
	if !ok || len(s.Message()) <= budget.MaxText {
		return err
	}
	return status.Error(s.Code(), budget.Text(s.Message()))
}

// about names the object in an error that the interceptor made.
func about(err error, object string) error {
	var e *Error
	if errors.As(err, &e) && e.Object == "" {
		e.Object = object
	}
	return err
}

// unlessNotFound turns "does not exist" into success: the end that a stop or a
// removal wants is reached. (The CRI asks for this; older runtimes return an error.)
func unlessNotFound(err error) error {
	if IsNotFound(err) {
		return nil
	}
	return err
}
