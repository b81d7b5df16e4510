package node

import (
	"time"

	"github.com/bowline-k8s/bowline/host/ssh/link"
)

// State is what the process shows of a node.
type State struct {
	// Link is the state of the link; nil for a local host.
	Link *link.State
	// ObservedAt is when the runtime was last listed; zero: not yet.
	ObservedAt time.Time
	// Stuck is why the sync loop does not turn, or nil. It does not depend on the host.
	Stuck error
}

// State returns the node's current state.
func (n *Node) State() State {
	s := State{ObservedAt: n.pleg.RelistedAt(), Stuck: n.loop.Healthy()}
	if n.host.Link != nil {
		state := n.host.Link.State()
		s.Link = &state
	}
	return s
}
