package syncloop

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/notify"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/allocation"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

// inbox is a worker's mailbox. It holds one mail, into which everything is merged until the worker
// takes it: the newest pod wins, a request to end is never replaced by a milder one, and no outcome
// is lost.
type inbox struct {
	mu     sync.Mutex
	mail   mail
	notify notify.Signal
}

// mail is everything that waits for one worker.
type mail struct {
	pod       *v1.Pod            // the newest, or nil
	terminate *plan.Terminate    // the most urgent, or nil
	absent    bool               // no source has the pod any more
	volumes   bool               // a ConfigMap, Secret or token that the pod mounts has changed
	unwritten bool               // a volume refresh did not reach the host
	refreshed *error             // the result of a volume refresh that reached the host
	outcomes  []finished         // operations that ended, oldest first
	answer    *allocation.Answer // the newest of the allocation manager, or nil
}

// finished is an operation's outcome, and the sequence number that an observation must have to show
// its effect.
type finished struct {
	plan.Outcome
	needSeq uint64
	image   *pulled // the images that OpPull made present
}

func newInbox() *inbox { return &inbox{notify: notify.New()} }

// put merges into the mail and wakes the worker; it never blocks.
func (b *inbox) put(merge func(*mail)) {
	b.mu.Lock()
	merge(&b.mail)
	b.mu.Unlock()
	b.wake()
}

// wake makes the worker decide again.
func (b *inbox) wake() { b.notify.Send() }

// take empties the inbox.
func (b *inbox) take() mail {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.mail
	b.mail = mail{}
	return m
}

// Wake makes the pod's worker decide again.
func (l *Loop) Wake(uid types.UID) { l.mail(uid, func(*mail) {}) }

// mail merges into the inbox of the pod's worker, if it has one.
func (l *Loop) mail(uid types.UID, merge func(*mail)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := l.workers[uid]; w != nil {
		w.inbox.put(merge)
	}
}

// deliver sends an answer of the allocation manager to the pod's worker.
func (l *Loop) deliver(uid types.UID, a allocation.Answer) {
	l.mail(uid, func(m *mail) { m.answer = &a })
}

func (l *Loop) wakeAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.workers {
		w.inbox.wake()
	}
}

// send merges mail into the inbox of the pod's worker and starts the worker if there is none, and if
// the mail is of a pod that has something left to do. It holds l.mu throughout, so that no mail
// reaches a worker that has ended.
func (l *Loop) send(ctx context.Context, ref pod.Ref, static bool, merge func(*mail)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := l.workers[ref.UID]; w != nil {
		w.inbox.put(merge)
		return
	}
	var m mail
	if merge(&m); m.idle() {
		return
	}
	w := newWorker(l, ref, static)
	w.inbox.put(func(first *mail) { *first = m })
	l.enter(w)
	l.launch(ctx, w)
}

// idle reports whether a pod without a worker needs none for this mail: the pod has ended, and the mail
// neither ends nor deletes it.
func (m *mail) idle() bool {
	return m.pod == nil || m.terminate == nil && !m.absent && pod.Terminal(m.pod.Status.Phase) && m.pod.DeletionTimestamp == nil
}

// fullName is the name of a pod with its namespace. Several lives of pods may have had it.
type fullName struct{ namespace, name string }

func nameOf(r pod.Ref) fullName { return fullName{r.Namespace, r.Name} }

// enter adds a worker to those of the loop. With leave, it is the only one that changes workers and
// byName. The caller holds l.mu.
func (l *Loop) enter(w *worker) {
	l.changed = time.Now()
	l.workers[w.ref.UID] = w
	n := nameOf(w.ref)
	if l.byName[n] == nil {
		l.byName[n] = map[types.UID]*worker{}
	}
	l.byName[n][w.ref.UID] = w
}

// leave removes a worker that has ended. The caller holds l.mu.
func (l *Loop) leave(w *worker) {
	l.changed = time.Now()
	delete(l.workers, w.ref.UID)
	n := nameOf(w.ref)
	if delete(l.byName[n], w.ref.UID); len(l.byName[n]) == 0 {
		delete(l.byName, n)
	}
}

// Unchanged reports that no pod has come or gone since a time.
func (l *Loop) Unchanged(since time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed.Before(since)
}

// launch runs a worker in its own goroutine until the worker ends. Mail that arrived while it was
// ending goes to a successor. The caller holds l.mu.
func (l *Loop) launch(ctx context.Context, w *worker) {
	l.running.Add(1)
	go func() {
		defer budget.From(ctx).Recover("the worker of a pod")
		defer l.running.Done()
		w.run(ctx)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.leave(w)
		l.wakeSameName(w)
		left := w.inbox.take()
		left.answer = nil
		if p := l.resurrect(w); p != nil {
			left.pod = p
		} else if left.pod != nil {
			left.pod = l.current(left.pod)
		}
		if !left.idle() && ctx.Err() == nil {
			l.cfg.Metrics.restart(w.static)
			next := newWorker(l, w.ref, w.static)
			next.ledger = plan.Successor(w.attempts())
			next.inbox.put(func(m *mail) { *m = left })
			l.enter(next)
			l.launch(ctx, next)
		}
	}()
}
