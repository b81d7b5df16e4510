package provider

import (
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
)

// standby is the state of a process that may have lost the machine to another.
type standby struct {
	instance  string
	holdsHost func() bool
	taken     atomic.Bool // the node object has another instance than ours
}

// observe reads the instance from a version of the node object.
func (s *standby) observe(n *v1.Node) {
	if s == nil {
		return
	}
	last := n.Annotations[AnnotationInstance]
	s.taken.Store(last != "" && last != s.instance)
}

// active reports whether to report nothing. A process that holds the machine always reports, because
// the object may not have its instance yet.
func (s *standby) active() bool { return s != nil && s.taken.Load() && !s.holdsHost() }
