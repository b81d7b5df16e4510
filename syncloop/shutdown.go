package syncloop

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/admit"
	"github.com/bowline-k8s/bowline/syncloop/plan"
	"github.com/bowline-k8s/bowline/syncloop/shutdown"
)

// The methods for graceful node shutdown, which ends pods before the host goes down.

// EndForShutdown ends a pod because its host is about to go down.
func (l *Loop) EndForShutdown(uid types.UID, grace time.Duration) {
	l.End(uid, plan.Terminate{At: time.Now(), Grace: grace, Cause: plan.CauseShutdown, Reason: shutdown.ReasonTerminated,
		Message: shutdown.MessageTerminated, Disruption: shutdown.MessageTerminated})
}

// AllKnown reports whether the API server's pods have been seen, and each pod of a source that has
// not ended has a worker.
func (l *Loop) AllKnown() bool {
	if !l.cfg.Sources.SeenBy(pod.SourceAPI) {
		return false
	}
	return !slices.ContainsFunc(l.cfg.Sources.Pods(), func(p *v1.Pod) bool {
		return !pod.IsMirror(p) && !pod.Terminal(p.Status.Phase) && !l.State(p.UID).Managed
	})
}

// Unended returns the pods that have not ended, whether or not anything of them runs.
func (l *Loop) Unended() []*v1.Pod {
	return slices.DeleteFunc(l.cfg.Sources.Pods(), func(p *v1.Pod) bool {
		return pod.IsMirror(p) || pod.Terminal(p.Status.Phase) || l.State(p.UID).Ended()
	})
}

// Revive restarts the static pods that a shutdown has ended or kept from starting; no controller
// recreates them. pending: some of them are still ending.
func (l *Loop) Revive() (pending bool) {
	for _, p := range l.cfg.Sources.Pods() {
		if !pod.IsStatic(p) {
			continue
		}
		// The state before the object, because a worker leaves its last status there before it goes.
		s, status := l.State(p.UID), l.current(p).Status
		if s.Status != nil {
			status = *s.Status
		}
		ended := status.Reason == shutdown.ReasonTerminated || status.Reason == admit.ReasonShutdown
		switch {
		case s.Ending(), s.Managed && (ended || s.Status == nil):
			pending = true // its status does not have the reason yet, or the node may still reject it
		case ended:
			l.cfg.Sources.ClearTerminalStatus(p.UID)
		}
	}
	return pending
}
