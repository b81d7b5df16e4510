package main

import (
	"fmt"
	"time"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/hosts"
)

// word is the last one on whether the node is Ready.
type word struct {
	ok              bool
	reason, message string
}

// madeOf are the annotations by which a node is known to be a Host object's.
func madeOf(cfg *config.Host) map[string]string {
	if cfg.HostObject == "" {
		return nil
	}
	return map[string]string{v1alpha1.HostAnnotation: cfg.HostObject}
}

// report is what the node says of its host, which was given as cfg.
func (n *node) report(cfg *config.Host) hosts.Report {
	r := hosts.Report{
		Config: cfg, NodeName: n.name, RuntimeName: n.seen.load().version.GetRuntimeName(), RuntimeVersion: n.seen.load().version.GetRuntimeVersion(),
		Pods: len(n.pleg.Cache().Known()), Reason: "NotRegistered", Message: "the node is not registered yet",
	}
	if n.host.link != nil {
		state := n.host.link.State()
		r.Link = &hosts.Link{Up: state.Up, RTT: state.RTT, Message: "ssh: connected to " + n.host.address}
		if !state.Up {
			// The same words as long as it is the same outage: each change is written.
			r.Link.Message = fmt.Sprintf("ssh: no connection to %s since %s", n.host.address, state.Since.UTC().Format(time.RFC3339))
			if state.Err != nil {
				r.Link.Message += ": " + state.Err.Error()
			}
		}
	}
	r.Exposed = n.exposed.report()
	select {
	case <-n.node.Registered():
	default:
		return r
	}
	r.Reason, r.Message = "KubeletNotReady", "the container runtime has not said yet whether it is ready"
	if w := n.said.Load(); w != nil {
		r.Ready, r.Reason, r.Message = w.ok, w.reason, w.message
	}
	return r
}
