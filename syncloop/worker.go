package syncloop

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/admit"
	"github.com/bowline-k8s/bowline/syncloop/plan"
	"github.com/bowline-k8s/bowline/wall"
)

// worker owns one life of one pod: one goroutine, from the first sight of its
// UID to Gone. All fields below the line are the goroutine's alone; others talk
// to it through the inbox, and read what it last published.
type worker struct {
	loop *Loop
	ref  pod.Ref
	born uint64 // its place among the workers, by their birth
	// static: the pod is a static pod.
	static bool
	inbox  *inbox
	done   chan struct{} // closed when the worker has ended

	pub published

	// ── owned by run ──
	api     *v1.Pod // as its source has it
	pod     *v1.Pod // with the resources that it was given
	resize  resizeState
	phase   pod.Phase
	term    *plan.Terminate
	ledger  plan.Ledger
	needSeq uint64
	absent  bool
	volumes plan.VolumeState
	flights map[plan.Key]*flight
	ended   sync.WaitGroup // the operations' goroutines
	wakeAt  time.Time
	images  map[string]*pulled // by container name, from its OpPull
	resync  time.Time          // when volumes are looked at again
	stuck   int                // updates of volumes that have failed, one after another
	hashes  map[string]string
	former  map[string][]string // hashes of other forms
	hashGen *v1.Pod             // the pod that hashes were made from
	status  v1.PodStatus        // last generated
	judged  bool                // once, at the first sight of the machine
	after   []victim            // pods that end to make room for this one
	refused map[string]admit.Rejection
}

// flight is one operation under way.
type flight struct {
	op     plan.Operation
	since  time.Time
	cancel context.CancelFunc
}

// newWorker makes a worker; l.mu is held.
func newWorker(l *Loop, ref pod.Ref, static bool) *worker {
	l.born++
	return &worker{
		loop: l, ref: ref, born: l.born, static: static,
		inbox:   newInbox(),
		done:    make(chan struct{}),
		flights: map[plan.Key]*flight{},
		images:  map[string]*pulled{},
	}
}

// run drives the pod until it is gone or ctx ends. When ctx ends, operations are
// cut off and the containers live on: the next process adopts them.
func (w *worker) run(ctx context.Context) {
	defer close(w.done)
	ctx, cancel := context.WithCancel(ctx)
	defer w.ended.Wait()
	defer cancel()
	log := klog.FromContext(ctx).WithValues("pod", klog.KRef(w.ref.Namespace, w.ref.Name), "uid", w.ref.UID)
	ctx = klog.NewContext(ctx, log)

	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		w.read(w.inbox.take())
		if w.api == nil { // launched, and its first mail is on the way
			if !w.wait(ctx, timer) {
				return
			}
			continue
		}
		now := time.Now()
		w.allot(now)
		in := w.input(now)
		waits := w.admit(ctx, &in)
		p := plan.Decide(in)
		if p.Phase != w.phase {
			log.V(1).Info("Pod worker moves on", "from", w.phase, "to", p.Phase, "why", p.Reason)
		}
		if p.Illegal != "" {
			log.Error(nil, "The planner asked for a phase that cannot follow; the phase stays", "edge", p.Illegal)
			w.loop.cfg.Metrics.illegalEdge()
		}
		w.tellBackoffs(p.Ledger)
		if w.term == nil && p.Terminate != nil && p.Terminate.Cause == plan.CauseDeadline {
			w.loop.event(w.pod, "", v1.EventTypeNormal, p.Terminate.Reason, p.Terminate.Message)
		}
		w.phase, w.term, w.ledger, w.wakeAt = p.Phase, p.Terminate, p.Ledger, p.WakeAt
		w.watchResize(now, in)
		w.awaitSight(now, in.Observed)
		if waits {
			w.wakeAt = now.Add(time.Second)
		}
		w.publish(now, in.Observed, p)
		w.report(ctx, now, in)
		for _, key := range p.Cancel {
			if f := w.flights[key]; f != nil {
				f.cancel()
			}
		}
		for _, op := range p.Start {
			w.begin(ctx, now, op, in.Observed)
		}
		if _, due := w.awaits(now, in.Observed); !due.IsZero() && (w.wakeAt.IsZero() || due.Before(w.wakeAt)) {
			w.wakeAt = due
		}
		if w.phase == pod.Gone {
			w.loop.forget(ctx, w)
			return
		}
		w.refresh(ctx, now)
		if !w.wait(ctx, timer) {
			return
		}
	}
}

// awaitSight sees that a worker that waits for a newer observation gets one. The
// look that each operation ends with may have failed while another look, begun
// before it, succeeded: then nobody else announces what the next relist confirms.
func (w *worker) awaitSight(now time.Time, o pod.Observed) {
	if o.Stale == "" && o.Seq < w.needSeq {
		w.loop.cfg.PLEG.Kick()
		w.wakeAt = now.Add(time.Second)
	}
}

// tellBackoffs records the kubelet's event for each container that has crashed
// and now waits; next is the ledger that is about to replace the worker's.
func (w *worker) tellBackoffs(next plan.Ledger) {
	for name, b := range next.Backoff {
		if b.Reason == "CrashLoopBackOff" && b.ID != "" && w.ledger.Backoff[name].ID != b.ID {
			w.loop.event(w.pod, name, v1.EventTypeWarning, "BackOff", fmt.Sprintf("Back-off restarting failed container %s in pod %s_%s(%s)",
				name, w.ref.Name, w.ref.Namespace, w.ref.UID))
		}
	}
}

// read takes the mail into the worker's own state.
func (w *worker) read(m mail) {
	if m.pod != nil {
		// downwardAPI volumes show labels and annotations.
		if w.api != nil && (!maps.Equal(w.api.Labels, m.pod.Labels) || !maps.Equal(w.api.Annotations, m.pod.Annotations)) {
			w.resync = time.Time{}
		}
		w.api = m.pod
		if w.pod == nil {
			w.pod = m.pod // until it is known what it was given
		}
	}
	if m.absent && !w.absent {
		w.absent = true
		if !w.mourned() {
			w.loop.cfg.Status.Absent(w.ref.UID) // nobody holds what a status could be written to
		}
	}
	if m.volumes {
		w.resync = time.Time{}
		w.ledger = hurried(w.ledger)
	}
	if m.unwritten {
		w.resync = time.Now().Add(unwrittenPause)
	}
	if m.refreshed != nil {
		if *m.refreshed == nil {
			w.stuck = 0
		} else {
			// As a kubelet does, sooner than the next look would be: a disk that was full
			// may have room again.
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
		w.settle(f)
	}
}

// hurried drops the pauses that wait for a configMap or secret: one has changed.
func hurried(l plan.Ledger) plan.Ledger {
	backoff := make(map[string]plan.Backoff, len(l.Backoff))
	for key, b := range l.Backoff {
		if key == plan.VolumesKey || b.Reason == "CreateContainerConfigError" {
			b.Until = time.Time{}
		}
		backoff[key] = b
	}
	l.Backoff = backoff
	return l
}

// settle keeps what an operation's end means beyond the ledger.
func (w *worker) settle(f finished) {
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

// input gathers all that the planner reads.
func (w *worker) input(now time.Time) plan.Input {
	observed := w.loop.cfg.PLEG.Cache().Get(w.ref.UID)
	observed.Ref = w.ref
	if w.hashGen != w.pod {
		w.hashes, w.former = w.loop.hashes(w.pod)
		w.hashGen = w.pod
	}
	in := plan.Input{
		Now: now, Pod: w.pod, Phase: w.phase, Terminate: w.term,
		Observed: observed, NeedSeq: w.needSeq,
		Verdicts: w.loop.cfg.Prober.Verdicts(w.ref.UID),
		Ledger:   w.ledger, Volumes: w.volumes,
		Reported: w.reported(),
		Hold:     w.hold(&observed),
		Jitter:   w.loop.jitter(),
		Hashes:   w.hashes, FormerHashes: w.former, Allocated: w.resize.given,
	}
	if in.Hold == "" && !w.resize.known {
		in.Hold = "it is not known yet what the pod was given"
	}
	for _, f := range w.flights {
		in.InFlight = append(in.InFlight, f.op)
	}
	return in
}

// begin runs one operation as a child. Its outcome comes back as mail, after a
// fresh look at the pod, so that the next decision sees what it did.
func (w *worker) begin(ctx context.Context, now time.Time, op plan.Operation, o pod.Observed) {
	if op.Kind == plan.OpSandbox && w.volumes == plan.VolumesReady {
		// The machine may have been started anew and have lost what was mounted:
		// the volumes are looked at again, beside the new sandbox.
		w.volumes = plan.VolumesNone
		w.inbox.wake()
	}
	opCtx, cancel := context.WithCancel(ctx)
	w.flights[op.Key()] = &flight{op: op, since: now, cancel: cancel}
	job := job{loop: w.loop, pod: w.allowed(), op: op, observed: o, podIPs: w.loop.podIPs(w.pod, o), image: w.images[op.Container], ledger: w.ledger}
	w.ended.Add(1)
	go func() {
		defer budget.From(ctx).Recover("an operation of a pod")
		defer w.ended.Done()
		out := job.run(opCtx)
		f := finished{Outcome: out, image: job.image}
		if op.Kind.Mutates() {
			f.needSeq = w.loop.cfg.PLEG.Cache().NextSeq()
			// Looked at with the worker's context: a cancelled start may have
			// made something. An error leaves the cache stale, and pleg retries.
			_, _ = w.loop.cfg.PLEG.Observe(ctx, w.ref, job.changed(out))
		}
		w.inbox.put(func(m *mail) { m.outcomes = append(m.outcomes, f) })
	}()
}

// unwrittenPause is the time to the next try of an update of volumes that found no
// machine, or that failed for the first time.
const unwrittenPause = 2 * time.Second

// refresh brings live volumes up to date on the kubelet's schedule.
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
			// The link's failure, not the volume's: as soon as the link is back.
			w.inbox.put(func(m *mail) { m.unwritten = true })
			return
		case err != nil:
			w.loop.event(p, "", v1.EventTypeWarning, "FailedMount", err.Error())
		}
		w.inbox.put(func(m *mail) { m.refreshed = &err })
	}()
}

// wait sleeps until there is mail, or the planner's or the volumes' time has
// come. It is false when ctx has ended.
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
		// A deadline goes by the wall clock, and the timer may have stood still.
		if !at.After(time.Now()) {
			return true
		}
	}
}
