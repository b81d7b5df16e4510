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
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/util/workqueue"

	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/pod"
)

// Config configures a Writer.
type Config struct {
	Pods corev1client.PodsGetter
	// Merge applies a wanted status to the API's and keeps what belongs to other components
	// (status.Merge). It must be idempotent.
	Merge func(api, wanted v1.PodStatus) v1.PodStatus
	// MinBackoff doubles up to MaxBackoff after each failure; 200 ms and 10 s if zero.
	MinBackoff, MaxBackoff time.Duration
	// Changed is called by a worker when Accepted of a pod becomes true. It may be nil.
	Changed func(pod.Ref)
	// Synced is called for each accepted status, with the time since its first change that the API
	// server did not have. It must not block. It may be nil.
	Synced func(time.Duration)
	// Silent reports whether another process now writes the statuses. Until it returns false, the
	// writer writes nothing and counts nothing as written; it calls Silent again every silentPause. Nil: never.
	Silent func() bool
	// Mirror returns the API object for a pod: itself, or the mirror pod of a static pod. ok is
	// false while there is none. Nil: every pod is its own object.
	Mirror func(pod.Ref) (object pod.Ref, ok bool)
}

func (c *Config) validate() error {
	if c.Pods == nil || c.Merge == nil {
		return errors.New("statuswriter: Pods and Merge are required")
	}
	c.MinBackoff, c.MaxBackoff = cmp.Or(c.MinBackoff, 200*time.Millisecond), cmp.Or(c.MaxBackoff, 10*time.Second)
	if c.Changed == nil {
		c.Changed = func(pod.Ref) {}
	}
	if c.Synced == nil {
		c.Synced = func(time.Duration) {}
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
	cfg     Config
	queue   workqueue.TypedInterface[types.UID] // a worker delays what is not due
	retries workqueue.TypedRateLimiter[types.UID]

	mu      sync.Mutex
	entries map[types.UID]*entry
}

// state is what becomes of an entry next.
//
//	state     entered by                             left for
//	idle      a success                              due, held
//	due       a change                               writing
//	held      a minor change, for holdTime           due, writing
//	failed    a failed write, for its back-off       writing
//	silent    Config.Silent, for silentPause         due, writing
//	writing   a worker                               idle, failed, rewrite
//	rewrite   a change while a worker writes         idle, failed
//	finished  from each: the object was deleted by   none
//	          us, does not exist or has another UID
type state int

const (
	idle state = iota
	due
	held
	failed
	silent
	writing
	rewrite
	finished
)

// entry is the writer's state of one UID. Writer.mu guards all fields but ref.
type entry struct {
	ref pod.Ref

	state state
	at    time.Time // when due, held, failed or silent ends
	lag   time.Time // when a watch has shown an older object than the known one for too long; zero if it does not

	wanted  *v1.PodStatus // nil until Set
	version uint64        // of wanted; incremented by each Set that changes it
	changed time.Time     // since when the API server lacks a change of wanted; zero: it has them all
	object  *object
	merging merging // the last one

	notified  bool   // Changed was called for the current acceptance
	final     func() // set by Final, until it was called
	forgotten bool   // drop the entry when nothing is left to write
}

// object is the writer's copy of an API object: the pod, or the mirror pod of a static pod.
// Writer.mu guards all fields but uid.
type object struct {
	uid      types.UID
	sent     uint64       // entry.version that the API server has accepted
	status   v1.PodStatus // the newest known
	rv       string       // its resourceVersion; empty if unknown
	deleting bool         // it has a deletionTimestamp
	doubt    bool         // status may be outdated: read it first

	// noop is a resourceVersion and a patch of it that the API server accepted and that changed
	// nothing (a field that it drops). It is not sent again.
	noop string
}

// merging is the result of merging a version of the wanted status into one of an object's. Most calls of
// Set and Reconcile change neither.
type merging struct {
	object  *object
	rv      string
	version uint64
	changes bool         // the result differs from the object's status
	status  v1.PodStatus // the result, if it differs
}

// New makes a Writer. Run does the writing.
func New(c Config) (*Writer, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	return &Writer{
		cfg: c, entries: map[types.UID]*entry{}, queue: workqueue.NewTyped[types.UID](),
		retries: workqueue.NewTypedItemExponentialFailureRateLimiter[types.UID](c.MinBackoff, c.MaxBackoff),
	}, nil
}

// Run writes until ctx ends. The next process writes the remaining statuses, because it
// generates the same ones again.
func (w *Writer) Run(ctx context.Context) error {
	// Made here and not by New, because it has a goroutine.
	queue := workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[types.UID]{Queue: w.queue})
	defer queue.ShutDown()
	defer context.AfterFunc(ctx, queue.ShutDown)()
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			defer budget.From(ctx).Recover("write statuses")
			w.serve(ctx, queue)
		})
	}
	all.Wait()
	return ctx.Err()
}

// Set makes st the wanted status of p. p is the pod as it was last read, with the Status and
// ResourceVersion that the API server had then. The caller must not modify either later.
func (w *Writer) Set(p *v1.Pod, st v1.PodStatus) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.entry(refOf(p))
	e.forgotten = false
	e.object.learn(p)
	if e.wanted == nil || !pod.Equal(*e.wanted, st) {
		wanted := st
		e.wanted = &wanted
		e.version++
		if e.changed.IsZero() {
			e.changed = time.Now()
		}
		e.notified = false // Accepted is false until the new status is accepted
	}
	if e.object.sent != e.version || w.differs(e) {
		w.submit(e)
	}
}

// submit enqueues the entry at once, or after holdTime if its change is minor.
func (w *Writer) submit(e *entry) {
	switch {
	case e.state == writing || !w.minor(e):
		w.enqueue(e)
	case e.state == idle:
		w.enter(e, held, holdTime)
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
	e.object.learn(p)
	// An older version is usually a delayed event. If it persists, the API server has lost the known
	// version, for example because its store was restored, and a read decides.
	if order, err := resourceversion.CompareResourceVersion(p.ResourceVersion, e.object.rv); err != nil || order >= 0 {
		e.lag = time.Time{}
	} else if e.lag.IsZero() {
		e.lag = time.Now().Add(watchLag)
		w.queue.Add(uid)
	}
	if e.object.sent != e.version || e.final != nil || w.differs(e) {
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
	if e.state != finished && e.final == nil {
		e.final = done
		w.enqueue(e)
	}
}

// Accepted reports whether the API server has the terminal status that was last set for uid, or has
// no such object any more.
func (w *Writer) Accepted(uid types.UID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.entries[uid]
	return e != nil && e.accepted()
}

func (e *entry) accepted() bool {
	return e.state == finished || e.wanted != nil && e.object.sent == e.version && pod.Terminal(e.object.status.Phase)
}

// Absent records that the API object of uid does not exist any more, so nothing is left to write.
func (w *Writer) Absent(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e := w.entries[uid]; e != nil {
		w.enter(e, finished, 0)
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
	owes := e.final != nil || e.object.sent != e.version || e.state == writing || e.state == rewrite
	if e.forgotten && (e.state == finished || !owes) && w.entries[e.ref.UID] == e {
		delete(w.entries, e.ref.UID)
		w.retries.Forget(e.ref.UID)
	}
}

// entry returns the entry of ref, and creates it if necessary.
func (w *Writer) entry(ref pod.Ref) *entry {
	e := w.entries[ref.UID]
	if e == nil {
		e = &entry{ref: ref, object: &object{uid: ref.UID}}
		w.entries[ref.UID] = e
	}
	return e
}

// standIn sets the API object that the pod's status is written to. Nothing was written to a new one
// yet.
func (e *entry) standIn(uid types.UID) {
	if e.object.uid != uid {
		e.object, e.notified = &object{uid: uid}, false
	}
}

// learn records p's status and resourceVersion, unless o has a newer version.
func (o *object) learn(p *v1.Pod) {
	if p.UID != o.uid {
		return
	}
	o.deleting = o.deleting || p.DeletionTimestamp != nil
	if p.ResourceVersion == "" {
		return
	}
	if order, err := resourceversion.CompareResourceVersion(p.ResourceVersion, o.rv); err == nil && order <= 0 {
		return
	}
	o.status, o.rv = p.Status, p.ResourceVersion
}

const (
	workers      = 8                // concurrent writes
	writeTimeout = 10 * time.Second // of all calls of one write
	// holdTime is how long a minor change waits, to be written together with a more important one.
	holdTime = time.Second
	// watchLag is how long a watch may show an older object than the last patch returned.
	watchLag = 10 * time.Second
	// silentPause is the interval between calls of Silent.
	silentPause = 2 * time.Second
)

// differs reports whether merging the wanted status changes the API's.
func (w *Writer) differs(e *entry) bool {
	return e.wanted != nil && e.object.rv != "" && w.merged(e).changes
}

// merged merges the wanted status of an entry into its object's. Both must be known.
func (w *Writer) merged(e *entry) *merging {
	m := &e.merging
	if m.object == e.object && m.rv == e.object.rv && m.version == e.version {
		return m
	}
	*m = merging{object: e.object, rv: e.object.rv, version: e.version}
	if st := w.cfg.Merge(e.object.status, *e.wanted); !pod.Equal(st, e.object.status) {
		m.changes, m.status = true, st
	}
	return m
}

// enter is the only place where the state changes. wait is how long the entry stays in it if nothing
// happens; the worker that takes the entry now sees to that.
func (w *Writer) enter(e *entry, s state, wait time.Duration) {
	if e.state != finished {
		e.state, e.at = s, time.Now().Add(wait)
		w.queue.Add(e.ref.UID)
	}
	w.drop(e)
}

// enqueue makes the entry due, unless it is in back-off; a write under way is repeated.
func (w *Writer) enqueue(e *entry) {
	switch e.state {
	case idle, held, silent:
		w.enter(e, due, 0)
	case writing:
		w.enter(e, rewrite, 0)
	}
}

func refOf(p *v1.Pod) pod.Ref { return pod.Ref{Namespace: p.Namespace, Name: p.Name, UID: p.UID} }
