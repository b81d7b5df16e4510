package registry

import (
	"fmt"
	"net/http"
	"strings"
)

// Kind classifies an Error by what can be done about it.
type Kind int

const (
	// Unavailable: the registry could not be reached, did not answer in time, or answered that it cannot serve
	// now. Another attempt may succeed.
	Unavailable Kind = iota + 1
	// Unauthorized: the registry requires credentials, or other ones.
	Unauthorized
	// NotFound: the registry has no such repository, tag or blob. Many say Unauthorized instead.
	NotFound
	// Refused: this process does not connect to the address (Policy), or does not follow the redirect.
	Refused
	// Malformed: the answer is not what the protocol, or the image's own digests, require; or it exceeds a
	// limit.
	Malformed
)

var kinds = [...]string{"Invalid", "Unavailable", "Unauthorized", "NotFound", "Refused", "Malformed"}

func (k Kind) String() string {
	if k < 0 || int(k) >= len(kinds) {
		return kinds[0]
	}
	return kinds[k]
}

// Error is the error of every request to a registry.
type Error struct {
	Kind   Kind
	What   string // "manifest registry.example/team/app:1"
	Status int    // of the HTTP response; 0: there was none
	// Said is the registry's own message, at most maxSaid bytes; often empty.
	Said string
	Err  error // the cause, or nil
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "get %s", e.What)
	if e.Status != 0 {
		fmt.Fprintf(&b, ": %d %s", e.Status, http.StatusText(e.Status))
	}
	if e.Said != "" {
		fmt.Fprintf(&b, ": %s", e.Said)
	}
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }

// Temporary reports whether the same request may succeed soon.
func (e *Error) Temporary() bool { return e.Kind == Unavailable }

// kindOf returns the kind of an HTTP status that is no success.
func kindOf(code int) Kind {
	switch {
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		return Unauthorized
	case code == http.StatusNotFound, code == http.StatusGone:
		return NotFound
	case code == http.StatusTooManyRequests, code == http.StatusRequestTimeout,
		code >= http.StatusInternalServerError:
		return Unavailable
	}
	return Malformed
}
