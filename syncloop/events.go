package syncloop

import (
	"fmt"
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/allocation"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

// event records an event on the pod, or on one of its containers.
func (l *Loop) event(p *v1.Pod, container, kind, reason, message string) {
	Event(l.cfg.Recorder, p, container, kind, reason, message)
}

// nodeEvent records an event on the node.
func (l *Loop) nodeEvent(kind, reason, message string) {
	l.cfg.Recorder.Event(pod.NodeReference(l.cfg.NodeName), kind, reason, message)
}

// Event records an event as a kubelet does: on the pod, with the container's field path if it is
// about one.
func Event(r record.EventRecorder, p *v1.Pod, container, kind, reason, message string) {
	r.Event(reference(p, container), kind, reason, message)
}

// AnnotatedEvent records an event with annotations on the pod.
func AnnotatedEvent(r record.EventRecorder, p *v1.Pod, annotations map[string]string, kind, reason, message string) {
	r.AnnotatedEventf(reference(p, ""), annotations, kind, reason, "%s", message)
}

func reference(p *v1.Pod, container string) *v1.ObjectReference {
	return &v1.ObjectReference{
		Kind: "Pod", APIVersion: "v1", Namespace: p.Namespace, Name: p.Name,
		UID: p.UID, ResourceVersion: p.ResourceVersion, FieldPath: fieldPath(p, container),
	}
}

func fieldPath(p *v1.Pod, container string) string {
	if container == "" {
		return ""
	}
	field := "spec.containers"
	if pod.IsInit(&p.Spec, container) {
		field = "spec.initContainers"
	}
	for i := range p.Spec.EphemeralContainers {
		if p.Spec.EphemeralContainers[i].Name == container {
			field = "spec.ephemeralContainers"
		}
	}
	return field + "{" + container + "}"
}

// obstacles are what the pod's events have said last of what keeps it from starting or from being
// seen, so that each is recorded when it begins, and not at each decision.
type obstacles struct{ unseen, network string }

// recordObstacles records a kubelet's events for a pod that the runtime does not report on, and for
// one whose sandbox waits for the runtime's network.
func (w *worker) recordObstacles(in plan.Input) {
	unseen := ""
	if w.loop.cfg.PLEG.Cache().StaleAlone(w.ref.UID) {
		unseen = in.Observed.Stale
	}
	if unseen != "" && unseen != w.told.unseen {
		w.loop.event(w.pod, "", v1.EventTypeWarning, "FailedSync", "error determining status: "+unseen)
	}
	network := ""
	if w.phase == pod.Syncing && !w.pod.Spec.HostNetwork && readySandbox(in.Observed) == nil {
		network = w.loop.health.networkFault()
	}
	if network != "" && network != w.told.network {
		w.loop.event(w.pod, "", v1.EventTypeWarning, "NetworkNotReady", "network is not ready: "+network)
	}
	w.told = obstacles{unseen, network}
}

// recordFamily records a kubelet's event if the address of the pod's host changes its family: other pods may
// not reach the pod's own addresses any more.
func (w *worker) recordFamily(was, is string) {
	before, err := netip.ParseAddr(was)
	now, errNow := netip.ParseAddr(is)
	if err != nil || errNow != nil || before.Unmap().Is4() == now.Unmap().Is4() {
		return
	}
	family := func(a netip.Addr) string {
		if a.Unmap().Is4() {
			return "IPv4"
		}
		return "IPv6"
	}
	w.loop.event(w.pod, "", v1.EventTypeWarning, "HostIPsIPFamilyMismatch",
		fmt.Sprintf("the pod's host has the %s address %s now, and had the %s address %s: set nodeIP to keep one", family(now), is, family(before), was))
}

// recordBackoffs records the kubelet's BackOff event for each container that has crashed and now
// waits. next is the ledger that is about to replace the worker's.
func (w *worker) recordBackoffs(next plan.Ledger) {
	for name, r := range next.Names {
		if b := r.Backoff; b.Reason == plan.ReasonCrashLoop && b.ID != "" && w.ledger.Names[name].Backoff.ID != b.ID {
			w.loop.event(w.pod, name, v1.EventTypeWarning, "BackOff", fmt.Sprintf("Back-off restarting failed container %s in pod %s_%s(%s)",
				name, w.ref.Name, w.ref.Namespace, w.ref.UID))
		}
	}
}

// leastKillTime is the least time that a pod has to end before an event says that it takes too long.
const leastKillTime = 10 * time.Second

// recordOverdue records a kubelet's event, once, for a pod that is evicted or ended for a shutdown, and
// that has not ended within one and a half times its grace period. It returns when that will be; zero:
// never. The allocation manager records the event for a preempted pod.
func (w *worker) recordOverdue(now time.Time) time.Time {
	t := w.term
	if t == nil || w.late || w.phase >= pod.Terminated ||
		t.Cause != plan.CauseShutdown && (t.Cause != plan.CauseEvicted || t.Reason == allocation.ReasonPreempting) {
		return time.Time{}
	}
	if due := t.At.Add(max(t.Grace*3/2, leastKillTime)); now.Before(due) {
		return due
	}
	w.late = true
	w.loop.event(w.pod, "", v1.EventTypeWarning, allocation.ReasonTooLong, allocation.MessageTooLong)
	return time.Time{}
}
