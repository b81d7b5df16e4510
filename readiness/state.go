// Package readiness decides what a node's conditions Ready, LinkUp, NetworkUnavailable and
// HostQuarantined show; no other package does. State and Quarantined are pure. Package provider
// writes what they return: while the driver runs, the goroutine of a Reporter owns a State and sets
// the conditions of the provider's node; for a quarantined host, which has no driver,
// provider.PatchConditions writes them.
package readiness

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/provider"
)

const (
	// linkUp is the node's condition for the link to a remote host.
	linkUp v1.NodeConditionType = v1alpha1.ConditionLinkUp
	// linkVerdict is how long a dead link may still seem to be up.
	linkVerdict = 12 * time.Second
	// shuttingDown is the kubelet's message.
	shuttingDown = "node is shutting down"
)

// Status is one of Ready.
type Status struct {
	OK              bool
	Reason, Message string // empty: the provider's defaults
}

// Link is the state of the link to a remote host.
type Link struct {
	Up      bool
	Address string
	Message string    // while it is down: why
	Over    time.Time // while it is down: when the node is no longer Ready
}

// State is what the conditions are made of. A runtime that cannot be reached is not necessarily
// down.
type State struct {
	Runtime      Status    // the runtime's last status that was believed, or LinkDown
	Doubted      Status    // a later one, not ready, which waits because the link may be down
	Due          time.Time // when Doubted is believed; zero: there is none
	Link         *Link     // nil: the host is local
	ShuttingDown bool
}

// runtime handles the runtime's own status.
func (s *State) runtime(now time.Time, r Status) {
	s.Due = time.Time{}
	switch {
	case r.OK || s.Link == nil:
		s.Runtime = r
	case !s.Link.Up: // an unreachable runtime says nothing about itself
	case !s.Runtime.OK:
		s.Runtime = r
	default:
		s.Doubted, s.Due = r, now.Add(linkVerdict)
	}
}

// link handles the state of the link.
func (s *State) link(now time.Time, l Link) {
	s.Link = &l
	switch {
	case l.Up && !s.Due.IsZero() && !now.Before(s.Due):
		s.Runtime, s.Due = s.Doubted, time.Time{}
	case !l.Up:
		s.Due = time.Time{}
		if !now.Before(l.Over) {
			s.Runtime = Status{Reason: v1alpha1.ReasonLinkDown, Message: l.Message} // until the runtime is ready again
		}
	}
}

// event is an event of the node.
type event struct{ kind, reason, message string }

// linkEvent returns the event of a change of the link; before is nil when the link is seen for the
// first time. It returns nil if there is nothing to report: the driver of a host starts with a link.
func linkEvent(before *Link, now Link) *event {
	switch {
	case !now.Up && (before == nil || before.Up):
		return &event{v1.EventTypeWarning, v1alpha1.ReasonLinkDown, now.Message}
	case now.Up && before != nil && !before.Up:
		return &event{v1.EventTypeNormal, v1alpha1.ReasonLinkUp, "ssh: connected to " + now.Address + " again"}
	}
	return nil
}

// next is when the link decides, if nothing happens before; zero: never.
func (s *State) next(now time.Time) time.Time {
	if s.Link != nil && !s.Link.Up && now.Before(s.Link.Over) {
		return s.Link.Over
	}
	return s.Due
}

// Ready combines the runtime's status with a shutdown of the host as a kubelet does.
func (s *State) Ready() Status {
	r := s.Runtime
	if r == (Status{}) {
		r.Message = provider.NotReported
	}
	switch {
	case s.ShuttingDown && r.OK:
		return Status{Message: shuttingDown}
	case s.ShuttingDown:
		r.Message = "[" + r.Message + ", " + shuttingDown + "]"
	}
	return r
}

// Network returns the conditions of a remote host's link. NetworkUnavailable makes the controller
// manager taint the node.
func (s *State) Network() []provider.Condition {
	switch {
	case s.Link == nil:
		return nil
	case s.Link.Up:
		return []provider.Condition{
			{Type: linkUp, Status: v1.ConditionTrue, Reason: v1alpha1.ReasonLinkUp, Message: "ssh: connected to " + s.Link.Address},
			{Type: v1.NodeNetworkUnavailable, Status: v1.ConditionFalse, Reason: v1alpha1.ReasonLinkUp, Message: "the host can be reached"},
		}
	}
	return []provider.Condition{
		{Type: linkUp, Status: v1.ConditionFalse, Reason: v1alpha1.ReasonLinkDown, Message: s.Link.Message},
		{Type: v1.NodeNetworkUnavailable, Status: v1.ConditionTrue, Reason: v1alpha1.ReasonLinkDown, Message: s.Link.Message},
	}
}
