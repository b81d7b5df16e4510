// Package statuswriter is the only writer of pod statuses to the API server. For each UID it keeps
// the newest wanted status and the newest known object of the API server. It sends the difference
// as a patch of the status subresource with the UID as precondition, retries until it succeeds, and
// finally deletes the object.
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

// Config configures a Writer.
type Config struct {
	Pods corev1client.PodsGetter
	// Merge applies a wanted status to the API's and keeps what belongs to other components
	// (status.Merge). It must be idempotent.
	Merge func(api, wanted v1.PodStatus) v1.PodStatus
	// Workers is the number of concurrent writes; 8 if zero.
	Workers int
	// Timeout of one API call; 10 s if zero.
	Timeout time.Duration
	// MinBackoff doubles up to MaxBackoff after each failure; 200 ms and 10 s if zero.
	MinBackoff, MaxBackoff time.Duration
	// Hold is how long a minor change is held, to be written together with a more important one; 1
	// s if zero, not at all if negative.
	Hold time.Duration
	// Changed is called by a worker when Accepted of a pod becomes true. It may be nil.
	Changed func(pod.Ref)
	// Silent says that another process writes for the pods now. Until it returns false, nothing is
	// written or counts as written; it is asked again every silentPause. Nil: never.
	Silent func() bool
	// Mirror returns the API object for a pod: itself, or the mirror pod of a static pod. ok is
	// false while there is none. Nil: every pod is its own object.
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

// Writer writes statuses. Its methods never wait for the API server.
type Writer struct {
	cfg Config

	mu      sync.Mutex
	work    *sync.Cond // signals that queue has grown, or that stopped is set
	queue   []types.UID
	entries map[types.UID]*entry
	stopped bool
}

// entry is what is known of one UID. Writer.mu guards all fields but ref.
type entry struct {
	ref pod.Ref

	wanted  *v1.PodStatus // nil until Set
	version uint64        // of wanted; incremented by each Set that changes it
	sent    uint64        // version that the API server has accepted

	api      v1.PodStatus // newest known status
	rv       string       // its resourceVersion; empty if unknown
	deleting bool         // the API object has a deletionTimestamp
	object   types.UID    // UID of the API object; for a static pod that of its mirror pod

	// futile is a patch that the API server accepted at futileRV and that changed nothing (a field
	// that it drops). It is not sent again.
	futile   []byte
	futileRV string

	told      bool   // Changed was called for the current acceptance
	final     func() // set by Final, until it was called
	finished  bool   // the object was deleted by us, does not exist, or has another UID
	forgotten bool   // drop the entry when nothing is left to write

	queued, busy, again bool
	failures            int
	retry               *time.Timer // set while backing off
	lag                 *time.Timer // set while the watch shows an older object than the known one
	doubt               bool        // the known object may be outdated: read it first
	hold                *time.Timer // set while a minor change is held
	silent              *time.Timer // set while another process writes for the pod
}

// New makes a Writer. Run does the writing.
func New(c Config) (*Writer, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	w := &Writer{cfg: c, entries: map[types.UID]*entry{}}
	w.work = sync.NewCond(&w.mu)
	return w, nil
}

// Run writes until ctx ends. The next process writes what is left, because it generates the same
// status again.
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

// Set makes st the wanted status of p. p is the pod as it was last read, with the Status and
// ResourceVersion that the API server had then.
func (w *Writer) Set(p *v1.Pod, st v1.PodStatus) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if old := w.entries[p.UID]; old != nil && old.forgotten && old.finished {
		delete(w.entries, p.UID) // of an earlier life; a call for it is still in flight
	}
	e := w.entry(refOf(p))
	e.forgotten = false
	w.learn(e, p)
	if e.wanted == nil || !equality.Semantic.DeepEqual(*e.wanted, st) {
		e.wanted = st.DeepCopy()
		e.version++
		e.told = false // Accepted is false until the new status is accepted
	}
	if e.sent != e.version || w.differs(e) {
		w.submit(e)
	}
}

// Reconcile compares the API server's object, as p was just read, with the wanted status, and
// writes again if another client has changed the node's part: the node controller does so when it
// considers the node dead. p may be a mirror pod; it then belongs to the entry of its static pod.
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

// Final deletes the API object, with grace 0 and the UID as precondition, once the last status is
// accepted. Call it when nothing of the pod is left on the host. It leaves an object without a
// deletionTimestamp alone, and a mirror pod to the mirror manager. A worker then calls done once,
// but not if the object was already known not to exist (Accepted is true).
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

// Accepted reports whether the API server has the terminal status that was last set for uid, or has
// no such object any more.
func (w *Writer) Accepted(uid types.UID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.entries[uid]
	return e != nil && e.accepted()
}

// standIn sets the API object that the pod's status is written to. Nothing was written to a new one
// yet.
func (e *entry) standIn(object types.UID) {
	if e.object == object {
		return
	}
	e.object, e.api, e.rv, e.deleting = object, v1.PodStatus{}, "", false
	e.sent, e.told, e.futile, e.futileRV = 0, false, nil, ""
}

// mirrored says that the pod's API object is a mirror pod.
func (e *entry) mirrored() bool { return e.object != e.ref.UID }

func (e *entry) accepted() bool {
	return e.finished || e.wanted != nil && e.sent == e.version && pod.Terminal(e.api.Phase)
}

// Absent records that the API object of uid does not exist any more, so nothing is left to write.
func (w *Writer) Absent(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e := w.entries[uid]; e != nil && !e.finished {
		e.finished = true
		w.drop(e)
	}
}

// Forget drops the entry of uid once nothing is left to write: a status that is not accepted yet,
// or a deletion, is still completed.
func (w *Writer) Forget(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e := w.entries[uid]; e != nil {
		e.forgotten = true
		w.drop(e)
	}
}

// drop removes a forgotten entry that has nothing left to write.
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

// entry returns the entry of ref, and creates it if necessary.
func (w *Writer) entry(ref pod.Ref) *entry {
	e := w.entries[ref.UID]
	if e == nil {
		e = &entry{ref: ref, object: ref.UID}
		w.entries[ref.UID] = e
	}
	return e
}

// learn records p's status and resourceVersion, unless a newer version is known.
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

// watchLag is how long a watch may show an older object than the last patch returned.
const watchLag = 10 * time.Second

// watched compares the version that a watch shows with the known one. An older version is usually a
// delayed event. If it persists, the API server has lost the known version, for example because its
// store was restored, and a read decides.
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

// silentPause is the interval at which Silent is asked again.
const silentPause = 2 * time.Second

// awaitVoice enqueues the entry again after silentPause. If Silent is still true then, another
// pause follows; otherwise the object is read first, as the other process may have changed it.
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

// differs reports whether merging the wanted status changes the API's.
func (w *Writer) differs(e *entry) bool {
	return e.wanted != nil && e.rv != "" && !equality.Semantic.DeepEqual(w.cfg.Merge(e.api, *e.wanted), e.api)
}

// enqueue queues the entry for a worker. If a worker has it, it is queued again afterwards; if it
// is in back-off, the timer does so.
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

// backOff enqueues the entry again after a pause that doubles with each failure.
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
