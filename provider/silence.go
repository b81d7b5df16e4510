package provider

import (
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
)

// silence is the state of a process that lost the machine to another.
type silence struct {
	instance string
	drives   func() bool
	another  atomic.Bool // the node object names another drive than ours as the last
}

// see takes what a version of the node object says.
func (s *silence) see(n *v1.Node) {
	if s == nil {
		return
	}
	last := n.Annotations[AnnotationInstance]
	s.another.Store(last != "" && last != s.instance)
}

// holds says that nothing is to be reported. Who drives speaks, whatever the object
// says: its own name may not have got there yet.
func (s *silence) holds() bool { return s != nil && s.another.Load() && !s.drives() }
