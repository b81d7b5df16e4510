package syncloop

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/admit"
	"github.com/bowline-k8s/bowline/syncloop/allocation"
	"github.com/bowline-k8s/bowline/syncloop/plan"
	"github.com/bowline-k8s/bowline/wall"
)

// worker is a pod worker: one goroutine that owns one life of one pod, from the first sight of its
// UID until Gone. The fields below the line belong to that goroutine alone. Others send it mail
// through the inbox, and read its published state.
type worker struct {
	loop *Loop
	ref  pod.Ref
	born uint64 // its number in the order of creation
	// created is when the worker was created: with the first news of the pod.
	created time.Time
	// static reports whether it is a static pod.
	static bool
	inbox  *inbox
	done   chan struct{} // closed when the worker has ended

	pub published

	// ── owned by run ──
	api    *v1.Pod           // the pod as its source has it
	pod    *v1.Pod           // api with its allocation
	answer allocation.Answer // the last one
	asked  struct {
		pod     *v1.Pod
		version uint64
	}
	progress *v1.PodCondition // PodResizeInProgress
	phase    pod.Phase
	term     *plan.Terminate
	ledger   plan.Ledger
	needSeq  uint64
	absent   bool
	volumes  plan.VolumeState
	flights  map[plan.Key]*flight
	ended    sync.WaitGroup // goroutines of the operations
	wakeAt   time.Time
	images   map[string]*pulled // by container name, from OpPull
	resync   time.Time          // when the volumes are refreshed next
	stuck    int                // volume refreshes that have failed in a row
	hashes   map[string]string
	former   map[string][]string // hashes of the same specs in other forms
	hashGen  *v1.Pod             // the pod that hashes were made from
	status   v1.PodStatus        // last generated
	admitted bool                // or rejected; see admit
	starting starting            // the durations of its start, for the metrics
	trace    tracing             // of its start
	sync     syncing
	refused  map[string]admit.Rejection
	told     obstacles
	epilogue bool // its first news was that its pod is gone: an earlier worker has ended the pod
	late     bool // the event that the pod takes too long to end has been recorded
}

// flight is one operation under way.
type flight struct {
	op     plan.Operation
	since  time.Time
	cancel context.CancelFunc
}

// newWorker creates a worker; the caller holds l.mu.
func newWorker(l *Loop, ref pod.Ref, static bool) *worker {
	l.born++
	return &worker{
		loop: l, ref: ref, born: l.born, created: time.Now(), static: static,
		inbox:   newInbox(),
		done:    make(chan struct{}),
		flights: map[plan.Key]*flight{},
		images:  map[string]*pulled{},
	}
}

// run manages the pod until it is gone or ctx ends. When ctx ends, operations are cancelled, except
// for the start of a container, which may finish (settled). The containers keep running; the next
// process adopts them.
func (w *worker) run(ctx context.Context) {
	defer close(w.done)
	defer func() { w.trace.end(time.Now(), "the worker ended before the pod ran") }()
	ctx, cancel := context.WithCancel(ctx)
	defer w.ended.Wait()
	defer cancel()
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("pod", klog.KRef(w.ref.Namespace, w.ref.Name), "uid", w.ref.UID))

	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		w.read(w.inbox.take())
		if w.api == nil || !w.ask() { // the first mail, or the answer, is on the way
			select {
			case <-ctx.Done():
				return
			case <-w.inbox.notify:
				continue
			}
		}
		if w.turn(ctx); w.phase == pod.Gone {
			w.loop.forget(ctx, w)
			return
		}
		if !w.wait(ctx, timer) {
			return
		}
	}
}

// turn makes one decision: it plans, publishes and reports the decision, and begins its operations.
func (w *worker) turn(ctx context.Context) {
	log, now := klog.FromContext(ctx), time.Now()
	in := w.input(now)
	w.sync.begin(w, now, in.Observed)
	ctx = w.trace.follow(ctx, w, in.Observed)
	w.admit(&in)
	p := plan.Decide(in)
	if p.Phase != w.phase {
		log.V(3).Info("Changed pod phase", "from", w.phase, "to", p.Phase, "reason", p.Reason)
	}
	if p.Illegal != "" {
		log.Error(nil, "Rejected an illegal phase transition", "edge", p.Illegal)
		w.loop.cfg.Metrics.illegalEdge()
	}
	w.recordBackoffs(p.Ledger)
	if w.term == nil && p.Terminate != nil && p.Terminate.Cause == plan.CauseDeadline {
		w.loop.event(w.pod, "", v1.EventTypeNormal, p.Terminate.Reason, p.Terminate.Message)
	}
	w.phase, w.term, w.ledger, w.wakeAt = p.Phase, p.Terminate, p.Ledger, p.WakeAt
	w.watchResize(now, in)
	w.awaitSight(now, in.Observed)
	w.recordObstacles(in)
	w.publish(now, in.Observed, p)
	if p.Phase >= pod.Terminated {
		w.loop.allocation.Ended(w.ref.UID)
	}
	w.report(ctx, now, in)
	for _, key := range p.Cancel {
		if f := w.flights[key]; f != nil {
			f.cancel()
		}
	}
	for _, op := range p.Start {
		w.begin(ctx, now, op, in.Observed)
	}
	_, slow := w.awaits(now, in.Observed)
	for _, due := range []time.Time{slow, w.recordOverdue(now)} {
		if !due.IsZero() && (w.wakeAt.IsZero() || due.Before(w.wakeAt)) {
			w.wakeAt = due
		}
	}
	w.refresh(ctx, now)
	w.sync.end(w, time.Now())
}

// awaitSight ensures that a worker that waits for a newer observation gets one. The observation
// after an operation may have failed while an older one succeeded; then nothing announces what the
// next relist confirms.
func (w *worker) awaitSight(now time.Time, o pod.Observed) {
	if o.Stale == "" && o.Seq < w.needSeq {
		w.loop.cfg.PLEG.Kick()
		w.wakeAt = now.Add(time.Second)
	}
}

// read merges the mail into the worker's own state.
func (w *worker) read(m mail) {
	if w.api == nil {
		w.epilogue = m.absent && m.terminate != nil && m.terminate.Cause == plan.CauseDeleted
	}
	if m.pod != nil {
		// downwardAPI volumes show labels and annotations.
		if w.api != nil && (!maps.Equal(w.api.Labels, m.pod.Labels) || !maps.Equal(w.api.Annotations, m.pod.Annotations)) {
			w.resync = time.Time{}
		}
		if w.sync.updated = w.api != nil; w.sync.updated {
			w.loop.cfg.Metrics.wanted(w.api, m.pod)
		}
		w.api = m.pod
		if w.pod == nil {
			w.pod = m.pod // until its allocation is known
		}
	}
	if m.absent && !w.absent {
		w.absent = true
		if !w.mirrorOutlivesSource() {
			w.loop.cfg.Status.Absent(w.ref.UID) // there is no object whose status could be written
		}
	}
	if m.volumes {
		w.resync = time.Time{}
		w.ledger = plan.ContentChanged(w.ledger)
	}
	if m.unwritten {
		w.resync = time.Now().Add(unwrittenPause)
	}
	if m.refreshed != nil {
		if *m.refreshed == nil {
			w.stuck = 0
		} else {
			// Like a kubelet, retry sooner than the next regular refresh: a full disk may have room
			// again. A plain count, not wait.Backoff, because the cap differs each time.
			w.resync = time.Now().Add(min(unwrittenPause<<min(w.stuck, 10), w.loop.resyncPeriod()))
			w.stuck++
		}
	}
	w.term = plan.Merge(w.term, m.terminate)
	for _, f := range m.outcomes {
		if fl := w.flights[f.Operation.Key()]; fl != nil {
			fl.cancel()
			delete(w.flights, f.Operation.Key())
		}
		w.needSeq = max(w.needSeq, f.needSeq)
		w.ledger = plan.Record(w.ledger, f.Outcome, w.pod, w.loop.jitter())
		w.record(f)
		w.applyOutcome(f)
	}
	w.answered(m.answer, time.Now())
}

// applyOutcome records the effects of an operation that are not in the ledger.
func (w *worker) applyOutcome(f finished) {
	if f.Err != "" || f.Transport {
		if f.Operation.Kind == plan.OpRelease {
			w.volumes = plan.VolumesNone
		}
		return
	}
	switch f.Operation.Kind {
	case plan.OpVolumes:
		w.volumes = plan.VolumesReady
		w.resync = time.Now().Add(w.loop.resyncPeriod())
	case plan.OpPull:
		w.images[f.Operation.Container] = f.image
	case plan.OpRelease:
		w.volumes = plan.VolumesReleased
	}
}

// input collects everything that the planner reads.
func (w *worker) input(now time.Time) plan.Input {
	observed := w.loop.cfg.PLEG.Cache().Get(w.ref.UID)
	observed.Ref = w.ref
	if w.hashGen != w.pod {
		w.hashes, w.former = hashes(w.pod), map[string][]string{}
		w.hashGen = w.pod
	}
	addFormerHashes(w.former, w.pod, w.hashes, &observed)
	in := plan.Input{
		Now: now, Pod: w.pod, Phase: w.phase, Terminate: w.term,
		Observed: observed, NeedSeq: w.needSeq,
		Verdicts: w.loop.cfg.Prober.Verdicts(w.ref.UID),
		Ledger:   w.ledger, Volumes: w.volumes,
		Reported: w.reported(),
		Hold:     w.hold(&observed),
		Jitter:   w.loop.jitter(), FirstRestartPeriod: w.loop.cfg.FirstRestartPeriod, MaxRestartPeriod: w.loop.cfg.MaxRestartPeriod,
		Hashes: w.hashes, FormerHashes: w.former, Allocated: w.answer.Allocated,
	}
	for _, f := range w.flights {
		in.InFlight = append(in.InFlight, f.op)
	}
	return in
}

// reported reports whether the end of the pod is known for good: the API server has its last status, or
// has no such object, and the source shows it as ended or deleted. An older version of the object that
// arrived later would start the pod again. The source of a static pod shows its own retained status.
func (w *worker) reported() bool {
	shown := w.static || w.api.DeletionTimestamp != nil || pod.Terminal(w.api.Status.Phase)
	return w.absent || shown && w.loop.cfg.Status.Accepted(w.ref.UID)
}

// begin runs one operation in a goroutine of its own. The outcome comes back as mail after a new
// observation of the pod, so that the next decision sees its effect.
func (w *worker) begin(ctx context.Context, now time.Time, op plan.Operation, o pod.Observed) {
	if op.Kind == plan.OpSandbox && w.volumes == plan.VolumesReady {
		// The host may have rebooted and lost its mounts: prepare the volumes again, concurrently
		// with the new sandbox.
		w.volumes = plan.VolumesNone
		w.inbox.wake()
	}
	opCtx, cancel := context.WithCancelCause(ctx)
	w.flights[op.Key()] = &flight{op: op, since: now, cancel: func() { cancel(errAborted) }}
	job := job{loop: w.loop, pod: w.allowed(), op: op, observed: o, podIPs: w.loop.podIPs(w.pod, o), image: w.images[op.Container], ledger: w.ledger}
	w.ended.Add(1)
	go func() {
		defer budget.From(ctx).Recover("an operation of a pod")
		defer w.ended.Done()
		spanCtx, span := job.span(opCtx)
		out := job.run(spanCtx)
		endSpan(opCtx, span, out)
		f := finished{Outcome: out, image: job.image}
		if op.Kind.Mutates() {
			f.needSeq = w.loop.cfg.PLEG.Cache().NextSeq()
			// Observe with the worker's context, not opCtx: a cancelled start may have made
			// something. An error leaves the cache stale, and pleg retries.
			_, err := w.loop.cfg.PLEG.Observe(ctx, w.ref, job.changed(out))
			if err != nil && job.sandbox != "" && w.loop.cfg.PLEG.Cache().StaleAlone(w.ref.UID) {
				w.loop.event(job.pod, "", v1.EventTypeWarning, "FailedPodSandBoxStatus", "Unable to get pod sandbox status: "+budget.Text(err.Error()))
			}
		}
		w.inbox.put(func(m *mail) { m.outcomes = append(m.outcomes, f) })
	}()
}

// unwrittenPause is the delay before a volume refresh is retried that could not reach the host, or
// that failed for the first time.
const unwrittenPause = 2 * time.Second

// refresh updates the volumes of a running pod on the kubelet's schedule.
func (w *worker) refresh(ctx context.Context, now time.Time) {
	if w.volumes != plan.VolumesReady || w.phase != pod.Syncing || now.Before(w.resync) {
		return
	}
	w.resync = now.Add(w.loop.resyncPeriod())
	p, stuck := w.pod, w.stuck > 0
	w.ended.Add(1)
	go func() {
		defer budget.From(ctx).Recover("update a pod's volumes")
		defer w.ended.Done()
		err := w.loop.cfg.Volumes.Refresh(ctx, p)
		switch {
		case ctx.Err() != nil, err == nil && !stuck:
			return
		case errors.Is(err, host.ErrUnreachable):
			// The link failed, not the volume: retry soon.
			w.inbox.put(func(m *mail) { m.unwritten = true })
			return
		case err != nil:
			w.loop.failedVolumes(p, err)
		}
		w.inbox.put(func(m *mail) { m.refreshed = &err })
	}()
}

// wait sleeps until there is mail, or until the planner's or the volumes' next time. It returns
// false when ctx has ended.
func (w *worker) wait(ctx context.Context, timer *time.Timer) bool {
	at := w.wakeAt
	if w.volumes == plan.VolumesReady && w.phase == pod.Syncing && (at.IsZero() || w.resync.Before(at)) {
		at = w.resync
	}
	for {
		var due <-chan time.Time
		if !at.IsZero() {
			timer.Reset(wall.Until(at, time.Now()))
			due = timer.C
		}
		select {
		case <-ctx.Done():
			return false
		case <-w.inbox.notify:
			return true
		case <-due:
		}
		// Deadlines are in wall-clock time, and the timer stands still while this machine sleeps.
		if !at.After(time.Now()) {
			return true
		}
	}
}
