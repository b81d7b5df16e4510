// Package readiness decides what a node's Ready and LinkUp conditions show. A runtime that cannot be
// reached is not necessarily down.
package readiness

import (
	"context"
	"errors"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/connect"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/host/ssh/link"
	"github.com/bowline-k8s/bowline/provider"
)

// linkUp is the node's condition for the link to a remote host.
const linkUp v1.NodeConditionType = "LinkUp"

// Reporter combines the runtime's own status with the state of the link: a runtime that cannot be
// reached is not necessarily down.
type Reporter struct {
	Write func(ok bool, reason, message string) // sets the node's Ready condition
	Delay time.Duration                         // how long a not-ready status waits, as the link may be down

	mu    sync.Mutex
	down  bool // the link is down
	good  bool // the last status shown was ready
	timer *time.Timer
}

// LinkVerdict is how long a dead link may still seem to be up.
const LinkVerdict = 12 * time.Second

// Set handles the runtime's own status.
func (r *Reporter) Set(ok bool, reason, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.timer != nil {
		r.timer.Stop()
		r.timer = nil
	}
	switch {
	case ok:
		r.good = true
		r.Write(true, reason, message)
	case r.down: // an unreachable runtime says nothing about itself
	case !r.good || r.Delay == 0:
		r.good = false
		r.Write(false, reason, message)
	default:
		r.timer = time.AfterFunc(r.Delay, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.timer != nil && !r.down {
				r.good = false
				r.Write(false, reason, message)
			}
		})
	}
}

// link handles the state of the link. over means that it has been down for longer than linkGrace.
func (r *Reporter) link(up, over bool, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = !up
	if !up && r.timer != nil {
		r.timer.Stop()
		r.timer = nil
	}
	if over {
		r.good = false // until the runtime is ready again
		r.Write(false, "LinkDown", message)
	}
}

// WatchLink shows the link's state in the node's conditions: LinkUp at once; NetworkUnavailable,
// which makes the controller manager taint the node; Ready only when the link has been down for
// longer than grace. It ends with an error if another machine answers than the managed one: the
// next driver decides whether that one may take its place.
func WatchLink(ctx context.Context, m *connect.Host, grace time.Duration, ready *Reporter, node *provider.Node) error {
	log := klog.FromContext(ctx)
	for {
		changed := m.Link.Changed()
		state := m.Link.State()
		if err := otherMachine(state); err != nil {
			return err
		}
		var over <-chan time.Time
		if state.Up {
			log.Info("The link to the machine is up", "address", m.Address)
			ready.link(true, false, "")
			node.SetCondition(provider.Condition{Type: linkUp, Status: v1.ConditionTrue, Reason: "LinkUp", Message: "ssh: connected to " + m.Address})
			node.SetCondition(provider.Condition{Type: v1.NodeNetworkUnavailable, Status: v1.ConditionFalse, Reason: "LinkUp", Message: "the machine can be reached"})
		} else {
			down := &link.DownError{Address: m.Address, For: time.Since(state.Since), Cause: state.Err}
			message := down.Error()
			ready.link(false, false, "")
			node.SetCondition(provider.Condition{Type: linkUp, Status: v1.ConditionFalse, Reason: "LinkDown", Message: message})
			node.SetCondition(provider.Condition{Type: v1.NodeNetworkUnavailable, Status: v1.ConditionTrue, Reason: "LinkDown", Message: message})
			log.Info("The link to the machine is down", "err", message)
			left := grace - time.Since(state.Since)
			if left <= 0 {
				ready.link(false, true, message)
			} else {
				over = time.After(left)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-over:
			// Read the state again, so that the message is current.
		}
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
