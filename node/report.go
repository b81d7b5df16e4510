package node

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/hosts"
)

// madeOf returns the annotation that names the Host object of a node; nil without one.
func madeOf(cfg *config.Host) map[string]string {
	if cfg.HostObject == "" {
		return nil
	}
	return map[string]string{v1alpha1.HostAnnotation: cfg.HostObject}
}

// Report returns the node's state for the Host object's status. cfg is the host's configuration as
// it was given to the driver.
func (n *Node) Report(cfg *config.Host) hosts.Report {
	r := hosts.Report{
		Config: cfg, NodeName: n.name, RuntimeName: n.seen.load().version.GetRuntimeName(), RuntimeVersion: n.seen.load().version.GetRuntimeVersion(),
		Pods: len(n.pleg.Cache().Known()), Reason: "NotRegistered", Message: "the node is not registered yet",
	}
	if n.host.Link != nil {
		state := n.host.Link.State()
		r.Link = &hosts.Link{Up: state.Up, RTT: state.RTT, Message: "ssh: connected to " + n.host.Address}
		if !state.Up {
			// Same message for the whole outage: each change is one write.
			r.Link.Message = fmt.Sprintf("ssh: no connection to %s since %s", n.host.Address, state.Since.UTC().Format(time.RFC3339))
			if state.Err != nil {
				r.Link.Message += ": " + hint.Text(state.Err)
			}
		}
	}
	r.Exposed, r.Unlocked = n.exposed.report(), !n.held.Held()
	select {
	case <-n.node.Registered():
	default:
		return r
	}
	ready := n.node.Ready()
	r.Ready, r.Reason, r.Message = ready.Status == v1.ConditionTrue, ready.Reason, ready.Message
	return r
}
