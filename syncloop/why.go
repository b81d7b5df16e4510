package syncloop

import (
	"fmt"
	"slices"
	"sort"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

// published is the state of a worker that others may read: the worker writes it, the node's API reads
// it.
type published struct {
	mu     sync.Mutex
	report pod.WhyReport
	status *v1.PodStatus // last generated; replaced, never changed
	// allocated is the admitted pod with its allocation; nil before that. It is replaced, never changed.
	allocated *v1.Pod
	phase     pod.Phase
	// released reports whether the pod's volumes are released.
	released bool
	// orphan: the pod runs, and its worker has seen no source that has it.
	orphan bool
}

// publish publishes a decision.
func (w *worker) publish(now time.Time, o pod.Observed, p plan.Plan) {
	r := pod.WhyReport{
		Namespace: w.ref.Namespace, Name: w.ref.Name, UID: string(w.ref.UID), Node: w.loop.cfg.NodeName,
		Phase: p.Phase.String(), Reason: p.Reason, Observed: whyObserved(w, o),
	}
	if t := p.Terminate; t != nil {
		r.Ending = &pod.WhyEnding{Cause: causeNames[t.Cause], At: t.At, Seconds: int64(t.Grace / time.Second), Message: t.Message}
	}
	for key, b := range w.ledger.Backoffs() {
		r.Backoffs = append(r.Backoffs, pod.WhyBackoff{
			What: backoffName(key), Failures: b.Failures, Until: b.Until, Reason: b.Reason, Message: b.Message})
	}
	sort.Slice(r.Backoffs, func(i, j int) bool { return r.Backoffs[i].What < r.Backoffs[j].What })
	for _, f := range w.flights {
		r.InFlight = append(r.InFlight, pod.WhyOperation{What: what(f.op), Since: f.since, Reason: f.op.Reason})
	}
	decision := pod.WhyDecision{At: now, Times: 1, Phase: r.Phase, Reason: r.Reason}
	for _, op := range p.Start {
		r.InFlight = append(r.InFlight, pod.WhyOperation{What: what(op), Since: now, Reason: op.Reason})
		decision.Actions = append(decision.Actions, pod.WhyAction{What: what(op)})
	}
	sort.Slice(r.InFlight, func(i, j int) bool { return r.InFlight[i].What < r.InFlight[j].What })
	if !p.WakeAt.IsZero() {
		r.Waits = &pod.WhyWait{For: p.Reason, Until: p.WakeAt}
	}
	w.pub.mu.Lock()
	defer w.pub.mu.Unlock()
	r.Decisions = pod.AppendDecision(w.pub.report.Decisions, decision)
	w.pub.report, w.pub.phase, w.pub.released = r, p.Phase, w.volumes == plan.VolumesReleased
	w.pub.orphan = w.term != nil && w.term.Cause == plan.CauseOrphan
}

// maxOutcome is how much of an error the log of decisions keeps, in bytes. The log has the errors
// of all containers for the last twenty decisions. A back-off keeps its whole message.
const maxOutcome = 512

// record adds an operation's outcome to the decision that began it.
func (w *worker) record(f finished) {
	outcome := "done"
	if f.Err != "" {
		outcome = budget.Shorten(f.Err, maxOutcome)
	}
	w.pub.mu.Lock()
	defer w.pub.mu.Unlock()
	pod.EndAction(w.pub.report.Decisions, what(f.Operation), outcome, f.At)
}

// Why explains the state of the pod of this name, or of the newest life of it that has a worker.
// false: neither a worker nor a source has such a pod.
func (l *Loop) Why(namespace, name string) (pod.WhyReport, bool) {
	l.mu.Lock()
	var found *worker
	for _, w := range l.workers {
		if w.ref.Namespace != namespace || w.ref.Name != name {
			continue
		}
		if found == nil || l.cfg.Sources.Get(w.ref.UID) != nil {
			found = w
		}
	}
	l.mu.Unlock()
	if found == nil {
		return l.whyWithout(namespace, name)
	}
	return found.why(), true
}

// why copies the worker's published state, because the worker continues to write to it.
func (w *worker) why() pod.WhyReport {
	w.pub.mu.Lock()
	defer w.pub.mu.Unlock()
	r := w.pub.report
	r.At = time.Now()
	if r.Name == "" {
		r.Namespace, r.Name, r.UID, r.Node = w.ref.Namespace, w.ref.Name, string(w.ref.UID), w.loop.cfg.NodeName
		r.Phase, r.Reason = pod.Syncing.String(), "the pod's worker is about to decide for the first time"
	}
	r.Decisions = slices.Clone(r.Decisions)
	for i := range r.Decisions {
		r.Decisions[i].Actions = slices.Clone(r.Decisions[i].Actions)
	}
	return r
}

// whyWithout answers for a pod of a source that has no worker.
func (l *Loop) whyWithout(namespace, name string) (r pod.WhyReport, ok bool) {
	p, ok := l.PodByName(namespace, name)
	if ok {
		r = pod.WhyReport{
			Namespace: namespace, Name: name, UID: string(p.UID), Node: l.cfg.NodeName, At: time.Now(),
			Phase:  pod.Gone.String(),
			Reason: "the pod has finished; its containers are kept for their logs until it is deleted",
		}
	}
	return r, ok
}

func whyObserved(w *worker, o pod.Observed) pod.WhyObserved {
	out := pod.WhyObserved{At: o.At, Seq: o.Seq, Stale: o.Stale}
	for _, s := range o.Sandboxes {
		out.Sandboxes = append(out.Sandboxes, pod.WhySandbox{ID: s.ID, Attempt: s.Attempt, Ready: s.Ready, IPs: s.IPs})
	}
	for container := range pod.AllContainers(&w.pod.Spec) {
		name := container.Name
		c := o.Newest(name)
		if c == nil {
			out.Containers = append(out.Containers, pod.WhyContainer{Name: name, State: "Absent"})
			continue
		}
		wc := pod.WhyContainer{Name: name, ID: c.ID, State: c.State.String(), Since: c.StartedAt, ExitCode: c.ExitCode, Restarts: c.Attempt}
		if c.State == pod.StateExited {
			wc.Since = c.FinishedAt
		}
		wc.Detail = c.Reason
		if c.Message != "" {
			wc.Detail += ": " + c.Message
		}
		out.Containers = append(out.Containers, wc)
	}
	sort.Slice(out.Containers, func(i, j int) bool { return out.Containers[i].Name < out.Containers[j].Name })
	return out
}

var causeNames = map[plan.Cause]string{
	plan.CauseDeleted: "deleted", plan.CauseOrphan: "orphan", plan.CauseEvicted: "evicted",
	plan.CauseDeadline: "deadline", plan.CauseFinished: "finished", plan.CauseRejected: "rejected",
	plan.CauseShutdown: "shutdown",
}

func backoffName(key string) string {
	switch key {
	case plan.SandboxKey:
		return "sandbox"
	case plan.VolumesKey:
		return "volumes"
	case plan.ResizeKey:
		return "resize"
	}
	return key
}

// what describes an operation for users.
func what(op plan.Operation) string {
	switch op.Kind {
	case plan.OpVolumes:
		return "prepare volumes"
	case plan.OpSandbox:
		return "run sandbox"
	case plan.OpPull:
		return "pull image of " + op.Container
	case plan.OpStart:
		return "start " + op.Container
	case plan.OpStop:
		return fmt.Sprintf("stop %s (grace %s)", op.Container, op.Grace.Round(time.Second))
	case plan.OpStopSandbox:
		return "stop sandbox " + short(op.ID)
	case plan.OpRemoveContainer:
		return "remove " + op.Container + " " + short(op.ID)
	case plan.OpRemoveSandbox:
		return "remove sandbox " + short(op.ID)
	case plan.OpRelease:
		return "release volumes"
	case plan.OpHook:
		return "run postStart hook of " + op.Container
	case plan.OpResize:
		return "resize"
	}
	return "unknown operation"
}

func short(id string) string {
	if len(id) > 12 {
		return id[:12]
	}
	return id
}
