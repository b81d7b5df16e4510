package syncloop

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

// Static pods differ from others in three ways. Their object in the API server is another one, the
// mirror pod. Only one pod of a name runs at a time. And when no source has the pod any more, its
// mirror pod still gets its status until it has ended.

// mirrorOutlivesSource reports whether the mirror pod of a static pod that no source has any more
// still gets its status, until the pod has ended. An orphan's does not: its spec is unknown.
func (w *worker) mirrorOutlivesSource() bool {
	return w.static && (w.term == nil || w.term.Cause != plan.CauseOrphan)
}

// retainTerminalStatus keeps the final status of a static pod that its source still has, for a mirror
// pod that is created later. false: there is nothing to keep.
func (l *Loop) retainTerminalStatus(w *worker) bool {
	if !w.static {
		return false
	}
	// A pod that was removed from its source did not end by itself: if it is added again, it runs.
	if !w.absent && l.cfg.Sources.RetainTerminalStatus(w.ref.UID, w.status) {
		return true
	}
	l.cfg.Sources.ForgetMirror(w.ref.UID)
	l.cfg.Status.Absent(w.ref.UID) // the mirror pod is deleted, and another one may get its name
	return false
}

// resurrect returns the static pod if it was removed and added again unchanged, or nil. Its UID comes
// from its content, so its next life begins when this one ends.
func (l *Loop) resurrect(w *worker) *v1.Pod {
	if !w.static || !w.absent {
		return nil
	}
	p := l.cfg.Sources.Get(w.ref.UID)
	if p != nil {
		l.register(p)
	}
	return p
}

// attempts returns the smallest attempt numbers for the containers of the pod's next life, so that
// no two instances of one UID have the same number.
func (w *worker) attempts() map[string]uint32 {
	out := map[string]uint32{}
	for name, r := range w.ledger.Names {
		if r.Attempt > 0 {
			out[name] = r.Attempt
		}
	}
	for s := range pod.Statuses(&w.status) {
		if s.ContainerID != "" {
			out[s.Name] = max(out[s.Name], uint32(max(s.RestartCount, 0))+1)
		}
	}
	return out
}

// predecessor returns the UID of a static pod of the same name that must end before this one
// starts: one that came earlier, or one that runs and that no source has.
func (l *Loop) predecessor(w *worker) types.UID {
	l.mu.Lock()
	defer l.mu.Unlock()
	for uid, other := range l.byName[nameOf(w.ref)] {
		if other == w || !other.static {
			continue
		}
		if other.born < w.born || l.cfg.Sources.Get(uid) == nil {
			return uid
		}
	}
	return l.orphanedStatic(w.ref.Namespace, w.ref.Name)
}

// orphanedStatic returns the UID of a static pod of this name that runs without a source and without
// a worker; handleOrphans will give it a worker. The caller holds l.mu.
func (l *Loop) orphanedStatic(namespace, name string) types.UID {
	for _, ref := range l.cfg.PLEG.Cache().Named(namespace, name) {
		if l.workers[ref.UID] != nil || l.cfg.Sources.Get(ref.UID) != nil {
			continue
		}
		if o := l.cfg.PLEG.Cache().Get(ref.UID); staticSource(o) != "" && runs(o) {
			return ref.UID
		}
	}
	return ""
}

// StaticPodEnding reports whether a static pod of this name is still ending, other than the one that
// its source has. Until it has ended, the mirror pod belongs to it.
func (l *Loop) StaticPodEnding(namespace, name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for uid, w := range l.byName[fullName{namespace, name}] {
		if w.static && l.cfg.Sources.Get(uid) == nil {
			return true
		}
	}
	return l.orphanedStatic(namespace, name) != ""
}

// wakeSameName wakes the pods of the same name, which may have waited for this worker's end. l.mu is
// held.
func (l *Loop) wakeSameName(of *worker) {
	if !of.static {
		return
	}
	l.cfg.Sources.PokeMirrored()
	for _, w := range l.byName[nameOf(of.ref)] {
		w.inbox.wake()
	}
}

// seen reports whether the sources that could have this pod have been seen. A static pod needs only
// its own source, not the API server.
func (l *Loop) seen(uid types.UID) bool {
	if l.cfg.Sources.AllSeen() {
		return true
	}
	source := staticSource(l.cfg.PLEG.Cache().Get(uid))
	return source != "" && l.cfg.Sources.SeenBy(source)
}

// withheld reports whether the pod runs from a manifest that cannot be used now. The manifest has
// not been read since this process started, so the pod is left as it is.
func (l *Loop) withheld(uid types.UID) bool {
	return slices.ContainsFunc(l.cfg.PLEG.Cache().Get(uid).Sandboxes, func(s pod.Sandbox) bool { return l.cfg.Sources.Withheld(s.Annotations) })
}

// staticSource returns the source of a static pod from its sandbox's annotations; "" for other
// pods.
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
	return slices.ContainsFunc(o.Sandboxes, func(s pod.Sandbox) bool { return s.Ready }) ||
		slices.ContainsFunc(o.Containers, func(c pod.Container) bool { return c.State == pod.StateRunning })
}

// Resolve returns the UID of the static pod for the UID of its mirror pod, and any other UID
// unchanged.
func (l *Loop) Resolve(uid types.UID) types.UID { return l.cfg.Sources.Resolve(uid) }
