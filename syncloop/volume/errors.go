package volume

import (
	"errors"
	"fmt"

	"github.com/bowline-k8s/bowline/syncloop/volume/render"
)

// ReasonFailedMount is the reason of the event that tells of an *Error.
const ReasonFailedMount = "FailedMount"

// ErrForeign: a pod directory has no record of ours. It is never touched.
var ErrForeign = errors.New("the pod directory was not made by this node agent")

// Error says why one volume of a pod cannot be had. Prepare and Refresh join
// several; Failures takes them apart again.
type Error struct {
	Volume string // its name in the pod
	// Reason is the event's, ReasonFailedMount.
	Reason string
	Err    error
}

// Error is the message of the kubelet's event.
func (e *Error) Error() string {
	return fmt.Sprintf("MountVolume.SetUp failed for volume %q : %v", e.Volume, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// Unsupported tells whether the volume is of a kind that this node cannot
// mount, so that no retry helps.
func (e *Error) Unsupported() bool { return render.IsUnsupported(e.Err) }

// Failures are the volumes' errors within err, in the order of the pod's
// volumes; nil if err is of another kind.
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
