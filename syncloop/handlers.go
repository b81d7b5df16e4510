package syncloop

import (
	"cmp"
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/plan"
	"github.com/bowline-k8s/bowline/syncloop/pleg"
	"github.com/bowline-k8s/bowline/syncloop/podconfig"
)

// iterate is one iteration of the loop, like the kubelet's syncLoopIteration. It has no 1 s sync
// tick, because each worker knows when its decision could change and sets its own timer.
func (l *Loop) iterate(ctx context.Context, housekeepingCh <-chan time.Time) bool {
	now := time.Now()
	l.turned.Store(&now)
	select {
	case <-ctx.Done():
		return false
	case change := <-l.cfg.Sources.Updates():
		l.handle(ctx, change)
	case <-l.cfg.PLEG.Notify():
		l.handleObserved(l.cfg.PLEG.TakeChanged())
	case uid := <-l.cfg.Prober.Updates():
		l.Wake(uid)
	case uid := <-l.cfg.Objects.Updates():
		l.handleContent(uid)
	case uid := <-l.cfg.Tokens.Updates():
		l.handleContent(uid)
	case uid := <-l.certificates():
		l.handleContent(uid)
	case <-housekeepingCh:
		l.handleOrphans(ctx)
	}
	return true
}

func (l *Loop) certificates() <-chan types.UID {
	if l.cfg.Certificates == nil {
		return nil
	}
	return l.cfg.Certificates.Updates()
}

// handle turns one change of the sources into mail for the pod's worker.
func (l *Loop) handle(ctx context.Context, change podconfig.Change) {
	p := change.Pod
	ref := pod.Ref{Namespace: p.Namespace, Name: p.Name, UID: p.UID}
	level := 2
	switch {
	case change.Op == podconfig.Reconcile:
		level = 4 // mostly the echo of our own statuses
	case change.Op == podconfig.Remove, change.Op == podconfig.Delete && l.State(p.UID).Ending():
		level = 3 // the worker ends the pod, and says so
	}
	klog.FromContext(ctx).V(level).Info("Received a change of the pod", "op", change.Op, "source", change.Source,
		"pod", klog.KRef(ref.Namespace, ref.Name), "uid", ref.UID)
	now := time.Now()
	switch change.Op {
	case podconfig.Add:
		l.register(p)
		l.adoptReadiness(p)
		l.dispatch(ctx, ref, p, ending(p, now, true), false)
	case podconfig.Update, podconfig.Delete:
		if l.State(p.UID).Over(p) {
			return
		}
		l.register(p)
		l.dispatch(ctx, ref, p, ending(p, now, false), false)
	case podconfig.Reconcile:
		l.cfg.Status.Reconcile(cmp.Or(change.Mirror, p))
		if l.State(p.UID).Over(p) {
			return
		}
		l.dispatch(ctx, ref, p, nil, false)
	case podconfig.Remove:
		end := &plan.Terminate{At: now, Grace: graceOf(p), Cause: plan.CauseDeleted}
		l.dispatch(ctx, ref, p, end, true)
	}
}

// adoptReadiness keeps the readiness that the API server has for containers started by an earlier
// process, until their probes have answered.
func (l *Loop) adoptReadiness(p *v1.Pod) {
	for s := range pod.Statuses(&p.Status) {
		if id := bareID(s.ContainerID); id != "" && s.State.Running != nil {
			l.cfg.Prober.Adopt(id, s.Ready)
		}
	}
}

// register makes Objects follow the ConfigMaps and Secrets that the pod refers to, unless the pod
// has ended or has released them. The API server refuses a node the objects of a pod that is gone,
// and a late update must not register a released pod again.
func (l *Loop) register(p *v1.Pod) {
	l.naming.Lock()
	defer l.naming.Unlock()
	if !pod.Terminal(p.Status.Phase) && !l.released[p.UID] {
		l.cfg.Objects.Register(p)
	}
}

// unregister undoes register. If the pod has a worker, it stays unregistered until the worker ends.
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

// ending returns the request to end that the API object itself carries, or nil. adopted means that
// this process sees the pod for the first time, so that a deletion may have begun long before.
func ending(p *v1.Pod, now time.Time, adopted bool) *plan.Terminate {
	switch {
	case p.DeletionTimestamp != nil:
		grace := graceOf(p)
		at := now
		if adopted {
			// Not later than now and not earlier than one grace period ago, whatever the API
			// server's clock says.
			at = p.DeletionTimestamp.Add(-grace)
			if at.After(now) {
				at = now
			}
			if at.Before(now.Add(-grace)) {
				at = now.Add(-grace)
			}
		}
		return &plan.Terminate{At: at, Grace: grace, Cause: plan.CauseDeleted}
	case pod.Terminal(p.Status.Phase):
		return &plan.Terminate{
			At: now, Grace: graceOf(p), Cause: plan.CauseFinished,
			Reason: p.Status.Reason, Message: p.Status.Message,
		}
	}
	return nil
}

// dispatch sends the pod to its worker, with how it is to end, if it is.
func (l *Loop) dispatch(ctx context.Context, ref pod.Ref, p *v1.Pod, end *plan.Terminate, absent bool) {
	l.send(ctx, ref, pod.IsStatic(p), func(m *mail) {
		m.pod = l.current(p)
		m.terminate = plan.Merge(m.terminate, end)
		m.absent = m.absent || absent
	})
}

// current returns the source's object of a static pod. p may be older: it may have the final status of
// an earlier life, or lack that of the last one.
func (l *Loop) current(p *v1.Pod) *v1.Pod {
	if now := l.cfg.Sources.Get(p.UID); now != nil && pod.IsStatic(now) {
		return now
	}
	return p
}

func (l *Loop) handleObserved(uids []types.UID) {
	for _, uid := range uids {
		if uid == pleg.All {
			l.wakeAll()
			return
		}
		l.Wake(uid)
	}
}

// handleContent makes a pod refresh its volumes: a ConfigMap, Secret or token that it mounts has
// changed or was created.
func (l *Loop) handleContent(uid types.UID) {
	l.mail(uid, func(m *mail) { m.volumes = true })
}

// handleOrphans gives a worker to every pod that runs and that no source has, so that the worker
// ends it. A lost deletion leaves such pods, or a deletion while no process managed the host.
//
// At most maxOrphans of them have a worker at a time, because the list of pods comes from the host.
// The others wait for one to end.
func (l *Loop) handleOrphans(ctx context.Context) {
	room := maxOrphans - l.orphans()
	for _, ref := range l.cfg.PLEG.Cache().Known() {
		if !l.seen(ref.UID) || l.Known(ref.UID) {
			continue
		}
		if room--; room < 0 {
			return
		}
		l.cfg.Metrics.orphaned()
		klog.FromContext(ctx).Info("Stopping a pod that no source has",
			"pod", klog.KRef(ref.Namespace, ref.Name), "uid", ref.UID)
		p := describe(l.cfg.PLEG.Cache().Get(ref.UID), l.cfg.NodeName)
		l.dispatch(ctx, ref, p, &plan.Terminate{At: time.Now(), Grace: graceOf(p), Cause: plan.CauseOrphan}, true)
	}
}

const maxOrphans = 32

// orphans returns how many workers have a pod that no source has.
func (l *Loop) orphans() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for uid := range l.workers {
		if l.cfg.Sources.Get(uid) == nil {
			n++
		}
	}
	return n
}

// describe builds a pod object for an orphan from what runs.
func describe(o pod.Observed, node string) *v1.Pod {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: o.Ref.Namespace, Name: o.Ref.Name, UID: o.Ref.UID},
		Spec:       v1.PodSpec{NodeName: node, RestartPolicy: v1.RestartPolicyNever},
	}
	if source := staticSource(o); source != "" {
		p.Annotations = map[string]string{pod.AnnotationSource: source}
	}
	for i := range o.Containers {
		c := &o.Containers[i]
		made := pod.Find(pod.AllContainers(&p.Spec), c.Name)
		if made == nil {
			p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: c.Name, Image: c.Image})
			made = &p.Spec.Containers[len(p.Spec.Containers)-1]
		}
		if c.State == pod.StateRunning {
			made.Lifecycle, made.Ports = annotatedPreStop(c.Annotations), annotatedPorts(c.Annotations)
		}
		if grace, ok := annotatedGrace(c.Annotations); ok {
			p.Spec.TerminationGracePeriodSeconds = &grace
		}
	}
	return p
}
