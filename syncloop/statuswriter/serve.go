package statuswriter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/pod"
)

// serve is one worker: it takes an entry, writes it if that is due, and settles the result.
func (w *Writer) serve(ctx context.Context, queue workqueue.TypedDelayingInterface[types.UID]) {
	for {
		uid, down := queue.Get()
		if down || ctx.Err() != nil {
			return
		}
		if e := w.begin(uid, queue.AddAfter); e != nil {
			callCtx, cancel := context.WithTimeout(ctx, writeTimeout)
			err := w.write(callCtx, e)
			cancel()
			if ctx.Err() != nil {
				return
			}
			w.finishWrite(klog.FromContext(ctx).WithValues("pod", klog.KRef(e.ref.Namespace, e.ref.Name), "uid", uid), e, err)
		}
		queue.Done(uid)
	}
}

// begin returns the entry of uid if a write is due. Otherwise it returns nil, and after calls it
// again in time.
func (w *Writer) begin(uid types.UID, after func(types.UID, time.Duration)) *entry {
	silence := w.cfg.Silent()
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.entries[uid]
	if e == nil {
		return nil
	}
	if left := time.Until(e.lag); left > 0 {
		after(uid, left)
	} else if !e.lag.IsZero() {
		e.lag, e.object.doubt = time.Time{}, true
		w.enqueue(e)
	}
	switch left := time.Until(e.at); {
	case e.state != due && e.state != held && e.state != failed && e.state != silent:
		return nil
	case left > 0:
		after(uid, left)
		return nil
	case silence:
		w.enter(e, silent, silentPause)
		return nil
	}
	e.object.doubt = e.object.doubt || e.state == silent // the other process may have changed it
	w.enter(e, writing, 0)
	return e
}

// finishWrite handles the result of one write and calls the callbacks.
func (w *Writer) finishWrite(log klog.Logger, e *entry, err error) {
	w.mu.Lock()
	var done func()
	if e.state == finished {
		done, e.final = e.final, nil
	}
	accepted, failures := e.accepted(), w.retries.NumRequeues(e.ref.UID)
	news := accepted && !e.notified
	e.notified = accepted
	switch {
	case e.state == finished && err != nil, apierrors.IsForbidden(err) && e.forgotten:
		// Nothing waits for the write. If it was forbidden, the name belongs to a pod of another node,
		// and our object is gone.
		w.enter(e, finished, 0)
	case err != nil:
		if failures == 0 {
			log.Error(err, "Failed to write the pod status, will retry")
		}
		least, _ := apierrors.SuggestsClientDelay(err)
		w.enter(e, failed, max(wait.Jitter(w.retries.When(e.ref.UID), 0.25), time.Duration(least)*time.Second))
	default:
		if failures > 0 {
			log.Info("Wrote the pod status after failures", "failures", failures)
			w.retries.Forget(e.ref.UID)
		}
		changed := e.state == rewrite
		if w.enter(e, idle, 0); changed {
			w.submit(e)
		}
	}
	w.mu.Unlock()
	if done != nil {
		done()
	}
	if news {
		w.cfg.Changed(e.ref)
	}
}

// write makes the API server's object match the wanted status, or deletes the object after Final. A
// nil error means that this attempt has nothing left to do.
func (w *Writer) write(ctx context.Context, e *entry) error {
	ref, ok := w.cfg.Mirror(e.ref)
	if !ok {
		return nil // Reconcile is called when the mirror pod appears
	}
	w.mu.Lock()
	e.standIn(ref.UID)
	o, wanted, version, final := e.object, e.wanted, e.version, e.final != nil
	known := *o
	w.mu.Unlock()
	if known.rv == "" || known.doubt || final && !known.deleting {
		read, err := w.get(ctx, e, ref, o)
		if err != nil || read == nil {
			return err
		}
		known = *read
	}
	var err error
	if wanted != nil {
		err = w.patch(ctx, e, ref, o, known, *wanted, version)
	}
	if err == nil && final && w.last(e, known.deleting) {
		err = w.delete(ctx, e, ref)
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsInvalid(err) {
		// The object does not exist, has another UID, or our copy is too old. A read decides:
		// NodeRestriction answers "not found" for a pod that is stored but not yet in the API
		// server's own caches.
		if read, getErr := w.get(ctx, e, ref, o); getErr != nil || read == nil {
			return getErr
		}
	}
	return err
}

// last reports whether the object is to be deleted now that its status is written.
func (w *Writer) last(e *entry, deleting bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case e.state == finished:
		return false
	case e.object.sent != e.version:
		w.enqueue(e) // a newer status was set meanwhile: it is written first
		return false
	case e.object.uid != e.ref.UID:
		w.enter(e, finished, 0) // the mirror manager deletes it
		return false
	}
	return deleting // otherwise Reconcile is called when it has a deletionTimestamp
}

// patch sends the difference between the known status of o and the wanted one merged into it.
func (w *Writer) patch(ctx context.Context, e *entry, ref pod.Ref, o *object, known object, wanted v1.PodStatus, version uint64) error {
	body, err := statusPatch(ref.UID, known.status, w.cfg.Merge(known.status, wanted))
	if err != nil {
		return fmt.Errorf("status patch of pod %s: %w", ref, err)
	}
	var p *v1.Pod // nil if there is nothing to send
	if body != nil && known.rv+string(body) != known.noop {
		if p, err = w.cfg.Pods.Pods(ref.Namespace).Patch(ctx, ref.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status"); err != nil {
			return fmt.Errorf("patch status of pod %s: %w", ref, err)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case p == nil:
	case p.UID != ref.UID: // a server that does not check the precondition
		w.gone(e, ref.UID)
		return nil
	case p.ResourceVersion != "" && p.ResourceVersion == known.rv:
		o.noop = known.rv + string(body)
	default:
		o.learn(p)
	}
	if version > o.sent && !e.changed.IsZero() {
		w.cfg.Synced(time.Since(e.changed))
	}
	if o.sent = max(o.sent, version); o.sent == e.version {
		e.changed = time.Time{}
	}
	return nil
}

// delete deletes the object. The UID precondition protects a successor of the same name.
func (w *Writer) delete(ctx context.Context, e *entry, ref pod.Ref) error {
	now := int64(0)
	if err := w.cfg.Pods.Pods(ref.Namespace).Delete(ctx, ref.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &now, Preconditions: metav1.NewUIDPreconditions(string(ref.UID)),
	}); err != nil {
		return fmt.Errorf("delete pod %s: %w", ref, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gone(e, ref.UID)
	return nil
}

// get reads the object from the API server and returns the updated copy. If it does not exist
// or has another UID, get finishes the entry and returns nil without an error.
func (w *Writer) get(ctx context.Context, e *entry, ref pod.Ref, o *object) (*object, error) {
	w.mu.Lock()
	before := o.rv
	w.mu.Unlock()
	p, err := w.cfg.Pods.Pods(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case apierrors.IsNotFound(err), err == nil && p.UID != ref.UID:
		w.gone(e, ref.UID)
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get pod %s: %w", ref, err)
	}
	// The read is consistent with the store, so an earlier observation is not newer, whatever its
	// resourceVersion.
	if o.rv == before {
		o.rv, o.doubt = "", false
	}
	o.learn(p)
	known := *o
	return &known, nil
}

// gone records that the object to write to does not exist any more. It does not finish a static
// pod's entry: a missing mirror pod is recreated, and Reconcile is called for the new one.
func (w *Writer) gone(e *entry, uid types.UID) {
	if uid == e.ref.UID {
		w.enter(e, finished, 0)
	}
}

// podSchema has the keys by which the lists of a pod are merged.
var podSchema = strategicpatch.PatchMetaFromStruct{T: reflect.TypeFor[v1.Pod]()}

// statusPatch is the strategic merge patch from one status to another, with the UID as
// precondition, or nil if they are equal.
func statusPatch(uid types.UID, from, to v1.PodStatus) ([]byte, error) {
	old, err1 := runtime.DefaultUnstructuredConverter.ToUnstructured(&v1.Pod{Status: from})
	next, err2 := runtime.DefaultUnstructuredConverter.ToUnstructured(&v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}, Status: to})
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	patch, err := strategicpatch.CreateTwoWayMergeMapPatchUsingLookupPatchMeta(old, next, podSchema)
	if err != nil || patch["status"] == nil {
		return nil, err
	}
	return json.Marshal(patch)
}
