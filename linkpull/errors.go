package linkpull

import (
	"errors"
	"fmt"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/linkpull/registry"
)

// The reasons of an Error are those of a kubelet for a waiting container.
const (
	ReasonPull        = "ErrImagePull"
	ReasonInvalidName = "InvalidImageName"
	ReasonRegistry    = "RegistryUnavailable"
)

// Error is why an image could not be pulled over the link. If the host did not answer, the error is not an
// Error but that of the call (cri.IsTransport): the outcome is then unknown, and the next Pull continues.
type Error struct {
	Reason string // one of the constants above
	Image  string
	Err    error
}

// Error begins with RegistryUnavailable if that is the reason, as the CRI specifies for the error of a pull.
func (e *Error) Error() string {
	if e.Reason == ReasonRegistry {
		return fmt.Sprintf("%s: %v", e.Reason, e.Err)
	}
	return fmt.Sprintf("pull %q over the link: %v", e.Image, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// classified returns the error of a pull with its reason.
func classified(image string, err error) error {
	if cri.IsTransport(err) {
		return err
	}
	reason := ReasonPull
	var r *registry.Error
	if errors.As(err, &r) && r.Kind == registry.Unavailable {
		reason = ReasonRegistry
	}
	return &Error{Reason: reason, Image: image, Err: err}
}

// bothError has the errors of the host's own pull and of that over the link. It has the kind and code of the
// first, because that is what other nodes would report.
type bothError struct{ host, link error }

func (e *bothError) Error() string { return fmt.Sprintf("%v; %v", e.host, e.link) }

func (e *bothError) Unwrap() []error { return []error{e.host, e.link} }
