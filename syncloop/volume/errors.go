package volume

import (
	"errors"
	"fmt"

	"github.com/bowline-k8s/bowline/syncloop/volume/render"
)

// The reasons of the event for an *Error: of a file system, and of a block volume.
const (
	ReasonFailedMount = "FailedMount"
	ReasonFailedMap   = "FailedMapVolume"
)

// ErrForeign means that a pod directory has no record of ours. It is never touched.
var ErrForeign = errors.New("the pod directory does not belong to this node agent")

// Error says why one volume of a pod could not be set up. Prepare and Refresh join several;
// Failures separates them.
type Error struct {
	Volume string // its name in the pod
	// Reason is the reason of the event: ReasonFailedMount or ReasonFailedMap.
	Reason string
	Err    error
}

// Error is the message of the kubelet's event.
func (e *Error) Error() string {
	if e.Reason == ReasonFailedMap {
		return fmt.Sprintf("MapVolume.MapBlockVolume failed for volume %q : %v", e.Volume, e.Err)
	}
	return fmt.Sprintf("MountVolume.SetUp failed for volume %q : %v", e.Volume, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// Unsupported reports whether this node cannot mount volumes of this kind, so that no retry helps.
func (e *Error) Unsupported() bool { return render.IsUnsupported(e.Err) }

// DirsError is the error of Prepare if the pod's own directories cannot be made.
type DirsError struct {
	Pod string // namespace/name
	Err error
}

func (e *DirsError) Error() string {
	return fmt.Sprintf("make the directories of pod %s: %v", e.Pod, e.Err)
}
func (e *DirsError) Unwrap() error { return e.Err }

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

// mapError is the error for a block volume whose device cannot be given to containers.
type mapError struct{ err error }

func (e *mapError) Error() string { return e.err.Error() }
func (e *mapError) Unwrap() error { return e.err }

func failed(name string, err error) *Error {
	if mapped := (*mapError)(nil); errors.As(err, &mapped) {
		return &Error{Volume: name, Reason: ReasonFailedMap, Err: mapped.err}
	}
	return &Error{Volume: name, Reason: ReasonFailedMount, Err: err}
}
