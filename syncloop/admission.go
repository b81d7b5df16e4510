package syncloop

import (
	"context"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/admit"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

// admit judges the pod before the planner decides: by the policy of the machine's
// owner, and by what the node has room for. A pod is judged once, at the first sight
// of what is on the machine: of one that runs there already, neither a stricter policy
// nor a changed node is a reason to end it. Ephemeral containers are judged as they
// come. It reports whether the pod waits for something that nobody announces.
func (w *worker) admit(ctx context.Context, in *plan.Input) (waits bool) {
	if in.Observed.Stale != "" || in.Observed.Seq == 0 {
		return false
	}
	if !w.judged && (w.term != nil || w.phase != pod.Syncing || touched(in.Observed)) {
		w.judged = true
		if t := w.loop.admission.preemptedBy(w.ref.UID); t != nil { // before it had this worker
			w.term = plan.Merge(w.term, t)
		}
	}
	if !w.judged {
		v, known := w.loop.judge(ctx, w.ref.UID)
		if !known {
			in.Hold = "the node has not judged yet whether it takes the pod"
			return true
		}
		w.judged = true
		if v.preempted != nil {
			w.term = plan.Merge(w.term, v.preempted) // before anything of it was started
		}
		if r := v.Rejection; r != nil {
			w.loop.event(w.pod, "", v1.EventTypeWarning, r.Reason, r.Message)
			w.term = &plan.Terminate{At: in.Now, Grace: graceOf(w.pod), Cause: plan.CauseRejected,
				Reason: r.Reason, Message: "Pod was rejected: " + r.Message}
		}
		w.after = slices.Clone(v.after)
	}
	if w.after = w.loop.stillEnding(w.after, in.Now); len(w.after) > 0 {
		in.Hold, waits = "the pods that make room for it have not ended yet", true
	}
	if w.loop.cfg.Policy != (admit.Policy{}) {
		w.refuseEphemeral(in.Observed)
	}
	in.Terminate, in.Pod = w.term, w.allowed()
	return waits
}

// AllowVolume judges the persistent volume behind a volume of the pod by the machine
// owner's policy; volume.Config.Allow. has: the pod was given this very volume before. Its
// containers keep it, as a policy that becomes stricter ends nothing that runs; the
// exemption is of the volume, and not of another one that has taken its name.
func (l *Loop) AllowVolume(p *v1.Pod, volume string, pv *v1.PersistentVolume, has bool) error {
	r := admit.Volume(volume, pv, l.cfg.Policy)
	if r == nil || has && len(l.cfg.PLEG.Cache().Get(p.UID).Containers) > 0 {
		return nil
	}
	return r
}

// reject ends a pod that turned out to be beyond the policy when its volumes were set up.
// Where a container of it runs, that one goes on, and the next one waits.
func (l *Loop) reject(p *v1.Pod, r *admit.Rejection) {
	if slices.ContainsFunc(l.cfg.PLEG.Cache().Get(p.UID).Containers, func(c pod.Container) bool { return c.State == pod.StateRunning }) {
		return
	}
	l.event(p, "", v1.EventTypeWarning, r.Reason, r.Message)
	l.End(p.UID, plan.Terminate{At: time.Now(), Grace: graceOf(p), Cause: plan.CauseRejected,
		Reason: r.Reason, Message: "Pod was rejected: " + r.Message})
}

// touched reports whether the machine has anything of the pod.
func touched(o pod.Observed) bool { return len(o.Sandboxes)+len(o.Containers) > 0 }

// End has a pod of ours ended for the node's own sake. One that has ended by itself
// stays as it is.
func (l *Loop) End(uid types.UID, t plan.Terminate) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := l.workers[uid]; w != nil {
		w.inbox.put(func(m *mail) { m.terminate = plan.Merge(m.terminate, &t) })
	}
}

// Released reports whether nothing of the pod runs, and its volumes are gone.
func (l *Loop) Released(uid types.UID) bool {
	l.mu.Lock()
	w := l.workers[uid]
	l.mu.Unlock()
	if w == nil {
		return true
	}
	w.pub.mu.Lock()
	defer w.pub.mu.Unlock()
	return w.pub.phase >= pod.Terminated && w.pub.released
}

// Ended reports whether nothing of the pod runs, and nothing will.
func (l *Loop) Ended(uid types.UID) bool {
	l.mu.Lock()
	w := l.workers[uid]
	l.mu.Unlock()
	if w == nil {
		return true
	}
	w.pub.mu.Lock()
	defer w.pub.mu.Unlock()
	return w.pub.phase >= pod.Terminated
}

// Active are the pods of which the machine has something, and that have not ended.
func (l *Loop) Active() []*v1.Pod {
	if !l.cfg.Sources.SeenBy(pod.SourceAPI) {
		return nil
	}
	return slices.DeleteFunc(l.cfg.Sources.Pods(), func(p *v1.Pod) bool {
		return pod.IsMirror(p) || terminal(p) || !touched(l.cfg.PLEG.Cache().Get(p.UID)) || l.Ended(p.UID)
	})
}

// refuseEphemeral notes which ephemeral containers are beyond the policy. One that
// has run was let in by the policy of then.
func (w *worker) refuseEphemeral(o pod.Observed) {
	for i := range w.pod.Spec.EphemeralContainers {
		name := w.pod.Spec.EphemeralContainers[i].Name
		if _, known := w.refused[name]; known {
			continue
		}
		if c := o.Newest(name); c != nil && c.State != pod.StateCreated {
			continue
		}
		r := admit.Ephemeral(w.pod, name, w.loop.cfg.Policy)
		if r == nil {
			continue
		}
		if w.refused == nil {
			w.refused = map[string]admit.Rejection{}
		}
		w.refused[name] = *r
		w.loop.event(w.pod, name, v1.EventTypeWarning, r.Reason, r.Message)
	}
}

// allowed is the pod without the ephemeral containers that are refused: what is
// planned and carried out, while the status tells of all.
func (w *worker) allowed() *v1.Pod {
	if len(w.refused) == 0 {
		return w.pod
	}
	p := *w.pod // shallow: only the list is replaced
	p.Spec.EphemeralContainers = slices.DeleteFunc(slices.Clone(p.Spec.EphemeralContainers), func(c v1.EphemeralContainer) bool {
		_, is := w.refused[c.Name]
		return is
	})
	return &p
}
