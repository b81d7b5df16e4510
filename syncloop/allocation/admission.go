package allocation

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/admit"
)

// admission is the decision on a pod of the sources. Pods are admitted against those that were
// admitted before them, so the order matters: pods that already have something on the host come
// first, then the older pod. The result is therefore the same after a restart.
type admission struct {
	rejection *admit.Rejection
	ended     bool // the pod's worker has ended
	// after holds the preempted pods that have not ended. The pod starts when they have.
	after []types.UID
	// preempted is set if the pod ends to make room for a critical pod. The pod then takes no room
	// any more, unless it has not ended by gone.
	preempted, gone time.Time
	late            bool // the event ExceededGracePeriod has been recorded
}

// The kubelet's reasons and messages for a pod that a critical pod preempts. The last two are also for
// a pod that is evicted or ended for a shutdown.
const (
	ReasonPreempting  = "Preempting"
	MessagePreempting = "Preempted in order to admit critical pod"
	TargetPreempting  = "Pod was preempted by Kubelet to accommodate a critical pod."
	ReasonTooLong     = "ExceededGracePeriod"
	MessageTooLong    = "Container runtime did not kill the pod within specified grace period."
)

// leastPatience is the least time to wait for a victim's end; the rule is 1.5 times its grace
// period.
const leastPatience = 10 * time.Second

// preempt ends pods whose room a critical pod needs; their workers learn it by their answers. A
// victim that has no worker yet gets its answer when it asks.
func (m *Manager) preempt(v admit.Verdict, now time.Time) {
	for _, p := range v.Preempt {
		a := m.admissions[p.UID]
		if a == nil { // it ran before this process started
			a = &admission{}
			m.admissions[p.UID] = a
		}
		grace := m.cfg.Grace(p)
		a.preempted, a.gone, a.late = now, now.Add(max(grace+grace/2, leastPatience)), false
		m.cfg.Event(p, v1.EventTypeWarning, ReasonPreempting, MessagePreempting)
		m.cfg.Preempted(v.Lacking)
	}
}

// ending reports whether a preempted pod has yet to end. It records an event, once, for a pod that
// has not ended in time, and that is not waited for any more.
func (m *Manager) ending(uid types.UID, now time.Time) bool {
	a := m.admissions[uid]
	if a == nil || a.preempted.IsZero() || a.ended || m.cfg.Ended(uid) {
		return false
	}
	if p := m.cfg.Sources.Get(uid); !a.late && !now.Before(a.gone) && p != nil {
		a.late = true
		m.cfg.Event(p, v1.EventTypeWarning, ReasonTooLong, MessageTooLong)
	}
	return now.Before(a.gone)
}

// admit decides on every pod of the sources that has no decision, if the worker of one asks.
func (m *Manager) admit(ctx context.Context, now time.Time) {
	defer func() { m.labels.fresh = nil }()
	for _, a := range m.admissions {
		a.after = slices.DeleteFunc(a.after, func(uid types.UID) bool { return !m.ending(uid, now) })
	}
	asked := false
	for uid, e := range m.pods {
		if e.decided {
			continue
		}
		if o := m.cfg.Observed(uid); o.Fresh() {
			e.decided = o.Exists() || m.admissions[uid] != nil
			asked = asked || !e.decided
		}
	}
	if !asked {
		return
	}
	active, undecided := m.activePods(now)
	if !m.cfg.Sources.SeenBy(pod.SourceAPI) {
		// Static pods do not wait for the first list of the API source. Only the API source counts:
		// a static source that cannot be read must not block other pods.
		undecided = slices.DeleteFunc(undecided, func(p *v1.Pod) bool { return !pod.IsStatic(p) })
	}
	room, ending := m.room(), m.leaving(active)
	for _, p := range undecided {
		if int64(len(ending)+len(active)) >= spec.BoundsOf(room).Pods && !pod.IsStatic(p) {
			continue // it waits until one of those that are ending has left the runtime
		}
		v, ok := m.verdict(p, active, ending, room)
		if !ok {
			m.labels.waiting[p.UID] = true
			continue
		}
		if r := v.Rejection; r != nil {
			klog.FromContext(ctx).Info("Rejected the pod", "pod", klog.KObj(p), "uid", p.UID, "reason", r.Reason, "message", r.Message)
		} else {
			active = append(active, p)
		}
		m.preempt(v, now)
		active = slices.DeleteFunc(active, func(q *v1.Pod) bool { return slices.Contains(v.Preempt, q) })
		after := slices.DeleteFunc(slices.Collect(maps.Keys(m.admissions)), func(uid types.UID) bool { return !m.ending(uid, now) })
		m.admissions[p.UID] = &admission{rejection: v.Rejection, after: after}
		if e := m.pods[p.UID]; e != nil {
			e.decided = true
		}
	}
	m.reread(ctx)
}

// activePods returns the admitted pods that have not ended, and the pods without a decision, in the
// order of admission. Decisions on pods without a source and a worker are dropped.
func (m *Manager) activePods(now time.Time) (active, undecided []*v1.Pod) {
	all := m.cfg.Sources.Pods()
	kept := make(map[types.UID]*admission, len(all))
	for _, p := range all {
		a := m.admissions[p.UID]
		if a != nil {
			kept[p.UID] = a
		}
		o := m.cfg.Observed(p.UID)
		switch {
		case pod.IsMirror(p): // the static pod itself counts
		case a != nil && (a.rejection != nil || a.ended):
		case a != nil && now.Before(a.gone): // room counts as free; the next pod waits for its end
		case a != nil, !pod.Terminal(p.Status.Phase) && o.Exists():
			// A pod that has not asked has not ended: its worker has yet to start.
			if a == nil || m.pods[p.UID] == nil || !m.cfg.Ended(p.UID) {
				active = append(active, m.claimed(p))
			}
		case pod.Terminal(p.Status.Phase), p.DeletionTimestamp != nil, !o.Fresh():
		default:
			undecided = append(undecided, p)
		}
	}
	for uid := range m.pods {
		if a := m.admissions[uid]; a != nil {
			kept[uid] = a
		}
	}
	m.admissions = kept
	slices.SortStableFunc(undecided, func(x, y *v1.Pod) int {
		return cmp.Or(x.CreationTimestamp.Compare(y.CreationTimestamp.Time), cmp.Compare(x.UID, y.UID))
	})
	return active, undecided
}

// leaving returns the pods beside active that have something in the runtime: those that have ended,
// that a critical pod preempted, or that were deleted by force and that no source has any more.
func (m *Manager) leaving(active []*v1.Pod) (out []*v1.Pod) {
	counted := make(map[types.UID]bool, len(active))
	for _, p := range active {
		counted[p.UID] = true
	}
	for uid, e := range m.pods {
		if e.wanted == nil || counted[uid] {
			continue
		}
		if o := m.cfg.Observed(uid); o.Exists() {
			out = append(out, e.wanted)
		}
	}
	return out
}

// room is how many pods the node takes; 0: not known.
func (m *Manager) room() int64 {
	if m.cfg.Node == nil {
		return 0
	}
	most := m.cfg.Node().Allocatable[v1.ResourcePods]
	return most.Value()
}

// verdict decides on one pod. leaving are the pods beside active that the runtime still has, and room
// is how many pods the node takes. false: node affinity fails against labels that may be out of date.
func (m *Manager) verdict(p *v1.Pod, active, leaving []*v1.Pod, room int64) (admit.Verdict, bool) {
	if r := admit.Pod(p, m.cfg.Policy); r != nil {
		return admit.Verdict{Rejection: r}, true
	}
	if r := admit.Size(p, slices.Concat(active, leaving), room); r != nil {
		return admit.Verdict{Rejection: r}, true
	}
	if m.cfg.Node == nil {
		return admit.Verdict{}, true
	}
	if m.labels.fresh[p.UID] {
		return admit.OnNode(p, active, m.labels.node), true
	}
	v := admit.OnNode(p, active, m.cfg.Node())
	return v, v.Rejection == nil || v.Rejection.Reason != admit.ReasonNodeAffinity || m.cfg.Reread == nil
}

// nodeLabels are the pods that did not match the node's labels as the watch has them. Someone who
// labels a node and then creates a pod for it may be faster than the watch, so the Node is read
// again. One call is under way at a time, for the pods that waited when it began.
type nodeLabels struct {
	waiting, reading, fresh map[types.UID]bool
	node                    admit.Node // what the pods in fresh are admitted against
}

// rereadTimeout bounds the one call to the API server that an admission may need.
const rereadTimeout = 5 * time.Second

// reread reads the Node, if a pod waits for that. If the read fails, the cached Node counts.
func (m *Manager) reread(ctx context.Context) {
	l := &m.labels
	maps.DeleteFunc(l.waiting, func(uid types.UID, _ bool) bool { return l.reading[uid] })
	if l.reading != nil || len(l.waiting) == 0 {
		return
	}
	l.reading, l.waiting = l.waiting, map[types.UID]bool{}
	m.do(ctx, func() {
		calling, cancel := context.WithTimeout(ctx, rereadTimeout)
		defer cancel()
		node, err := m.cfg.Reread(calling)
		m.post(func(ctx context.Context) {
			if err != nil {
				klog.FromContext(ctx).V(1).Info("Failed to re-read the node's labels", "err", err)
				node = m.cfg.Node()
			}
			l.node, l.fresh, l.reading = node, l.reading, nil
		})
	})
}

// reasonLacking is the kubelet's reason for an update that the node lacks a feature for.
const reasonLacking = "FailedNodeDeclaredFeaturesCheck"

// reportLacking records a kubelet's event for an update of a pod that needs a feature which the node does
// not declare. The API server refuses most of them, but it may know an older Node.
func (m *Manager) reportLacking(from, to *v1.Pod) {
	if m.cfg.Node == nil {
		return
	}
	if lacks := admit.LackingForUpdate(from, to, m.cfg.Node()); lacks != "" {
		m.cfg.Event(to, v1.EventTypeWarning, reasonLacking, lacks)
	}
}
