package syncloop

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

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
	if w.absent && !w.mirrorOutlivesSource() {
		return // the object whose status would be written does not exist
	}
	if !w.admitted && in.Observed.Fresh() {
		return // like a kubelet, write no status of a pod that the node may still reject
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
		HostIPs: l.cfg.Machine().HostIPs, RecursiveReadOnly: l.recursiveReadOnly(in.Observed), StopSignals: l.cfg.StopSignals, Terminate: termination(w.term),
		RuntimeName: l.cfg.RuntimeName, Resize: w.resizeConditions(), Actuated: actuated,
	})
	l.cfg.Metrics.statuses(w.pod, &w.status, &out)
	w.recordFamily(w.status.HostIP, out.HostIP)
	start := stateOfStart(w.pod, &out)
	w.starting.reported(l.cfg.Metrics, now, start, w.pod, &out)
	w.trace.reported(now, start)
	if ready := isReady(&out); ready != isReady(&w.status) {
		level := 2
		if w.phase != pod.Syncing {
			level = 3 // a pod that ends is not ready
		}
		klog.FromContext(ctx).V(level).Info("Changed pod readiness", "ready", ready, "phase", out.Phase)
	}
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
func unhooked(p *v1.Pod, o pod.Observed, l plan.Ledger, flying []plan.Operation, reported *v1.PodStatus) pod.Observed {
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
		s := pod.FindStatus(reported, c.Name)
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

// slow is how long an operation takes before the status mentions it. Shorter waits are not worth an
// API request.
const slow = 10 * time.Second

// awaited finds the step that a container waits for before its creation, for the status.
type awaited struct {
	pod      *v1.Pod
	observed pod.Observed
	flights  map[plan.Key]*flight
	ledger   *plan.Ledger
	now      time.Time
	// wake is when the next operation under way becomes slow; zero: none does.
	wake time.Time
}

// messages returns the message of each container that has one.
func (a *awaited) messages() map[string]string {
	out := map[string]string{}
	common := a.common()
	for c := range pod.Containers(&a.pod.Spec) {
		switch {
		case a.observed.Newest(c.Name) != nil:
		case a.slowly(plan.OpPull, c.Name):
			out[c.Name] = fmt.Sprintf("its image %q is being pulled", c.Image)
		case common != "":
			out[c.Name] = common
		}
	}
	return out
}

// common returns the step that all containers that have not been created wait for: first an operation that
// failed and is retried, then a slow one.
func (a *awaited) common() string {
	volumes, sandbox := a.slowly(plan.OpVolumes, ""), a.slowly(plan.OpSandbox, "")
	for _, key := range []string{plan.VolumesKey, plan.SandboxKey} {
		if b := a.ledger.Backoff(key); b.Message != "" {
			return identifier.ReplaceAllString(b.Message, "...")
		}
	}
	switch {
	case volumes:
		return "the pod's volumes are being prepared"
	case sandbox:
		return "the pod's sandbox is being made"
	}
	for i := range a.pod.Spec.InitContainers {
		c := &a.pod.Spec.InitContainers[i]
		n := a.observed.Newest(c.Name)
		switch {
		case n == nil && a.slowly(plan.OpPull, c.Name):
			return fmt.Sprintf("init container %q comes first: its image %q is being pulled", c.Name, c.Image)
		case n == nil:
			return "" // its own message says what it waits for
		case pod.Sidecar(c):
		case n.State == pod.StateRunning && a.since(n.StartedAt):
			return fmt.Sprintf("init container %q comes first, and runs", c.Name)
		case n.State == pod.StateRunning:
			return ""
		}
	}
	return ""
}

// identifier matches IDs that differ at each attempt and are of no use to the reader. A status that
// contained them would be rewritten at each attempt.
var identifier = regexp.MustCompile(`[0-9a-f]{12,}`)

// slowly reports whether an operation has been under way for long.
func (a *awaited) slowly(kind plan.OpKind, container string) bool {
	for _, f := range a.flights {
		if f.op.Kind == kind && f.op.Container == container {
			return a.since(f.since)
		}
	}
	return false
}

// since reports whether an operation that began at t is slow by now.
func (a *awaited) since(t time.Time) bool {
	due := t.Add(slow)
	if !due.After(a.now) {
		return true
	}
	if a.wake.IsZero() || due.Before(a.wake) {
		a.wake = due
	}
	return false
}

// awaits returns the current messages, and when the next one may be due; zero: none is.
func (w *worker) awaits(now time.Time, o pod.Observed) (messages map[string]string, wake time.Time) {
	if w.phase != pod.Syncing || o.Stale != "" {
		return nil, time.Time{}
	}
	a := awaited{pod: w.pod, observed: o, flights: w.flights, ledger: &w.ledger, now: now}
	messages = a.messages()
	return messages, a.wake
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

// isReady reports whether a status has the condition Ready.
func isReady(s *v1.PodStatus) bool {
	return slices.ContainsFunc(s.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.PodReady && c.Status == v1.ConditionTrue })
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

// annotatedPorts returns the ports from the container's annotation, to resolve the named port of its
// preStop hook.
func annotatedPorts(annotations map[string]string) (ports []v1.ContainerPort) {
	if json.Unmarshal([]byte(annotations[pod.AnnotationPorts]), &ports) != nil {
		return nil // not in the kubelet's form, or no ports
	}
	return ports
}
