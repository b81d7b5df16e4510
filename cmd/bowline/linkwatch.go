package main

import (
	"context"
	"errors"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/host/ssh/link"
	"github.com/bowline-k8s/bowline/provider"
)

// linkUp is the node's condition that tells of the link to a far machine.
const linkUp v1.NodeConditionType = "LinkUp"

// readiness joins what the runtime says of itself with the state of the link: a
// runtime that cannot be asked is not one that is down.
type readiness struct {
	set   func(ok bool, reason, message string) // the node's Ready
	delay time.Duration                         // that a bad word waits for the link's

	mu    sync.Mutex
	down  bool // the link is, or was when the last bad word came
	good  bool // the last word that counts was a good one
	timer *time.Timer
}

// linkVerdict is how long a link that is dead may seem to be up.
const linkVerdict = 12 * time.Second

// word is the runtime's own on itself.
func (r *readiness) word(ok bool, reason, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.timer != nil {
		r.timer.Stop()
		r.timer = nil
	}
	switch {
	case ok:
		r.good = true
		r.set(true, reason, message)
	case r.down: // who cannot be asked says nothing
	case !r.good || r.delay == 0:
		r.good = false
		r.set(false, reason, message)
	default:
		r.timer = time.AfterFunc(r.delay, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.timer != nil && !r.down {
				r.good = false
				r.set(false, reason, message)
			}
		})
	}
}

// link tells of the link; over says that it has been down for longer than it may.
func (r *readiness) link(up, over bool, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = !up
	if !up && r.timer != nil {
		r.timer.Stop()
		r.timer = nil
	}
	if over {
		r.good = false // until the runtime says so again
		r.set(false, "LinkDown", message)
	}
}

// watchLink shows the link's state in the node's conditions: LinkUp at once, and
// NetworkUnavailable, for which the controller manager keeps new pods away; Ready
// only when the link has been down for longer than grace. It ends with an error where
// another machine answers than the one that is driven: whether that one may take its place
// is found out by a new drive.
func watchLink(ctx context.Context, m *machine, grace time.Duration, ready *readiness, node *provider.Node) error {
	log := klog.FromContext(ctx)
	for {
		changed := m.link.Changed()
		state := m.link.State()
		if err := otherMachine(state); err != nil {
			return err
		}
		var over <-chan time.Time
		if state.Up {
			log.Info("The link to the machine is up", "address", m.address)
			ready.link(true, false, "")
			node.SetCondition(provider.Condition{Type: linkUp, Status: v1.ConditionTrue, Reason: "LinkUp", Message: "ssh: connected to " + m.address})
			node.SetCondition(provider.Condition{Type: v1.NodeNetworkUnavailable, Status: v1.ConditionFalse, Reason: "LinkUp", Message: "the machine can be reached"})
		} else {
			down := &link.DownError{Address: m.address, For: time.Since(state.Since), Cause: state.Err}
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
			// The state is read once more: the words are those of now.
		}
	}
}

// otherMachine is why the link is down, where that is a host key which is pinned and is
// not the one that the link is held to.
func otherMachine(s link.State) error {
	var key *endpoint.HostKeyError
	if errors.As(s.Err, &key) && key.Problem == endpoint.ProblemOther {
		return s.Err
	}
	return nil
}
