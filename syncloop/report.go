package syncloop

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/plan"
	"github.com/bowline-k8s/bowline/syncloop/status"
)

// report generates the pod status after a decision, updates the prober with what runs, and requests
// the deletion of the API object when the pod's end is complete.
func (w *worker) report(ctx context.Context, now time.Time, in plan.Input) {
	l := w.loop
	in.Observed = resized(in.Observed, &w.ledger)
	in.Observed = unhooked(w.pod, in.Observed, w.ledger, in.InFlight, &w.status)
	if in.Observed.Stale == "" && in.Observed.Seq > 0 {
		l.cfg.Prober.Sync(w.pod, in.Observed, l.podIPs(w.pod, in.Observed))
		if w.phase != pod.Syncing {
			l.cfg.Prober.Stop(w.ref.UID) // readiness probes continue until their container ends
		}
	}
	if w.absent && !w.mourned() {
		return // the object whose status would be written does not exist
	}
	awaits, _ := w.awaits(now, in.Observed)
	var actuated *pod.Allocation
	if has := plan.ActuatedPod(w.ledger, &in.Observed); has != w.answer.Allocated {
		if a, ok := pod.ParseAllocation(has); ok {
			actuated = &a
		}
	}
	out := status.Generate(status.Input{
		Now: now, Pod: w.pod, Phase: w.phase, HoldsSandbox: plan.HoldsSandbox(w.ledger, &in.Observed), Observed: in.Observed, Old: w.status,
		Waiting: w.waiting(), Awaits: awaits, Again: w.ledger.Again(), Verdicts: l.cfg.Prober.Verdicts(w.ref.UID),
		HostIPs: l.cfg.Machine().HostIPs, RecursiveReadOnly: l.recursiveReadOnly(in.Observed), Terminate: termination(w.term),
		RuntimeName: l.cfg.RuntimeName, Resize: w.resizeConditions(), Actuated: actuated,
	})
	w.status = out
	w.pub.mu.Lock()
	w.pub.status = &out
	w.pub.mu.Unlock()
	l.cfg.Status.Set(w.pod, out)
	// The phase may be Gone already: without remains, the decision that finds the volumes released
	// reaches it.
	if w.volumes == plan.VolumesReleased && w.pod.DeletionTimestamp != nil && w.phase >= pod.Terminated {
		l.cfg.Status.Final(w.ref, func() { w.inbox.wake() })
	}
}

// unhooked returns the observation with each container whose postStart hook has not ended shown as
// created instead of running: it is not reported as started, and its probes do not begin. The same
// holds for one whose hook has failed and which is about to be stopped. A container that was
// reported as running before stays so.
func unhooked(p *v1.Pod, o pod.Observed, l plan.Ledger, flying []plan.Operation, told *v1.PodStatus) pod.Observed {
	copied := false
	for c := range pod.Containers(&p.Spec) {
		if c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
			continue
		}
		i := slices.IndexFunc(o.Containers, func(n pod.Container) bool { return n.Name == c.Name })
		if i < 0 || o.Containers[i].State != pod.StateRunning {
			continue
		}
		id := o.Containers[i].ID
		was := l.Containers[id]
		pending := was.Hook == plan.HookPending || was.Why.Cause == plan.StopPostStart || slices.ContainsFunc(flying, func(op plan.Operation) bool {
			return op.Kind == plan.OpStart && op.Container == c.Name || op.Kind == plan.OpHook && op.ID == id
		})
		s := pod.FindStatus(told, c.Name)
		if !pending || s != nil && s.State.Running != nil && bareID(s.ContainerID) == id {
			continue
		}
		if !copied {
			o.Containers, copied = slices.Clone(o.Containers), true
		}
		o.Containers[i].State = pod.StateCreated
	}
	return o
}

// waiting turns back-offs and refused ephemeral containers into waiting states.
func (w *worker) waiting() map[string]status.Waiting {
	out := make(map[string]status.Waiting, len(w.ledger.Names)+len(w.refused))
	for name, r := range w.refused {
		out[name] = status.Waiting{Reason: r.Reason, Message: r.Message}
	}
	for name, r := range w.ledger.Names {
		if b := r.Backoff; b.Reason != "" && name[0] != '/' {
			out[name] = status.Waiting{Reason: b.Reason, Message: b.Message}
		}
	}
	return out
}

func termination(t *plan.Terminate) *status.Termination {
	if t == nil || t.Reason == "" {
		return nil
	}
	return &status.Termination{Reason: t.Reason, Message: t.Message, Disruption: t.Disruption, Rejected: t.Cause == plan.CauseRejected}
}

// podIPs returns the pod's addresses, primary first: the host's for a hostNetwork pod, else those
// of the ready sandbox.
func (l *Loop) podIPs(p *v1.Pod, o pod.Observed) []string {
	if p.Spec.HostNetwork {
		return l.cfg.Machine().HostIPs
	}
	if s := readySandbox(o); s != nil {
		return s.IPs
	}
	return nil
}

// hashes returns the wanted spec hashes by container name.
func hashes(p *v1.Pod) map[string]string {
	now := map[string]string{}
	for c := range pod.Containers(&p.Spec) {
		now[c.Name] = spec.Hash(c)
	}
	return now
}

// addFormerHashes adds the former forms of the hashes of those containers that have an instance
// with another hash than the wanted one. They take long to compute, and the instances that this
// version made do not need them.
func addFormerHashes(former map[string][]string, p *v1.Pod, now map[string]string, o *pod.Observed) {
	for i := range o.Containers {
		name := o.Containers[i].Name
		if o.Containers[i].SpecHash == now[name] || former[name] != nil {
			continue
		}
		if c := pod.Find(pod.Containers(&p.Spec), name); c != nil {
			former[name] = spec.FormerHashes(c)
		}
	}
}

// handler returns the runtime handler of the pod's RuntimeClass; "" is the runtime's default. A pod
// whose class is unknown does not run, because the class may be what isolates it.
func (l *Loop) handler(ctx context.Context, p *v1.Pod) (string, error) {
	name := p.Spec.RuntimeClassName
	if name == nil || *name == "" {
		return "", nil
	}
	handler, err := l.cfg.RuntimeHandler(ctx, *name)
	if err != nil {
		return "", fmt.Errorf("find the pod's runtime class: %w", err)
	}
	return handler, nil
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

// bareID strips the scheme from a container ID of a status.
func bareID(id string) string {
	for i := 0; i+2 < len(id); i++ {
		if id[i:i+3] == "://" {
			return id[i+3:]
		}
	}
	return id
}

func annotatedGrace(annotations map[string]string) (int64, bool) {
	for _, key := range []string{pod.AnnotationPodDeletionGrace, pod.AnnotationPodGrace} {
		if n, err := strconv.ParseInt(annotations[key], 10, 64); err == nil {
			return n, true
		}
	}
	return 0, false
}

// annotatedPreStop returns the preStop hook from the container's annotation, so that the hook runs
// even if no source has the pod's spec any more.
func annotatedPreStop(annotations map[string]string) *v1.Lifecycle {
	text, ok := annotations[pod.AnnotationPreStop]
	if !ok {
		return nil
	}
	hook := &v1.LifecycleHandler{}
	if err := json.Unmarshal([]byte(text), hook); err != nil {
		return nil // not in the kubelet's form: treated as no hook
	}
	return &v1.Lifecycle{PreStop: hook}
}

// event records an event on the pod, or on one of its containers.
func (l *Loop) event(p *v1.Pod, container, kind, reason, message string) {
	Event(l.cfg.Recorder, p, container, kind, reason, message)
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
	for i := range p.Spec.InitContainers {
		if p.Spec.InitContainers[i].Name == container {
			field = "spec.initContainers"
		}
	}
	for i := range p.Spec.EphemeralContainers {
		if p.Spec.EphemeralContainers[i].Name == container {
			field = "spec.ephemeralContainers"
		}
	}
	return field + "{" + container + "}"
}
