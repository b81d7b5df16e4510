package syncloop

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

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
func (s *starting) reported(m Metrics, now time.Time, state startState, p *v1.Pod, status *v1.PodStatus) {
	if s.seen.IsZero() || state == startPending {
		return
	}
	if state == startOver {
		s.seen = time.Time{}
		return
	}
	m.podStart.Observe(now.Sub(s.seen).Seconds())
	s.seen = time.Time{}
	if pod.IsStatic(p) || p.CreationTimestamp.IsZero() {
		return // it was not created through the API
	}
	total := now.Sub(p.CreationTimestamp.Time)
	m.startTotal.WithLabelValues().Observe(max(total, 0).Seconds())
	if stateful(p) {
		return // the SLI does not cover it
	}
	sli := max(total-s.pulls-initDuration(status), 0).Seconds()
	m.startSLI.WithLabelValues().Observe(sli)
	if !p.Spec.HostNetwork {
		m.firstSeen.Do(func() { m.firstNetwork.Set(sli) })
	}
}

// stateful reports whether the pod has a volume that outlives it or that is not made from the API, as
// the pod startup latency SLI defines it.
func stateful(p *v1.Pod) bool {
	return slices.ContainsFunc(p.Spec.Volumes, func(v v1.Volume) bool {
		return v.Secret == nil && v.ConfigMap == nil && v.DownwardAPI == nil && v.EmptyDir == nil && v.Projected == nil
	})
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
		if w.term == nil {
			w.loop.cfg.Metrics.containers.Observe(float64(len(w.api.Spec.Containers)))
			w.starting.follow(w.loop.cfg.Metrics, now, w.created, o)
		}
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
