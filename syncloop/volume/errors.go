package volume

import (
	"errors"
	"fmt"

	"github.com/bowline-k8s/bowline/syncloop/volume/render"
)

// ReasonFailedMount is the reason of the event for an *Error.
const ReasonFailedMount = "FailedMount"

// ErrForeign means that a pod directory has no record of ours. It is never touched.
var ErrForeign = errors.New("the pod directory does not belong to this node agent")

// Error says why one volume of a pod could not be set up. Prepare and Refresh join several;
// Failures separates them.
type Error struct {
	Volume string // its name in the pod
	// Reason is the reason of the event, ReasonFailedMount.
	Reason string
	Err    error
}

// Error is the message of the kubelet's event.
func (e *Error) Error() string {
	return fmt.Sprintf("MountVolume.SetUp failed for volume %q : %v", e.Volume, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// Unsupported reports whether this node cannot mount volumes of this kind, so that no retry helps.
func (e *Error) Unsupported() bool { return render.IsUnsupported(e.Err) }

// Failures returns the volumes' errors within err, in the order of the pod's volumes; nil if there
// are none.
func Failures(err error) []*Error {
	var list []*Error
	var walk func(error)
	walk = func(err error) {
		switch e := err.(type) {
		case nil:
		case *Error:
			list = append(list, e)
		case interface{ Unwrap() []error }:
			for _, inner := range e.Unwrap() {
				walk(inner)
			}
		case interface{ Unwrap() error }:
			walk(e.Unwrap())
		}
	}
	walk(err)
	return list
}

func failed(name string, err error) *Error {
	return &Error{Volume: name, Reason: ReasonFailedMount, Err: err}
}
