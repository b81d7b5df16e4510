package provider

import (
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
)

// silence is the state of a process that may have lost the machine to another.
type silence struct {
	instance string
	drives   func() bool
	another  atomic.Bool // the node object has another instance than ours
}

// see reads the instance from a version of the node object.
func (s *silence) see(n *v1.Node) {
	if s == nil {
		return
	}
	last := n.Annotations[AnnotationInstance]
	s.another.Store(last != "" && last != s.instance)
}

// holds reports whether to report nothing. A process that holds the machine always reports, because
// the object may not have its instance yet.
func (s *silence) holds() bool { return s != nil && s.another.Load() && !s.drives() }
