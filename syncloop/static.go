package syncloop

import (
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

// What is different for a static pod: its object in the API server is another, its
// mirror pod; it has a name of which one runs at a time; and when no source has it any
// more, its mirror pod still tells how it ends.

// mourned: no source has the static pod any more, and its mirror pod is there until it
// has ended. Of an orphan nobody knows what it should be.
func (w *worker) mourned() bool {
	return w.static && (w.term == nil || w.term.Cause != plan.CauseOrphan)
}

// settleStatic keeps the end of a static pod that its source still has, for a mirror pod
// that comes later. false: there is nothing to keep.
func (l *Loop) settleStatic(w *worker) bool {
	if !w.static {
		return false
	}
	// One that was taken away did not end by itself: where it is there again, it is to run.
	if !w.absent && l.cfg.Sources.Settle(w.ref.UID, w.status) {
		return true
	}
	l.cfg.Sources.Bury(w.ref.UID)
	l.cfg.Status.Absent(w.ref.UID) // the mirror pod goes, and another may come by its name
	return false
}

// again is a static pod that was taken away and is there again, as it was: its UID is
// that of what was written, so that a life of it begins as the one before ends.
func (l *Loop) again(w *worker) *v1.Pod {
	if !w.static || !w.absent {
		return nil
	}
	p := l.cfg.Sources.Get(w.ref.UID)
	if p != nil {
		l.register(p)
	}
	return p
}

// attempts are the least numbers that a next life of the pod gives to its containers: no
// instance of one UID has the number of another.
func (w *worker) attempts() map[string]uint32 {
	out := map[string]uint32{}
	maps.Copy(out, w.ledger.Attempts)
	for _, s := range slices.Concat(w.status.InitContainerStatuses, w.status.ContainerStatuses) {
		if s.ContainerID != "" {
			out[s.Name] = max(out[s.Name], uint32(max(s.RestartCount, 0))+1)
		}
	}
	return out
}

// hold is why the pod, of which o was observed, may not start anything now, or empty.
func (w *worker) hold(o *pod.Observed) string {
	if hold := w.loop.hold(w.pod); hold != "" {
		return hold
	}
	if users := w.pod.Spec.HostUsers; users != nil && !*users && usersOf(o) == nil && !w.loop.cfg.PLEG.Whole() {
		// It has no range yet, and one that looks free may be of a sandbox that has not
		// been looked at.
		return "it is not known yet which users the pods have that run already"
	}
	if !w.static {
		return ""
	}
	if other := w.loop.predecessor(w); other != "" {
		return fmt.Sprintf("another static pod of this name (%s) has not ended", other)
	}
	return ""
}

// predecessor is the UID of a static pod of the same name that has to end before this
// one starts: one that came before it, or one that runs and that no source has.
func (l *Loop) predecessor(w *worker) types.UID {
	l.mu.Lock()
	defer l.mu.Unlock()
	for uid, other := range l.workers {
		if other == w || !namesakes(other.ref, w.ref) || !other.static {
			continue
		}
		if other.born < w.born || l.cfg.Sources.Get(uid) == nil {
			return uid
		}
	}
	return l.left(w.ref.Namespace, w.ref.Name)
}

// left is the UID of a static pod of this name that runs, and that neither a source nor a
// worker has: handleOrphans will give it one. l.mu is held.
func (l *Loop) left(namespace, name string) types.UID {
	for _, ref := range l.cfg.PLEG.Cache().Known() {
		if ref.Namespace != namespace || ref.Name != name || l.workers[ref.UID] != nil || l.cfg.Sources.Get(ref.UID) != nil {
			continue
		}
		if o := l.cfg.PLEG.Cache().Get(ref.UID); staticSource(o) != "" && runs(o) {
			return ref.UID
		}
	}
	return ""
}

// Ending says whether a static pod of this name still ends, beside the one that its
// source has: its mirror pod is its own until then.
func (l *Loop) Ending(namespace, name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for uid, w := range l.workers {
		if w.ref.Namespace == namespace && w.ref.Name == name && w.static && l.cfg.Sources.Get(uid) == nil {
			return true
		}
	}
	return l.left(namespace, name) != ""
}

// succeed lets those go on that may have waited for the end of this one; l.mu is held.
func (l *Loop) succeed(of *worker) {
	if !of.static {
		return
	}
	l.cfg.Sources.PokeMirrored()
	for _, w := range l.workers {
		if namesakes(w.ref, of.ref) {
			w.inbox.wake()
		}
	}
}

func namesakes(a, b pod.Ref) bool { return a.Namespace == b.Namespace && a.Name == b.Name }

// seen says whether it is known which pods there should be, as far as it concerns this
// one: whether a static pod is wanted is known without the API server.
func (l *Loop) seen(uid types.UID) bool {
	if l.cfg.Sources.AllSeen() {
		return true
	}
	source := staticSource(l.cfg.PLEG.Cache().Get(uid))
	return source != "" && l.cfg.Sources.SeenBy(source)
}

// withheld says that the pod runs by a manifest that cannot be used now. What it is has
// not been seen since our start, so that it is left as it is.
func (l *Loop) withheld(uid types.UID) bool {
	o := l.cfg.PLEG.Cache().Get(uid)
	for i := range o.Sandboxes {
		if l.cfg.Sources.Withheld(o.Sandboxes[i].Annotations) {
			return true
		}
	}
	return false
}

// staticSource is the source of a static pod, as its sandbox tells; empty for others.
func staticSource(o pod.Observed) string {
	for i := range o.Sandboxes {
		p := v1.Pod{}
		if p.Annotations = o.Sandboxes[i].Annotations; pod.IsStatic(&p) {
			return p.Annotations[pod.AnnotationSource]
		}
	}
	return ""
}

func runs(o pod.Observed) bool {
	for i := range o.Sandboxes {
		if o.Sandboxes[i].Ready {
			return true
		}
	}
	for i := range o.Containers {
		if o.Containers[i].State == pod.StateRunning {
			return true
		}
	}
	return false
}

// Resolve turns the UID of a mirror pod into that of the static pod it stands for.
func (l *Loop) Resolve(uid types.UID) types.UID { return l.cfg.Sources.Resolve(uid) }
