package pipe

import (
	"errors"
	"fmt"
)

var (
	// ErrForgotten: the accepting side does not know the pipe, because its process is another one or has given
	// the pipe up. What had been written is lost.
	ErrForgotten = errors.New("the other end does not know the pipe")
	// ErrExpired: the pipe had no transport for the time of Config.Resume.
	ErrExpired = errors.New("the pipe had no transport for too long")
	// ErrVersion: the other end speaks another version of the protocol.
	ErrVersion = errors.New("the other end of the pipe speaks another version")
)

// ProtocolError: the other end sent what the protocol does not permit. It ends the pipe.
type ProtocolError struct{ What string }

func (e *ProtocolError) Error() string { return "the other end of the pipe sent " + e.What }

func violation(format string, args ...any) error { return &ProtocolError{fmt.Sprintf(format, args...)} }

// These end a transport, or all of them in order, and never leave the package.
var (
	errOver     = errors.New("both ends know that the pipe is closed")
	errReplaced = errors.New("a newer transport took over")
	errSilent   = errors.New("the transport carries nothing")
)

// final reports whether no other transport can help.
func final(err error) bool {
	var protocol *ProtocolError
	return errors.Is(err, ErrForgotten) || errors.Is(err, ErrVersion) || errors.As(err, &protocol)
}
