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

// What the loop is to who ends its pods before the machine goes down.

// EndForShutdown has a pod ended because its machine is about to go down.
func (l *Loop) EndForShutdown(uid types.UID, grace time.Duration) {
	l.End(uid, plan.Terminate{At: time.Now(), Grace: grace, Cause: plan.CauseShutdown, Reason: shutdown.ReasonTerminated,
		Message: shutdown.MessageTerminated, Disruption: shutdown.MessageTerminated})
}

// AllKnown reports whether the API server's pods have been seen, and each pod of a source
// that has not ended has its worker.
func (l *Loop) AllKnown() bool {
	if !l.cfg.Sources.SeenBy(pod.SourceAPI) {
		return false
	}
	return !slices.ContainsFunc(l.cfg.Sources.Pods(), func(p *v1.Pod) bool {
		return !pod.IsMirror(p) && !terminal(p) && !l.has(p.UID)
	})
}

// Unended are the pods that have not ended, whether or not anything of them runs.
func (l *Loop) Unended() []*v1.Pod {
	return slices.DeleteFunc(l.cfg.Sources.Pods(), func(p *v1.Pod) bool {
		return pod.IsMirror(p) || terminal(p) || l.Ended(p.UID)
	})
}

// Told reports whether the pod has ended, and who has its object knows.
func (l *Loop) Told(uid types.UID) bool { return !l.has(uid) }

func (l *Loop) has(uid types.UID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.workers[uid] != nil
}

// Revive has the static pods run again that a shutdown has ended, or kept from starting:
// nobody else makes them anew. pending: of some the end is not over yet.
func (l *Loop) Revive() (pending bool) {
	for _, p := range l.Pods() {
		if !pod.IsStatic(p) {
			continue
		}
		if l.ends(p.UID) { // what it ends of is told with its end
			pending = true
			continue
		}
		if p.Status.Reason != shutdown.ReasonTerminated && p.Status.Reason != admit.ReasonShutdown {
			continue
		}
		if l.has(p.UID) {
			pending = true
			continue
		}
		l.cfg.Sources.Unsettle(p.UID)
	}
	return pending
}

// ends reports whether the pod is on its way out.
func (l *Loop) ends(uid types.UID) bool {
	l.mu.Lock()
	w := l.workers[uid]
	l.mu.Unlock()
	if w == nil {
		return false
	}
	w.pub.mu.Lock()
	defer w.pub.mu.Unlock()
	return w.pub.phase > pod.Syncing
}

// Lives reports whether a static pod lives: it has been seen, and nothing says that it
// has ended, or is about to.
func (l *Loop) Lives(uid types.UID) bool {
	l.mu.Lock()
	w := l.workers[uid]
	l.mu.Unlock()
	if w == nil {
		return false
	}
	w.pub.mu.Lock()
	defer w.pub.mu.Unlock()
	st := w.pub.status
	return w.pub.phase == pod.Syncing && st != nil && (st.Phase == v1.PodPending || st.Phase == v1.PodRunning)
}
