package prober

import (
	"container/heap"
	"context"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/wall"
)

// earlyPauses are the pauses after early runs.
var earlyPauses = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Steps: 30}

// Run starts probes when they are due. It returns after ctx and every run have ended.
func (m *Manager) Run(ctx context.Context) error {
	defer m.runs.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		m.mu.Lock()
		now := time.Now()
		for len(m.heap) > 0 && !m.heap[0].due.After(now) {
			m.launch(ctx, heap.Pop(&m.heap).(*probe))
		}
		left := wall.Glance
		if len(m.heap) > 0 {
			left = wall.Until(m.heap[0].due, now)
		}
		var updates chan types.UID
		var uid types.UID
		if len(m.changed) > 0 {
			updates, uid = m.updates, m.changed[0]
		}
		m.mu.Unlock()
		timer.Reset(left)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		case <-m.kick:
		case updates <- uid:
			m.mu.Lock()
			m.changed = slices.DeleteFunc(m.changed, func(u types.UID) bool { return u == uid })
			m.mu.Unlock()
		}
	}
}

// arm schedules the first run of a probe. Liveness probes, and all probes of containers older than
// this process, start at a random offset within their period, so that they do not all run at once.
// Other probes start as soon as the initial delay is over.
func (m *Manager) arm(p *probe) {
	now := time.Now()
	delay := time.Duration(p.spec.InitialDelaySeconds) * time.Second
	// Start times are wall clock times. What follows from them has a monotonic reading, or a clock
	// that is set back by hours would stop the probe for hours.
	left := p.target.startedAt.Round(0).Add(delay).Sub(now.Round(0))
	p.begins = now.Add(min(max(left, 0), delay))
	p.early = earlyPauses
	at := p.begins
	if p.kind == Liveness || p.target.startedAt.Before(m.began) {
		at = at.Add(time.Duration(m.cfg.Random() * float64(period(p.spec))))
	}
	m.schedule(p, at)
}

// armStarted arms the probes that waited for the container to start.
func (m *Manager) armStarted(t *target) {
	for _, p := range t.probes {
		if p != nil && p.kind != Startup && p.index < 0 && !p.active && (p.kind == Readiness || !t.stopped) {
			m.arm(p)
		}
	}
}

func (m *Manager) schedule(p *probe, at time.Time) {
	p.due = at
	heap.Push(&m.heap, p)
	if p.index == 0 {
		m.kick.Send()
	}
}

// halt ends a probe: it removes it from the heap and cancels its current run.
func (m *Manager) halt(p *probe) {
	if p.index >= 0 {
		heap.Remove(&m.heap, p.index)
	}
	if p.cancel != nil {
		p.cancel()
	}
}

// launch starts one run.
func (m *Manager) launch(ctx context.Context, p *probe) {
	t := p.target
	runCtx, cancel := context.WithCancel(ctx)
	p.active, p.cancel = true, cancel
	r := run{kind: p.kind, spec: p.spec, container: t.container, id: t.id, ip: t.ip}
	m.runs.Go(func() {
		defer budget.From(ctx).Recover("run a probe")
		defer cancel()
		began := time.Now()
		o := m.probe(runCtx, r)
		took := time.Since(began)
		if runCtx.Err() != nil {
			o = outcome{} // cancelled: no result
		}
		m.finish(ctx, p, o, took)
	})
}

// finish records the outcome of one run and schedules the next.
func (m *Manager) finish(ctx context.Context, p *probe, o outcome, took time.Duration) {
	t := p.target
	m.mu.Lock()
	p.active, p.cancel = false, nil
	if t.removed || t.stopped && p.kind != Readiness || ctx.Err() != nil {
		m.mu.Unlock()
		return
	}
	m.cfg.Metrics.count(p, o, took)
	early := m.isEarly(p)
	before := p.tally
	if early && o.result == Failure {
		// The container had no time to start yet: the probe runs again soon, and this failure does
		// not count.
	} else {
		if o.result == Failure {
			p.message = o.message
		}
		p.tally = p.tally.Add(p.kind, thresholds(p.spec), o.result)
	}
	m.next(p, early && o.result != Success)
	if before.Verdict != p.tally.Verdict {
		if !slices.Contains(m.changed, t.pod.UID) {
			m.changed = append(m.changed, t.pod.UID)
		}
		m.kick.Send()
		level := 3 // the pod's readiness, or a restart, says the same
		if p.tally.Verdict == pod.VerdictFailure {
			level = 2
		}
		klog.FromContext(ctx).V(level).Info("Observed another probe result", "pod", klog.KObj(t.pod), "uid", t.pod.UID, "container", t.container.Name,
			"probe", p.kind.String(), "verdict", p.tally.Verdict.String(), "output", o.message)
	}
	if p.kind == Startup && p.tally.Verdict == pod.VerdictSuccess {
		m.armStarted(t)
	}
	owner, name, quiet := t.pod, t.container.Name, early || t.stopped
	m.mu.Unlock()
	if text, reason := o.event(p.kind); text != "" && !quiet {
		m.cfg.Event(owner, name, v1.EventTypeWarning, reason, text)
	}
}

// next schedules a probe's next run: one period after the last run was due, or sooner during the
// first period of the container.
func (m *Manager) next(p *probe, again bool) {
	if p.tally.Hold {
		return
	}
	now := time.Now()
	at := p.due.Add(period(p.spec))
	if at.Before(now) {
		at = now
	}
	if again {
		first := p.begins.Add(period(p.spec))
		at = now.Add(p.early.Step())
		if at.After(first) {
			at = first
		}
	}
	m.schedule(p, at)
}

// isEarly reports whether a run of a startup or readiness probe without any result falls within the
// first period after the initial delay. The kubelet's probe worker first runs at no fixed time
// within that period, and runs again whenever the kubelet syncs the pod's status. Several early
// runs whose failures do not count find a ready container sooner, and never give one up sooner.
func (m *Manager) isEarly(p *probe) bool {
	return p.kind != Liveness && p.tally.run == 0 && p.tally.Verdict != pod.VerdictSuccess &&
		p.due.Before(p.begins.Add(period(p.spec)))
}

func period(s *v1.Probe) time.Duration { return time.Duration(max(s.PeriodSeconds, 1)) * time.Second }

func timeout(s *v1.Probe) time.Duration { return time.Duration(max(s.TimeoutSeconds, 1)) * time.Second }

func thresholds(s *v1.Probe) Thresholds {
	return Thresholds{Success: max(int(s.SuccessThreshold), 1), Failure: max(int(s.FailureThreshold), 1)}
}

// event returns the text and the reason of an outcome's event, as the kubelet words it; empty if
// there is none.
func (o outcome) event(k Kind) (text, reason string) {
	switch {
	case o.errored != nil:
		return fmt.Sprintf("%s probe errored and resulted in %s state: %v", k, o.state, o.errored), "Unhealthy"
	case o.warning:
		return fmt.Sprintf("%s probe warning: %s", k, o.message), "ProbeWarning"
	case o.result == Failure:
		return fmt.Sprintf("%s probe failed: %s", k, o.message), "Unhealthy"
	}
	return "", ""
}

// dueHeap orders probes by due time.
type dueHeap []*probe

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *dueHeap) Push(x any) {
	p := x.(*probe)
	p.index = len(*h)
	*h = append(*h, p)
}

func (h *dueHeap) Pop() any {
	old := *h
	p := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	p.index = -1
	return p
}
