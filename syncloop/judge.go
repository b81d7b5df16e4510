package syncloop

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/admit"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

// admission holds the admission verdicts of the pods of the sources. A pod is judged beside the
// pods that were admitted before it, so the order matters: pods that already have something on the
// host come first, then the older pod. The result is therefore the same after a restart.
type admission struct {
	mu       sync.Mutex
	verdicts map[types.UID]*verdict
	labels   nodeLabels
}

type verdict struct {
	admit.Verdict
	ended bool // the pod's worker has ended
	// after holds the preempted pods that had not ended when this pod was judged. It starts when
	// they have ended.
	after []victim
	// preempted is set if the pod ends to make room for a critical pod. The pod then takes no room
	// any more, unless it has not ended by gone.
	preempted *plan.Terminate
	gone      time.Time
	late      bool // the event ExceededGracePeriod has been recorded
}

// victim is a preempted pod, and the time after which its end is not waited for.
type victim struct {
	uid  types.UID
	gone time.Time
}

// end records that the pod's worker has ended.
func (a *admission) end(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if v := a.verdicts[uid]; v != nil {
		v.ended = true
	}
}

// The kubelet's reasons and messages for a pod that a critical pod preempts.
const (
	reasonPreempting  = "Preempting"
	messagePreempting = "Preempted in order to admit critical pod"
	targetPreempting  = "Pod was preempted by Kubelet to accommodate a critical pod."
	reasonTooLong     = "ExceededGracePeriod"
	messageTooLong    = "Container runtime did not kill the pod within specified grace period."
)

// leastPatience is the least time to wait for a victim's end; the rule is 1.5 times its grace
// period.
const leastPatience = 10 * time.Second

// preempt records that the pod is preempted. If it has no worker yet, because it arrived together
// with the critical pod, its worker learns it with its own verdict. a.mu is held.
func (a *admission) preempt(p *v1.Pod, now time.Time) {
	v := a.verdicts[p.UID]
	if v == nil { // it ran before this process started
		v = &verdict{}
		a.verdicts[p.UID] = v
	}
	grace := graceOf(p)
	v.preempted = preemption(p, now)
	v.gone, v.late = now.Add(max(grace+grace/2, leastPatience)), false
}

// preemption returns the request to end a preempted pod.
func preemption(p *v1.Pod, now time.Time) *plan.Terminate {
	return &plan.Terminate{At: now, Grace: graceOf(p), Cause: plan.CauseEvicted,
		Reason: reasonPreempting, Message: messagePreempting, Disruption: targetPreempting}
}

// preemptedBy returns the request to end a preempted pod, or nil.
func (a *admission) preemptedBy(uid types.UID) *plan.Terminate {
	a.mu.Lock()
	defer a.mu.Unlock()
	if v := a.verdicts[uid]; v != nil {
		return v.preempted
	}
	return nil
}

// ending returns the victims that have not ended. a.mu is held.
func (l *Loop) ending(a *admission, now time.Time) []victim {
	var out []victim
	for uid, v := range a.verdicts {
		if v.preempted != nil && !v.ended && now.Before(v.gone) && !l.State(uid).Ended() {
			out = append(out, victim{uid, v.gone})
		}
	}
	return out
}

// stillEnding returns the victims that are still waited for. It records an event, once, for each
// that has not ended in time.
func (l *Loop) stillEnding(victims []victim, now time.Time) []victim {
	return slices.DeleteFunc(victims, func(v victim) bool {
		if l.State(v.uid).Ended() {
			return true
		}
		if now.Before(v.gone) {
			return false
		}
		l.admission.mu.Lock()
		of := l.admission.verdicts[v.uid]
		tell := of != nil && !of.late
		if tell {
			of.late = true
		}
		l.admission.mu.Unlock()
		if p := l.cfg.Sources.Get(v.uid); tell && p != nil {
			l.event(p, "", v1.EventTypeWarning, reasonTooLong, messageTooLong)
		}
		return true
	})
}

// judge returns the admission verdict on the pod, and also judges all other pods that wait for
// theirs. false: the pod cannot be judged now.
func (l *Loop) judge(ctx context.Context, uid types.UID) (verdict, bool) {
	v, known, unlike := l.judgeBy(ctx, uid, nil)
	if unlike != nil {
		node := l.relabelled(ctx, unlike)
		v, known, _ = l.judgeBy(ctx, uid, &node)
	}
	return v, known
}

// judgeBy judges the pod against anew, or against the cached node if anew is nil. unlike is set to
// the pod if it fails node affinity against cached labels. The caller then re-reads the Node
// without a.mu, so that no other pod waits for it, and calls again.
func (l *Loop) judgeBy(ctx context.Context, uid types.UID, anew *admit.Node) (v verdict, known bool, unlike *v1.Pod) {
	a := &l.admission
	var victims []*v1.Pod
	now := time.Now()
	func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if v := a.verdicts[uid]; v != nil && v.ended {
			delete(a.verdicts, uid) // a static pod that was removed and is back
		}
		if a.verdicts[uid] == nil {
			victims, unlike = l.judgeOpen(ctx, uid, anew, now)
		}
		if found := a.verdicts[uid]; found != nil && unlike == nil {
			v, known = *found, true
		}
	}()
	l.endPreempted(victims, now)
	return v, known, unlike
}

// preempt ends admitted pods whose room a critical pod needs.
func (l *Loop) preempt(victims []*v1.Pod, now time.Time) {
	if len(victims) == 0 {
		return
	}
	l.admission.mu.Lock()
	for _, p := range victims {
		l.admission.preempt(p, now)
	}
	l.admission.mu.Unlock()
	l.endPreempted(victims, now)
}

func (l *Loop) endPreempted(victims []*v1.Pod, now time.Time) {
	for _, p := range victims {
		l.event(p, "", v1.EventTypeWarning, reasonPreempting, messagePreempting)
		l.End(p.UID, *preemption(p, now))
	}
}

// judgeOpen judges the pods that wait for a verdict. a.mu is held.
func (l *Loop) judgeOpen(ctx context.Context, uid types.UID, anew *admit.Node, now time.Time) (victims []*v1.Pod, unlike *v1.Pod) {
	a := &l.admission
	// Only the API source counts here: a static source that cannot be read must not block other
	// pods.
	all := l.cfg.Sources.SeenBy(pod.SourceAPI)
	if p := l.cfg.Sources.Get(uid); !all && (p == nil || !pod.IsStatic(p)) {
		return nil, nil
	}
	taken, open := l.beside(a, now)
	if !all {
		// Static pods do not wait until the API server's pods are known.
		open = slices.DeleteFunc(open, func(p *v1.Pod) bool { return !pod.IsStatic(p) })
	}
	for _, p := range open {
		node := anew
		if p.UID != uid {
			node = nil
		}
		v, matches := l.judgeOne(p, taken, node)
		if !matches {
			if p.UID == uid {
				return victims, p
			}
			continue // its own worker re-reads the labels
		}
		if r := v.Rejection; r != nil {
			klog.FromContext(ctx).Info("Rejected the pod", "pod", klog.KObj(p), "uid", p.UID, "reason", r.Reason, "message", r.Message)
		} else {
			taken = append(taken, p)
		}
		for _, q := range v.Preempt {
			a.preempt(q, now)
		}
		victims = append(victims, v.Preempt...)
		taken = slices.DeleteFunc(taken, func(q *v1.Pod) bool { return slices.Contains(v.Preempt, q) })
		a.verdicts[p.UID] = &verdict{Verdict: v, after: l.ending(a, now)}
	}
	return victims, nil
}

// beside returns the admitted pods that have not ended, and the pods that still have to be judged,
// in the order in which they are judged.
func (l *Loop) beside(a *admission, now time.Time) (taken, open []*v1.Pod) {
	all := l.cfg.Sources.Pods()
	kept := make(map[types.UID]*verdict, len(all))
	for _, p := range all {
		v := a.verdicts[p.UID]
		if v != nil {
			kept[p.UID] = v
		}
		o := l.cfg.PLEG.Cache().Get(p.UID)
		switch {
		case pod.IsMirror(p): // the static pod itself counts
		case v != nil && (v.Rejection != nil || v.ended):
		case v != nil && v.preempted != nil && now.Before(v.gone): // room counts as free; the next pod waits for its end
		case v != nil, !pod.Terminal(p.Status.Phase) && touched(o):
			// A pod without a worker has not ended: its worker has yet to start.
			if s := l.State(p.UID); v == nil || !s.Managed || !s.Ended() {
				taken = append(taken, l.allocations.claimed(p))
			}
		case pod.Terminal(p.Status.Phase), p.DeletionTimestamp != nil, o.Stale != "", o.Seq == 0:
		default:
			open = append(open, p)
		}
	}
	a.verdicts = kept // verdicts on pods that no source has any more are dropped
	slices.SortStableFunc(open, func(x, y *v1.Pod) int {
		return cmp.Or(x.CreationTimestamp.Compare(y.CreationTimestamp.Time), cmp.Compare(x.UID, y.UID))
	})
	return taken, open
}

// judgeOne judges one pod. matches is false if node affinity fails against labels that may be
// stale.
func (l *Loop) judgeOne(p *v1.Pod, taken []*v1.Pod, anew *admit.Node) (v admit.Verdict, matches bool) {
	if r := admit.Pod(p, l.cfg.Policy); r != nil {
		return admit.Verdict{Rejection: r}, true
	}
	switch {
	case l.cfg.Node == nil:
		return admit.Verdict{}, true
	case anew != nil:
		return admit.OnNode(p, taken, *anew), true
	}
	v = admit.OnNode(p, taken, l.cfg.Node())
	return v, v.Rejection == nil || v.Rejection.Reason != admit.ReasonNodeAffinity || l.cfg.Reread == nil
}

// rereadTimeout bounds the one call to the API server that a judgement may need.
const rereadTimeout = 5 * time.Second

// nodeLabels is the Node as it was last re-read. One call is under way at a time; everyone who
// asked before it began shares its result.
type nodeLabels struct {
	mu    sync.Mutex
	began time.Time
	node  admit.Node
	err   error
}

// relabelled re-reads the Node: someone who labels a node and then creates a pod for it may be
// faster than the watch. If the read fails, it returns the cached node.
func (l *Loop) relabelled(ctx context.Context, p *v1.Pod) admit.Node {
	asked, r := time.Now(), &l.admission.labels
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.began.After(asked) {
		r.began = time.Now()
		ctx, cancel := context.WithTimeout(ctx, rereadTimeout)
		defer cancel()
		r.node, r.err = l.cfg.Reread(ctx)
	}
	if r.err != nil {
		klog.FromContext(ctx).V(1).Info("Failed to re-read the node's labels", "pod", klog.KObj(p), "err", r.err)
		return l.cfg.Node()
	}
	return r.node
}
