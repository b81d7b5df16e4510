package syncloop

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/config"
	"github.com/bowline-k8s/bowline/syncloop/plan"
	"github.com/bowline-k8s/bowline/syncloop/pleg"
)

// handle turns one change of the sources into mail.
func (l *Loop) handle(ctx context.Context, change config.Change) {
	p := change.Pod
	ref := pod.Ref{Namespace: p.Namespace, Name: p.Name, UID: p.UID}
	klog.FromContext(ctx).V(2).Info("Pod changed", "op", change.Op, "source", change.Source,
		"pod", klog.KRef(ref.Namespace, ref.Name), "uid", ref.UID)
	now := time.Now()
	switch change.Op {
	case config.Add:
		l.register(p)
		l.adoptReadiness(p)
		l.tell(ctx, ref, p, ending(p, now, true), false)
	case config.Update, config.Delete:
		if l.over(p) {
			return
		}
		l.register(p)
		l.tell(ctx, ref, p, ending(p, now, false), false)
	case config.Reconcile:
		l.cfg.Status.Reconcile(cmp.Or(change.Mirror, p))
		if l.over(p) {
			return
		}
		l.tell(ctx, ref, p, nil, false)
	case config.Remove:
		end := &plan.Terminate{At: now, Grace: graceOf(p), Cause: plan.CauseDeleted}
		l.tell(ctx, ref, p, end, true)
	}
}

// register has the objects followed that the pod names, while it has a use for them: a node
// is refused those of a pod that is gone, and what is released is not to be named again by
// an update that comes late.
func (l *Loop) register(p *v1.Pod) {
	l.naming.Lock()
	defer l.naming.Unlock()
	if !terminal(p) && !l.released[p.UID] {
		l.cfg.Objects.Register(p)
	}
}

// unregister ends that: for good, as long as the pod has a worker.
func (l *Loop) unregister(uid types.UID, worker bool) {
	l.naming.Lock()
	defer l.naming.Unlock()
	if worker {
		l.released[uid] = true
	} else {
		delete(l.released, uid)
	}
	l.cfg.Objects.Unregister(uid)
}

// over says whether the pod has ended, needs no more of us until it is deleted,
// and has no worker: its containers are kept for their logs.
func (l *Loop) over(p *v1.Pod) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.workers[p.UID] == nil && terminal(p) && p.DeletionTimestamp == nil
}

func terminal(p *v1.Pod) bool {
	return p.Status.Phase == v1.PodSucceeded || p.Status.Phase == v1.PodFailed
}

// ending is the request that the API object itself carries, or nil. adopted: we
// see the pod for the first time, so a deletion may have begun long before us.
func ending(p *v1.Pod, now time.Time, adopted bool) *plan.Terminate {
	switch {
	case p.DeletionTimestamp != nil:
		grace := graceOf(p)
		at := now
		if adopted {
			// Not earlier than the request, not later than now, whatever the
			// API server's clock says.
			at = p.DeletionTimestamp.Add(-grace)
			if at.After(now) {
				at = now
			}
			if at.Before(now.Add(-grace)) {
				at = now.Add(-grace)
			}
		}
		return &plan.Terminate{At: at, Grace: grace, Cause: plan.CauseDeleted}
	case terminal(p):
		return &plan.Terminate{
			At: now, Grace: graceOf(p), Cause: plan.CauseFinished,
			Reason: p.Status.Reason, Message: p.Status.Message,
		}
	}
	return nil
}

// tell sends the pod and, where it is to end, how.
func (l *Loop) tell(ctx context.Context, ref pod.Ref, p *v1.Pod, end *plan.Terminate, absent bool) {
	l.send(ctx, ref, pod.IsStatic(p), func(m *mail) {
		m.pod = p
		// A life of a static pod that is over may have left its status in what was under way.
		if now := l.cfg.Sources.Get(ref.UID); now != nil && pod.IsStatic(now) {
			m.pod = now
		}
		m.terminate = plan.Merge(m.terminate, end)
		m.absent = m.absent || absent
	})
}

func (l *Loop) handleObserved(uids []types.UID) {
	for _, uid := range uids {
		if uid == pleg.All {
			l.wakeAll()
			return
		}
		l.wake(uid)
	}
}

// handleContent makes a pod look at its volumes: a configMap, secret or token
// that it mounts has changed, or now exists.
func (l *Loop) handleContent(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := l.workers[uid]; w != nil {
		w.inbox.put(func(m *mail) { m.volumes = true })
	}
}

// handleOrphans gives a worker to every pod that runs and that no source has:
// what a lost deletion, or a deletion while we were away, leaves behind.
//
// No more than maxOrphans of them have one at a time: which pods there are is what the
// host says. The others wait for one to end.
func (l *Loop) handleOrphans(ctx context.Context) {
	room := maxOrphans - l.orphans()
	for _, ref := range l.cfg.PLEG.Cache().Known() {
		if !l.seen(ref.UID) {
			continue
		}
		l.mu.Lock()
		w := l.workers[ref.UID]
		l.mu.Unlock()
		if w != nil || l.cfg.Sources.Get(ref.UID) != nil || l.withheld(ref.UID) {
			continue
		}
		if room--; room < 0 {
			return
		}
		klog.FromContext(ctx).Info("A pod of ours runs and no source has it; it is ended",
			"pod", klog.KRef(ref.Namespace, ref.Name), "uid", ref.UID)
		p := describe(l.cfg.PLEG.Cache().Get(ref.UID), l.cfg.NodeName)
		l.tell(ctx, ref, p, &plan.Terminate{At: time.Now(), Grace: graceOf(p), Cause: plan.CauseOrphan}, true)
	}
}

const maxOrphans = 32

// orphans is how many workers have a pod that no source has.
func (l *Loop) orphans() (n int) {
	l.mu.Lock()
	uids := slices.Collect(maps.Keys(l.workers))
	l.mu.Unlock()
	for _, uid := range uids {
		if l.cfg.Sources.Get(uid) == nil {
			n++
		}
	}
	return n
}

// describe makes up the pod of an orphan from what runs.
func describe(o pod.Observed, node string) *v1.Pod {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: o.Ref.Namespace, Name: o.Ref.Name, UID: o.Ref.UID},
		Spec:       v1.PodSpec{NodeName: node, RestartPolicy: v1.RestartPolicyNever},
	}
	if source := staticSource(o); source != "" {
		p.Annotations = map[string]string{pod.AnnotationSource: source}
	}
	seen := map[string]bool{}
	for _, c := range o.Containers {
		if !seen[c.Name] {
			seen[c.Name] = true
			p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: c.Name, Image: c.Image, Lifecycle: annotatedPreStop(c.Annotations)})
		}
		if grace, ok := annotatedGrace(c.Annotations); ok {
			p.Spec.TerminationGracePeriodSeconds = &grace
		}
	}
	return p
}
