package statuswriter

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/pod"
)

// serve is one worker: it takes an entry, writes it, and settles the result.
func (w *Writer) serve(ctx context.Context) {
	for {
		e := w.next()
		if e == nil {
			return
		}
		log := klog.FromContext(ctx).WithValues("pod", klog.KRef(e.ref.Namespace, e.ref.Name), "uid", e.ref.UID)
		callCtx, cancel := context.WithTimeout(ctx, w.cfg.Timeout)
		err := w.write(callCtx, e)
		cancel()
		if ctx.Err() != nil {
			return
		}
		w.settle(log, e, err)
	}
}

// next waits for an entry to write. It returns nil when the writer stops.
func (w *Writer) next() *entry {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		for len(w.queue) == 0 && !w.stopped {
			w.work.Wait()
		}
		if w.stopped {
			return nil
		}
		uid := w.queue[0]
		w.queue = w.queue[1:]
		if e := w.entries[uid]; e != nil && e.queued {
			e.queued, e.busy = false, true
			return e
		}
	}
}

// settle handles the result of one write and calls the callbacks.
func (w *Writer) settle(log klog.Logger, e *entry, err error) {
	w.mu.Lock()
	e.busy = false
	var done func()
	if e.finished && e.final != nil {
		done, e.final = e.final, nil
	}
	accepted := e.accepted()
	news := accepted && !e.told
	e.told = accepted
	switch {
	case apierrors.IsForbidden(err) && e.forgotten:
		// The name belongs to a pod of another node: our object is gone, and nothing waits for it.
		e.finished = true
	case err != nil:
		if e.failures == 0 {
			log.Error(err, "Failed to write the pod status, will retry")
		}
		delay, _ := apierrors.SuggestsClientDelay(err)
		w.backOff(e, time.Duration(delay)*time.Second)
	default:
		if e.failures > 0 {
			log.Info("Wrote the pod status again", "failures", e.failures)
			e.failures = 0
		}
		if e.again {
			e.again = false
			w.submit(e)
		}
	}
	w.drop(e)
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
	if w.cfg.Silent() {
		w.awaitVoice(e)
		return nil
	}
	object, ok := w.cfg.Mirror(e.ref)
	if !ok {
		return nil // Reconcile is called when the mirror pod appears
	}
	w.mu.Lock()
	e.standIn(object.UID)
	wanted, version, api, rv, deleting, final, doubt := e.wanted, e.version, e.api, e.rv, e.deleting, e.final != nil, e.doubt
	w.mu.Unlock()
	if rv == "" || doubt || final && !deleting {
		p, err := w.get(ctx, e, object)
		if err != nil || p == nil {
			return err
		}
		api, deleting = p.Status, p.DeletionTimestamp != nil
	}
	if wanted != nil {
		if err := w.patch(ctx, e, object, api, *wanted, version); err != nil {
			return err
		}
	}
	if !final {
		return nil
	}
	w.mu.Lock()
	finished, latest, mirror := e.finished, e.sent == e.version, e.mirrored()
	w.mu.Unlock()
	switch {
	case finished:
		return nil
	case !latest:
		w.mu.Lock()
		e.again = true // a newer status was set meanwhile: it is written first
		w.mu.Unlock()
		return nil
	case mirror:
		w.mu.Lock()
		e.finished = true // the mirror manager deletes it
		w.mu.Unlock()
		return nil
	case !deleting:
		return nil // not being deleted: Reconcile is called when it has a deletionTimestamp
	}
	return w.delete(ctx, e, object)
}

// patch sends the difference between api and the wanted status merged into it.
func (w *Writer) patch(ctx context.Context, e *entry, object pod.Ref, api, wanted v1.PodStatus, version uint64) error {
	body, err := statusPatch(object.UID, api, w.cfg.Merge(api, wanted))
	if err != nil {
		return fmt.Errorf("status patch of pod %s: %w", object, err)
	}
	w.mu.Lock()
	rv := e.rv
	if body == nil || bytes.Equal(body, e.futile) && rv == e.futileRV {
		if e.object == object.UID {
			e.sent = max(e.sent, version)
		}
		w.mu.Unlock()
		return nil
	}
	w.mu.Unlock()
	p, err := w.cfg.Pods.Pods(object.Namespace).Patch(ctx, object.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
	switch {
	case err == nil && p.UID != object.UID:
		w.finish(e, object.UID) // a server that does not check the precondition
	case err == nil:
		w.mu.Lock()
		defer w.mu.Unlock()
		if e.object != object.UID {
			return nil // another object stands in by now; nothing was written to that one yet
		}
		if w.learn(e, p); p.ResourceVersion != "" && p.ResourceVersion == rv {
			e.futile, e.futileRV = body, rv
		}
		e.sent = max(e.sent, version)
	case apierrors.IsNotFound(err), apierrors.IsConflict(err), apierrors.IsInvalid(err):
		// The object does not exist, has another UID, or our copy is too old. A read decides:
		// NodeRestriction answers "not found" for a pod that is stored but not yet in the API
		// server's own caches.
		if p, getErr := w.get(ctx, e, object); getErr != nil || p == nil {
			return getErr
		}
		fallthrough
	default:
		return fmt.Errorf("patch status of pod %s: %w", object, err)
	}
	return nil
}

// delete deletes the object. The UID precondition protects a successor of the same name.
func (w *Writer) delete(ctx context.Context, e *entry, object pod.Ref) error {
	now := int64(0)
	err := w.cfg.Pods.Pods(object.Namespace).Delete(ctx, object.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &now, Preconditions: metav1.NewUIDPreconditions(string(object.UID)),
	})
	switch {
	case err == nil:
		w.finish(e, object.UID)
		return nil
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		if p, getErr := w.get(ctx, e, object); getErr != nil || p == nil {
			return getErr
		}
	}
	return fmt.Errorf("delete pod %s: %w", object, err)
}

// get reads the object from the API server. If it does not exist or has another UID, get finishes
// the entry and returns nil without an error.
func (w *Writer) get(ctx context.Context, e *entry, object pod.Ref) (*v1.Pod, error) {
	w.mu.Lock()
	before := e.rv
	w.mu.Unlock()
	p, err := w.cfg.Pods.Pods(object.Namespace).Get(ctx, object.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && p.UID != object.UID {
		w.finish(e, object.UID)
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get pod %s: %w", object, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	// The read is consistent with the store, so an earlier observation is not newer, whatever its
	// resourceVersion.
	if p.UID == e.object && p.ResourceVersion != "" && e.rv == before {
		e.rv, e.doubt = "", false
	}
	w.learn(e, p)
	return p, nil
}

// finish records that the object to write to does not exist any more. It does not finish a static
// pod's entry: a missing mirror pod is recreated, and Reconcile is called for the new one.
func (w *Writer) finish(e *entry, object types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e.finished = e.finished || object == e.ref.UID
}

// statusPatch is the strategic merge patch from one status to another, with the UID as
// precondition, or nil if they are equal.
func statusPatch(uid types.UID, from, to v1.PodStatus) ([]byte, error) {
	old, err := json.Marshal(v1.Pod{Status: from})
	if err != nil {
		return nil, err
	}
	next, err := json.Marshal(v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}, Status: to})
	if err != nil {
		return nil, err
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(old, next, v1.Pod{})
	if err != nil {
		return nil, err
	}
	if bytes.Equal(patch, fmt.Appendf(nil, `{"metadata":{"uid":%q}}`, uid)) {
		return nil, nil
	}
	return patch, nil
}
