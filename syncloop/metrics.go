package syncloop

import (
	"errors"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-base/metrics"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

// Metrics are the metrics of one node, with the kubelet's names; the zero value counts nothing.
type Metrics struct {
	// illegalEdges counts illegal phase transitions; it stays at zero.
	illegalEdges *metrics.Counter
	// userNamespaces and userNamespacesFailed count, for pods with a user namespace, the sandboxes
	// that were requested, and the sandboxes and containers that could not be started.
	userNamespaces, userNamespacesFailed *metrics.Counter
	startedPods, startedPodsFailed       *metrics.Counter
	started, startedFailed, terminated   *metrics.CounterVec
	rejected                             *metrics.CounterVec
	worker                               *metrics.HistogramVec
	workerStart, podStart                *metrics.Histogram
	startSLI, startTotal                 *metrics.HistogramVec
}

// startBuckets are the bounds of the durations of a pod's start, in seconds, as for a kubelet.
var startBuckets = []float64{0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600}

// NewMetrics makes the metrics of a node and registers them with r, which belongs to that node: a
// process may run many nodes.
func NewMetrics(r metrics.KubeRegistry) Metrics {
	counter := func(name, help string) *metrics.Counter {
		return metrics.NewCounter(&metrics.CounterOpts{Name: name, Help: help, StabilityLevel: metrics.ALPHA})
	}
	counters := func(name, help string, labels ...string) *metrics.CounterVec {
		return metrics.NewCounterVec(&metrics.CounterOpts{Name: name, Help: help, StabilityLevel: metrics.ALPHA}, labels)
	}
	histogram := func(name, help string, buckets []float64) *metrics.Histogram {
		return metrics.NewHistogram(&metrics.HistogramOpts{Name: name, Help: help, Buckets: buckets, StabilityLevel: metrics.ALPHA})
	}
	histograms := func(name, help string, buckets []float64, labels ...string) *metrics.HistogramVec {
		return metrics.NewHistogramVec(&metrics.HistogramOpts{Name: name, Help: help, Buckets: buckets, StabilityLevel: metrics.ALPHA}, labels)
	}
	m := Metrics{
		illegalEdges: counter("bowline_pod_worker_illegal_phase_edges_total",
			"Impossible phase transitions that the planner requested. Any is a defect."),
		userNamespaces:       counter("kubelet_started_user_namespaced_pods_total", "Cumulative number of pods with user namespaces started."),
		userNamespacesFailed: counter("kubelet_started_user_namespaced_pods_errors_total", "Cumulative number of errors when starting pods with user namespaces."),
		startedPods:          counter("kubelet_started_pods_total", "Cumulative number of pods started"),
		startedPodsFailed:    counter("kubelet_started_pods_errors_total", "Cumulative number of errors when starting pods"),
		started:              counters("kubelet_started_containers_total", "Cumulative number of containers started", "container_type"),
		startedFailed:        counters("kubelet_started_containers_errors_total", "Cumulative number of errors when starting containers", "container_type", "code"),
		terminated:           counters("kubelet_terminated_containers_total", "Cumulative number of container terminations.", "container_type", "exit_code", "reason"),
		rejected:             counters("kubelet_admission_rejections_total", "Cumulative number pod admission rejections by the Kubelet.", "reason"),
		worker: histograms("kubelet_pod_worker_duration_seconds",
			"Duration in seconds to sync a single pod. Broken down by operation type: create, update, or sync", metrics.DefBuckets, "operation_type"),
		workerStart: histogram("kubelet_pod_worker_start_duration_seconds", "Duration in seconds from kubelet seeing a pod to starting a worker.", metrics.DefBuckets),
		podStart: histogram("kubelet_pod_start_duration_seconds",
			"Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run", startBuckets),
		startSLI: histograms("kubelet_pod_start_sli_duration_seconds",
			"Duration in seconds to start a pod, excluding time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch", startBuckets),
		startTotal: histograms("kubelet_pod_start_total_duration_seconds",
			"Duration in seconds to start a pod since creation, including time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch", startBuckets),
	}
	r.MustRegister(m.illegalEdges, m.userNamespaces, m.userNamespacesFailed, m.startedPods, m.startedPodsFailed, m.started, m.startedFailed,
		m.terminated, m.rejected, m.worker, m.workerStart, m.podStart, m.startSLI, m.startTotal)
	return m
}

func (m Metrics) off() bool { return m.illegalEdges == nil }

func (m Metrics) illegalEdge() {
	if !m.off() {
		m.illegalEdges.Inc()
	}
}

// containerType is a kubelet's name for the kind of a pod's container.
func containerType(p *v1.Pod, name string) string {
	switch {
	case pod.IsInit(&p.Spec, name):
		return "init_container"
	case pod.Find(pod.Containers(&p.Spec), name) == nil:
		return "ephemeral_container"
	}
	return "container"
}

// operation counts an operation that has ended with this outcome. What a lost link has cut off is not an
// error of the pod.
func (m Metrics) operation(p *v1.Pod, out plan.Outcome, err error) {
	if m.off() {
		return
	}
	failed := err != nil && !errors.Is(err, host.ErrUnreachable) && !out.Transport
	switch out.Operation.Kind {
	case plan.OpSandbox:
		m.startedPods.Inc()
		if failed {
			m.startedPodsFailed.Inc()
		}
	case plan.OpStart:
		kind := containerType(p, out.Operation.Container)
		m.started.WithLabelValues(kind).Inc()
		if failed {
			m.startedFailed.WithLabelValues(kind, out.Reason).Inc()
		}
	}
	if !pod.HasUserNamespace(p) {
		return
	}
	if out.Operation.Kind == plan.OpSandbox {
		m.userNamespaces.Inc()
	}
	if failed && (out.Operation.Kind == plan.OpSandbox || out.Operation.Kind == plan.OpStart) {
		m.userNamespacesFailed.Inc()
	}
}

// statuses counts the containers that have terminated between two statuses of a pod that this process
// generated.
func (m Metrics) statuses(p *v1.Pod, before, after *v1.PodStatus) {
	if m.off() || before.Phase == "" {
		return
	}
	for s := range pod.AllStatuses(after) {
		t := s.State.Terminated
		if t == nil {
			t = s.LastTerminationState.Terminated
		}
		if t == nil || t.ContainerID == "" || knewTermination(before, s.Name, t.ContainerID) {
			continue
		}
		m.terminated.WithLabelValues(containerType(p, s.Name), strconv.Itoa(int(t.ExitCode)), t.Reason).Inc()
	}
}

func knewTermination(before *v1.PodStatus, name, id string) bool {
	s := pod.FindStatus(before, name)
	if s == nil {
		return false
	}
	for _, t := range []*v1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated} {
		if t != nil && t.ContainerID == id {
			return true
		}
	}
	return false
}

func (m Metrics) reject(reason string) {
	if !m.off() {
		m.rejected.WithLabelValues(reason).Inc()
	}
}

// starting follows the start of one pod, for the durations of its start. A pod that already ran when this
// process saw it first has none.
type starting struct {
	seen    time.Time // zero: not followed, or done
	pulls   time.Duration
	pulling time.Time // since when images are pulled; zero: none is
}

// follow begins to follow a pod at its worker's first decision, if nothing of it runs yet. created is when
// the worker was created.
func (s *starting) follow(m Metrics, now, created time.Time, o pod.Observed) {
	if m.off() || !o.Fresh() || o.Exists() {
		return
	}
	s.seen = created
	m.workerStart.Observe(now.Sub(created).Seconds())
}

// pull notes whether images of the pod are being pulled.
func (s *starting) pull(now time.Time, pulling bool) {
	switch {
	case pulling && s.pulling.IsZero():
		s.pulling = now
	case !pulling && !s.pulling.IsZero():
		s.pulls += now.Sub(s.pulling)
		s.pulling = time.Time{}
	}
}

// reported observes the durations when the pod is reported as running with all its containers.
func (s *starting) reported(m Metrics, now time.Time, p *v1.Pod, status *v1.PodStatus) {
	if s.seen.IsZero() {
		return
	}
	if pod.Terminal(status.Phase) || p.DeletionTimestamp != nil {
		s.seen = time.Time{}
		return
	}
	if status.Phase != v1.PodRunning || len(status.ContainerStatuses) != len(p.Spec.Containers) {
		return
	}
	for i := range status.ContainerStatuses {
		if c := &status.ContainerStatuses[i]; c.State.Running == nil && c.State.Terminated == nil {
			return
		}
	}
	m.podStart.Observe(now.Sub(s.seen).Seconds())
	s.seen = time.Time{}
	if pod.IsStatic(p) || p.CreationTimestamp.IsZero() {
		return // it was not created through the API
	}
	total := now.Sub(p.CreationTimestamp.Time)
	m.startTotal.WithLabelValues().Observe(max(total, 0).Seconds())
	m.startSLI.WithLabelValues().Observe(max(total-s.pulls-initDuration(status), 0).Seconds())
}

// initDuration is how long the init containers ran.
func initDuration(status *v1.PodStatus) time.Duration {
	var first, last time.Time
	for i := range status.InitContainerStatuses {
		t := status.InitContainerStatuses[i].State.Terminated
		if t == nil {
			continue // a sidecar
		}
		if first.IsZero() || t.StartedAt.Time.Before(first) {
			first = t.StartedAt.Time
		}
		if t.FinishedAt.After(last) {
			last = t.FinishedAt.Time
		}
	}
	return last.Sub(first)
}

// syncing measures a pod sync in the kubelet's sense: a decision, with the operations that it began.
type syncing struct {
	decided bool      // at least once
	since   time.Time // of the sync under way; zero: none is
	kind    string
	updated bool // the pod has changed since the last decision
}

// begin notes the beginning of a decision.
func (s *syncing) begin(w *worker, now time.Time, o pod.Observed) {
	if w.loop.cfg.Metrics.off() {
		return
	}
	if !s.decided {
		w.starting.follow(w.loop.cfg.Metrics, now, w.created, o)
	}
	if s.since.IsZero() {
		s.since, s.kind = now, s.kindOf(w)
	}
	s.decided, s.updated = true, false
}

func (s *syncing) kindOf(w *worker) string {
	switch {
	case !s.decided:
		return "create"
	case w.term != nil || w.phase != pod.Syncing:
		return "kill"
	case s.updated:
		return "update"
	}
	return "sync"
}

// end notes the end of a decision. The sync ends when no operation is under way.
func (s *syncing) end(w *worker, now time.Time) {
	if w.loop.cfg.Metrics.off() {
		return
	}
	pulling := false
	for _, f := range w.flights {
		pulling = pulling || f.op.Kind == plan.OpPull
	}
	w.starting.pull(now, pulling)
	if len(w.flights) == 0 && !s.since.IsZero() {
		w.loop.cfg.Metrics.worker.WithLabelValues(s.kind).Observe(now.Sub(s.since).Seconds())
		s.since = time.Time{}
	}
}
