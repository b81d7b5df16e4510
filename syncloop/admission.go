package syncloop

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/admit"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

// admit judges the pod by the policy of the machine's owner, before the planner
// decides. A pod is judged once, at the first sight of what is on the machine: of
// one that runs there already, what a stricter policy of later says is no reason to
// end it. Ephemeral containers are judged as they come.
func (w *worker) admit(in *plan.Input) {
	policy := w.loop.cfg.Policy
	if policy == (admit.Policy{}) || in.Observed.Stale != "" || in.Observed.Seq == 0 {
		return
	}
	if !w.judged {
		w.judged = true
		untouched := len(in.Observed.Sandboxes) == 0 && len(in.Observed.Containers) == 0
		if w.term == nil && w.phase == pod.Syncing && untouched {
			if r := admit.Pod(w.pod, policy); r != nil {
				w.loop.event(w.pod, "", v1.EventTypeWarning, r.Reason, r.Message)
				w.term = &plan.Terminate{At: in.Now, Grace: graceOf(w.pod), Cause: plan.CauseRejected,
					Reason: r.Reason, Message: "Pod was rejected: " + r.Message}
			}
		}
	}
	w.refuseEphemeral(in.Observed)
	in.Terminate, in.Pod = w.term, w.allowed()
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
