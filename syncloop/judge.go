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

// admission holds what was judged of each pod of the sources. Who is judged is judged
// beside those that were taken before, so that it makes a difference in which order
// this is done: what the machine has comes first, then the older pod. So it is the
// same after a restart.
type admission struct {
	mu       sync.Mutex
	verdicts map[types.UID]*verdict
	labels   nodeLabels
}

type verdict struct {
	admit.Verdict
	ended bool // its worker has
	// after are pods that end to make room, when this one was judged: it starts when they
	// have ended.
	after []victim
	// preempted: the pod ends to make room for a critical one. It takes no room any more,
	// unless it has not ended by gone.
	preempted *plan.Terminate
	gone      time.Time
	late      bool // it has been told that it has not
}

// victim is a pod that ends to make room, and when that is not waited for any more.
type victim struct {
	uid  types.UID
	gone time.Time
}

// end says that the pod's worker has ended.
func (a *admission) end(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if v := a.verdicts[uid]; v != nil {
		v.ended = true
	}
}

// The words of a pod that ends to make room for a critical one, the kubelet's.
const (
	reasonPreempting  = "Preempting"
	messagePreempting = "Preempted in order to admit critical pod"
	targetPreempting  = "Pod was preempted by Kubelet to accommodate a critical pod."
	reasonTooLong     = "ExceededGracePeriod"
	messageTooLong    = "Container runtime did not kill the pod within specified grace period."
)

// leastPatience is how long the end of a victim is waited for at least; it is half as
// much again as its grace.
const leastPatience = 10 * time.Second

// preempt writes down that the pod gives way: one that has no worker yet, as both came
// together, hears of it when it asks for its own verdict. a.mu is held.
func (a *admission) preempt(p *v1.Pod, now time.Time) {
	v := a.verdicts[p.UID]
	if v == nil { // it ran before this life of ours
		v = &verdict{}
		a.verdicts[p.UID] = v
	}
	grace := graceOf(p)
	v.preempted = preemption(p, now)
	v.gone, v.late = now.Add(max(grace+grace/2, leastPatience)), false
}

// preemption is the end of a pod that gives way.
func preemption(p *v1.Pod, now time.Time) *plan.Terminate {
	return &plan.Terminate{At: now, Grace: graceOf(p), Cause: plan.CauseEvicted,
		Reason: reasonPreempting, Message: messagePreempting, Disruption: targetPreempting}
}

// preemptedBy is how a pod ends that gives way; nil: it does not.
func (a *admission) preemptedBy(uid types.UID) *plan.Terminate {
	a.mu.Lock()
	defer a.mu.Unlock()
	if v := a.verdicts[uid]; v != nil {
		return v.preempted
	}
	return nil
}

// ending are the victims that have not ended yet. a.mu is held.
func (l *Loop) ending(a *admission, now time.Time) []victim {
	var out []victim
	for uid, v := range a.verdicts {
		if v.preempted != nil && !v.ended && now.Before(v.gone) && !l.Ended(uid) {
			out = append(out, victim{uid, v.gone})
		}
	}
	return out
}

// stillEnding are those of the victims that are still waited for.
func (l *Loop) stillEnding(victims []victim, now time.Time) []victim {
	return slices.DeleteFunc(victims, func(v victim) bool {
		if l.Ended(v.uid) {
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

// judge returns the verdict on the pod, and judges with it all that wait for theirs.
// false: it cannot be judged now.
func (l *Loop) judge(ctx context.Context, uid types.UID) (verdict, bool) {
	v, known, unlike := l.judgeBy(ctx, uid, nil)
	if unlike != nil {
		node := l.relabelled(ctx, unlike)
		v, known, _ = l.judgeBy(ctx, uid, &node)
	}
	return v, known
}

// judgeBy judges by what is known of the node. unlike is the pod, which does not match
// the node's labels, while anew is nil: they are to be read anew first, and nobody else
// is to wait for that.
func (l *Loop) judgeBy(ctx context.Context, uid types.UID, anew *admit.Node) (v verdict, known bool, unlike *v1.Pod) {
	a := &l.admission
	var victims []*v1.Pod
	now := time.Now()
	func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if v := a.verdicts[uid]; v != nil && v.ended {
			delete(a.verdicts, uid) // of a static pod that was taken away and is there again
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

// preempt ends pods whose room a critical one needs that has been taken already.
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

// judgeOpen judges those that wait for their verdict. a.mu is held.
func (l *Loop) judgeOpen(ctx context.Context, uid types.UID, anew *admit.Node, now time.Time) (victims []*v1.Pod, unlike *v1.Pod) {
	a := &l.admission
	// A static source that cannot be read holds up nobody.
	all := l.cfg.Sources.SeenBy(pod.SourceAPI)
	if p := l.cfg.Sources.Get(uid); !all && (p == nil || !pod.IsStatic(p)) {
		return nil, nil
	}
	taken, open := l.beside(a, now)
	if !all {
		// Static pods do not wait for the API server to show the others.
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
			continue // its own worker has the labels read anew
		}
		if r := v.Rejection; r != nil {
			klog.FromContext(ctx).Info("The node does not take the pod", "pod", klog.KObj(p), "uid", p.UID, "reason", r.Reason, "message", r.Message)
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

// beside are the pods that the node has taken and that have not ended, and those that
// are still to be judged, in the order in which they are.
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
		case pod.IsMirror(p): // the static pod itself is counted
		case v != nil && (v.Rejection != nil || v.ended):
		case v != nil && v.preempted != nil && now.Before(v.gone): // who is taken waits for its end
		case v != nil, !terminal(p) && touched(o):
			if v == nil || l.unfinished(p.UID) {
				taken = append(taken, l.allocations.claimed(p))
			}
		case terminal(p), p.DeletionTimestamp != nil, o.Stale != "", o.Seq == 0:
		default:
			open = append(open, p)
		}
	}
	a.verdicts = kept // those of pods that no source has any more are forgotten
	slices.SortStableFunc(open, func(x, y *v1.Pod) int {
		return cmp.Or(x.CreationTimestamp.Compare(y.CreationTimestamp.Time), cmp.Compare(x.UID, y.UID))
	})
	return taken, open
}

// unfinished reports whether the pod, which was judged, has not been seen to end. One
// whose worker is yet to come has not.
func (l *Loop) unfinished(uid types.UID) bool {
	l.mu.Lock()
	w := l.workers[uid]
	l.mu.Unlock()
	return w == nil || !l.Ended(uid)
}

// judgeOne judges one pod; matches is false if it is refused by labels of the node that
// may be too old.
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

// nodeLabels are the node as it was last read anew. One call is under way at a time; who
// asked before it began shares what it brought.
type nodeLabels struct {
	mu    sync.Mutex
	began time.Time
	node  admit.Node
	err   error
}

// relabelled is the node with its labels of now: who labels a node and then makes a pod
// for it may be faster than the watch. Where they cannot be had, those that are known are.
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
		klog.FromContext(ctx).V(1).Info("The node's labels could not be read anew", "pod", klog.KObj(p), "err", r.err)
		return l.cfg.Node()
	}
	return r.node
}
