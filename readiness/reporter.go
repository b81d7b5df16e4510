package readiness

import (
	"context"
	"errors"
	"time"

	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/flap"
	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/host/ssh/link"
	"github.com/bowline-k8s/bowline/provider"
)

// Node is where the conditions are written and the events recorded.
type Node interface {
	SetReady(ok bool, reason, message string)
	SetCondition(provider.Condition)
	RecordEvent(kind, reason, message string)
}

// Reporter owns the State of a node. New starts nothing; Run does.
type Reporter struct {
	node    Node
	link    *link.Link
	address string
	grace   time.Duration
	facts   chan func(*State)
	ended   chan struct{} // closed when Run has ended
	flaps   flap.Bound    // of the link's events; Run uses it
}

// New makes a Reporter. to is the link to the host and address its peer; a local host has neither.
// grace is how long the link may be down while the node stays Ready.
func New(node Node, to *link.Link, address string, grace time.Duration) *Reporter {
	return &Reporter{node: node, link: to, address: address, grace: grace, facts: make(chan func(*State), 8), ended: make(chan struct{})}
}

// Runtime reports the runtime's own status.
func (r *Reporter) Runtime(ok bool, reason, message string) {
	r.send(func(s *State) { s.runtime(time.Now(), Status{ok, reason, message}) })
}

// ShuttingDown reports whether the host is about to shut down.
func (r *Reporter) ShuttingDown(going bool) {
	r.send(func(s *State) { s.ShuttingDown = going })
}

func (r *Reporter) send(fact func(*State)) {
	select {
	case r.facts <- fact:
	case <-r.ended:
	}
}

// Run writes the conditions until ctx ends. It ends with an error if another machine answers than the
// managed one: the next driver decides whether that one may take its place.
func (r *Reporter) Run(ctx context.Context) error {
	defer close(r.ended)
	var s State
	var changed <-chan struct{}
	for look := true; ; {
		if look && r.link != nil {
			changed = r.link.Changed()
			if err := r.look(ctx, &s); err != nil {
				return err
			}
		}
		for _, c := range s.Network() {
			r.node.SetCondition(c)
		}
		ready := s.Ready()
		r.node.SetReady(ready.OK, ready.Reason, ready.Message)
		var due <-chan time.Time
		if next := s.next(time.Now()); !next.IsZero() {
			due = time.After(time.Until(next))
		}
		look = true
		select {
		case <-ctx.Done():
			return nil
		case fact := <-r.facts:
			fact(&s)
			look = false
		case <-changed:
		case <-due: // the message of the link has to be current
		}
	}
}

// look reads the state of the link.
func (r *Reporter) look(ctx context.Context, s *State) error {
	state, now := r.link.State(), time.Now()
	if err := otherMachine(state); err != nil {
		return err
	}
	l := Link{Up: state.Up, Address: r.address}
	switch {
	case state.Up && s.Link != nil && s.Link.Up:
	case state.Up:
		klog.FromContext(ctx).Info("Connected to the host", "address", l.Address)
	default:
		down := &link.DownError{Address: l.Address, For: now.Sub(state.Since), Cause: state.Err}
		l.Message, l.Over = hint.Text(down), state.Since.Add(r.grace)
		klog.FromContext(ctx).Error(down, "Lost the link to the host", hint.With(down)...)
	}
	r.recordLink(s.Link, l, now)
	s.link(now, l)
	return nil
}

// recordLink records the event of a change of the link, unless the link comes and goes all the time.
func (r *Reporter) recordLink(before *Link, l Link, now time.Time) {
	if e := linkEvent(before, l); e != nil && (l.Up && r.flaps.Back() || !l.Up && r.flaps.Gone(now)) {
		r.node.RecordEvent(e.kind, e.reason, e.message)
	}
}

// otherMachine returns the link's error if the machine presents a pinned host key other than the
// one that the link requires.
func otherMachine(s link.State) error {
	var key *endpoint.HostKeyError
	if errors.As(s.Err, &key) && key.Problem == endpoint.ProblemOther {
		return s.Err
	}
	return nil
}
