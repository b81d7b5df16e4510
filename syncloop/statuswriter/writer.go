// Package statuswriter is the only writer of pod statuses to the API server. It
// keeps, by UID, the newest wanted status and what the API server was last seen
// to hold, sends what differs as a patch of the status alone with the UID as
// precondition, tries again for ever, and at the very end deletes the object.
//
//	Set ──► queue ──► worker: Merge over the API's status, patch what differs
//	Reconcile ──► the API's status differs from the wanted one ──► queue
//	Final ──► worker: after the last status is accepted, delete with grace 0
package statuswriter

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/pod"
)

// Config of a Writer.
type Config struct {
	Pods corev1client.PodsGetter
	// Merge lays a wanted status over the API's, keeping what belongs to others
	// (status.Merge). Merging its own result again changes nothing.
	Merge func(api, wanted v1.PodStatus) v1.PodStatus
	// Workers write at the same time; 8 if zero.
	Workers int
	// Timeout of one API call; 10 s if zero.
	Timeout time.Duration
	// MinBackoff doubles up to MaxBackoff after each failure; 200 ms and 10 s if zero.
	MinBackoff, MaxBackoff time.Duration
	// Hold is how long a change waits that nobody acts on, for a weightier one to
	// go with; 1 s if zero, not at all if negative.
	Hold time.Duration
	// Changed is called, from a worker, when Accepted of a pod turns true; nil: not.
	Changed func(pod.Ref)
	// Silent says that another process speaks for the pods now: nothing is written, nor
	// counted as written, until a Reconcile after it has turned false. Nil: never.
	Silent func() bool
	// Mirror gives the API object that stands for a pod of another source; ok
	// is false until there is one. Nil: every pod is its own object.
	Mirror func(pod.Ref) (object pod.Ref, ok bool)
}

func (c *Config) validate() error {
	if c.Pods == nil || c.Merge == nil {
		return errors.New("statuswriter: Pods and Merge are required")
	}
	setDefault := func(d *time.Duration, to time.Duration) {
		if *d <= 0 {
			*d = to
		}
	}
	setDefault(&c.Timeout, 10*time.Second)
	setDefault(&c.MinBackoff, 200*time.Millisecond)
	setDefault(&c.MaxBackoff, 10*time.Second)
	if c.Hold == 0 {
		c.Hold = time.Second
	}
	if c.Workers <= 0 {
		c.Workers = 8
	}
	if c.Changed == nil {
		c.Changed = func(pod.Ref) {}
	}
	if c.Silent == nil {
		c.Silent = func() bool { return false }
	}
	if c.Mirror == nil {
		c.Mirror = func(r pod.Ref) (pod.Ref, bool) { return r, true }
	}
	return nil
}

// Writer writes statuses. Its methods never block on the API server.
type Writer struct {
	cfg Config

	mu      sync.Mutex
	work    *sync.Cond // queue has grown, or stopped
	queue   []types.UID
	entries map[types.UID]*entry
	stopped bool
}

// entry is what is known of one UID. Its fields are the mutex's, except that
// only the worker that set busy writes api, and only through the mutex.
type entry struct {
	ref pod.Ref

	wanted  *v1.PodStatus // nil until Set
	version uint64        // of wanted; grows with each Set that changed it
	sent    uint64        // version that the API server has accepted

	api      v1.PodStatus // newest seen
	rv       string       // its resourceVersion; empty: not seen
	deleting bool         // the API object has a deletionTimestamp
	object   types.UID    // of the API object: another than the pod's for a mirror pod

	// futile is a patch that the API server took and that changed nothing (a
	// field it does not keep), at futileRV: it is not sent again.
	futile   []byte
	futileRV string

	told      bool   // Changed was called for the present acceptance
	final     func() // set by Final, until it is done
	finished  bool   // the object was deleted by us, is absent, or is another UID's
	forgotten bool   // drop the entry when nothing is owed any more

	queued, busy, again bool
	failures            int
	retry               *time.Timer // set while backing off
	lag                 *time.Timer // set while the watch shows an older object than is known
	doubt               bool        // it has for too long: a read decides
	hold                *time.Timer // set while a minor change waits for company
	silent              *time.Timer // set while another process speaks
}

// New makes a Writer; Run writes.
func New(c Config) (*Writer, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	w := &Writer{cfg: c, entries: map[types.UID]*entry{}}
	w.work = sync.NewCond(&w.mu)
	return w, nil
}

// Run writes until ctx ends. What is not written then, the next process writes:
// it generates the same status again.
func (w *Writer) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.stopped = true
		w.work.Broadcast()
	})
	defer stop()
	var all sync.WaitGroup
	for range w.cfg.Workers {
		all.Go(func() {
			defer budget.From(ctx).Recover("write statuses")
			w.serve(ctx)
		})
	}
	all.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.entries {
		e.stopTimers()
	}
	return ctx.Err()
}

// Set makes st the wanted status of p. p is the pod as it was last read, its
// Status and ResourceVersion what the API server held then.
func (w *Writer) Set(p *v1.Pod, st v1.PodStatus) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if old := w.entries[p.UID]; old != nil && old.forgotten && old.finished {
		delete(w.entries, p.UID) // of a life before this one, which a call is still under way for
	}
	e := w.entry(refOf(p))
	e.forgotten = false
	w.learn(e, p)
	if e.wanted == nil || !equality.Semantic.DeepEqual(*e.wanted, st) {
		e.wanted = st.DeepCopy()
		e.version++
		e.told = false // Accepted has turned false until this one is
	}
	if e.sent != e.version || w.differs(e) {
		w.submit(e)
	}
}

// Reconcile compares what the API server holds, as p was just read, with the
// wanted status, and writes again if another has changed what is ours: the node
// controller does while it takes the node for dead. p may be a mirror pod, which is
// told by the static pod that it stands for.
func (w *Writer) Reconcile(p *v1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	uid := p.UID
	if of, is := p.Annotations[v1.MirrorPodAnnotationKey]; is {
		uid = types.UID(of)
	}
	e := w.entries[uid]
	if e == nil || e.ref.Namespace != p.Namespace || e.ref.Name != p.Name {
		return
	}
	if uid != p.UID {
		e.standIn(p.UID)
	}
	w.learn(e, p)
	w.watched(e, p.ResourceVersion)
	if w.differs(e) || e.final != nil || e.sent != e.version {
		w.submit(e)
	}
}

// Final deletes the API object, with grace 0 and the UID as precondition, after
// the last status set is accepted. To be called when nothing of the pod is left
// on the machine; an object that nobody asked to delete is left alone. done is
// called once, from a worker, when the object is deleted or found absent; not if
// Accepted is true already because the object is known to be absent.
func (w *Writer) Final(ref pod.Ref, done func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.entry(ref)
	if e.finished || e.final != nil {
		return
	}
	e.final = done
	if done == nil {
		e.final = func() {}
	}
	w.enqueue(e)
}

// Accepted reports whether the API server holds the terminal status that was
// last set for uid, or has no such object any more.
func (w *Writer) Accepted(uid types.UID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.entries[uid]
	return e != nil && e.accepted()
}

// standIn makes the API object of this UID the one that the pod is told by. One that is
// new has not been told anything.
func (e *entry) standIn(object types.UID) {
	if e.object == object {
		return
	}
	e.object, e.api, e.rv, e.deleting = object, v1.PodStatus{}, "", false
	e.sent, e.told, e.futile, e.futileRV = 0, false, nil, ""
}

// mirrored: the API object is another than the pod.
func (e *entry) mirrored() bool { return e.object != e.ref.UID }

func (e *entry) accepted() bool {
	return e.finished || e.wanted != nil && e.sent == e.version && terminal(e.api.Phase)
}

// Absent tells that no API object of uid exists any more: nothing is owed to it.
func (w *Writer) Absent(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e := w.entries[uid]; e != nil && !e.finished {
		e.finished = true
		w.drop(e)
	}
}

// Forget drops what is kept of uid, once nothing is owed to the API server: a
// status not yet accepted, or a deletion, is still carried out.
func (w *Writer) Forget(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e := w.entries[uid]; e != nil {
		e.forgotten = true
		w.drop(e)
	}
}

// drop removes a forgotten entry that owes nothing.
func (w *Writer) drop(e *entry) {
	owes := !e.finished && (e.final != nil || e.sent != e.version)
	if e.forgotten && !owes && !e.busy {
		e.stopTimers()
		if w.entries[e.ref.UID] == e {
			delete(w.entries, e.ref.UID)
		}
	}
}

func (e *entry) stopTimers() {
	for _, t := range []*time.Timer{e.retry, e.hold, e.lag, e.silent} {
		if t != nil {
			t.Stop()
		}
	}
}

// entry returns the entry of ref, made if need be.
func (w *Writer) entry(ref pod.Ref) *entry {
	e := w.entries[ref.UID]
	if e == nil {
		e = &entry{ref: ref, object: ref.UID}
		w.entries[ref.UID] = e
	}
	return e
}

// learn takes what p shows of the API object, unless something newer is known.
func (w *Writer) learn(e *entry, p *v1.Pod) {
	if p.UID != e.object {
		return
	}
	e.deleting = e.deleting || p.DeletionTimestamp != nil
	if p.ResourceVersion == "" {
		return
	}
	if e.rv != "" {
		if order, err := resourceversion.CompareResourceVersion(p.ResourceVersion, e.rv); err == nil && order <= 0 {
			return
		}
	}
	e.api, e.rv = *p.Status.DeepCopy(), p.ResourceVersion
}

// watchLag is for how long a watch may show an older object than a patch has answered.
const watchLag = 10 * time.Second

// watched compares what a watch shows with what is known. An older version is mostly an
// echo that is still to come; where it stays, the API server has lost what is known of, as
// it does when its store is restored, and a read decides what there is.
func (w *Writer) watched(e *entry, shown string) {
	order, err := resourceversion.CompareResourceVersion(shown, e.rv)
	switch {
	case err == nil && order < 0:
		if e.lag == nil {
			e.lag = time.AfterFunc(watchLag, func() {
				w.mu.Lock()
				defer w.mu.Unlock()
				if e.lag != nil {
					e.lag, e.doubt = nil, true
					w.enqueue(e)
				}
			})
		}
	case e.lag != nil:
		e.lag.Stop()
		e.lag = nil
	}
}

// silentPause is how often it is asked whether another process speaks still.
const silentPause = 2 * time.Second

// awaitVoice enqueues the entry again after a pause: its end is the end of the silence,
// or another pause. What the other process has written meanwhile is read first.
func (w *Writer) awaitVoice(e *entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.silent != nil || w.stopped {
		return
	}
	e.silent = time.AfterFunc(silentPause, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if e.silent = nil; e.sent != e.version || e.final != nil || w.differs(e) {
			e.doubt = true
			w.enqueue(e)
		}
	})
}

// differs reports whether the wanted status, laid over the API's, changes it.
func (w *Writer) differs(e *entry) bool {
	return e.wanted != nil && e.rv != "" && !equality.Semantic.DeepEqual(w.cfg.Merge(e.api, *e.wanted), e.api)
}

// enqueue gives the entry to a worker, unless one has it or it backs off.
func (w *Writer) enqueue(e *entry) {
	if e.hold != nil {
		e.hold.Stop()
		e.hold = nil
	}
	switch {
	case e.finished, e.queued, e.retry != nil:
	case e.busy:
		e.again = true
	default:
		e.queued = true
		w.queue = append(w.queue, e.ref.UID)
		w.work.Signal()
	}
}

// backOff enqueues the entry again after a while that doubles with each failure.
func (w *Writer) backOff(e *entry, atLeast time.Duration) {
	d := min(w.cfg.MinBackoff<<min(e.failures, 16), w.cfg.MaxBackoff)
	d = max(d+time.Duration(rand.Float64()*float64(d)/4), atLeast)
	e.failures++
	e.retry = time.AfterFunc(d, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		e.retry = nil
		w.enqueue(e)
	})
}

func refOf(p *v1.Pod) pod.Ref { return pod.Ref{Namespace: p.Namespace, Name: p.Name, UID: p.UID} }

func terminal(p v1.PodPhase) bool { return p == v1.PodFailed || p == v1.PodSucceeded }
