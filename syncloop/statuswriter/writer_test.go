package statuswriter

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
)

// api is an API server with one pod, with what this package depends on: resource versions, UID
// preconditions, strategic patches, and faults on request.
type api struct {
	mu    sync.Mutex
	pod   *v1.Pod // nil if it does not exist
	rv    int
	calls []string // "patch", "get", "delete"
	// fail, if set, is called before each request and may make it fail.
	fail func(verb string) error
	// ignore makes a patch change nothing, like a server that drops unknown fields.
	ignore bool
	bodies []string
}

var gr = schema.GroupResource{Resource: "pods"}

func (a *api) client() kubernetes.Interface {
	c := &fake.Clientset{}
	c.AddReactor("*", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.calls = append(a.calls, action.GetVerb())
		if a.fail != nil {
			if err := a.fail(action.GetVerb()); err != nil {
				return true, nil, err
			}
		}
		p, err := a.do(action)
		return true, p, err
	})
	return c
}

func (a *api) do(action clienttesting.Action) (*v1.Pod, error) {
	if a.pod == nil {
		return nil, apierrors.NewNotFound(gr, "p")
	}
	switch act := action.(type) {
	case clienttesting.PatchActionImpl:
		if act.GetSubresource() != "status" || act.GetPatchType() != types.StrategicMergePatchType {
			return nil, errors.New("not a strategic merge patch of the status")
		}
		a.bodies = append(a.bodies, string(act.GetPatch()))
		var head v1.Pod
		if err := json.Unmarshal(act.GetPatch(), &head); err != nil {
			return nil, err
		}
		if head.UID != a.pod.UID {
			return nil, apierrors.NewConflict(gr, "p", errors.New("the UID in the precondition does not match"))
		}
		if a.ignore {
			return a.pod.DeepCopy(), nil
		}
		old, _ := json.Marshal(a.pod)
		next, err := strategicpatch.StrategicMergePatch(old, act.GetPatch(), v1.Pod{})
		if err != nil {
			return nil, err
		}
		var p v1.Pod
		if err := json.Unmarshal(next, &p); err != nil {
			return nil, err
		}
		a.store(&p)
	case clienttesting.DeleteActionImpl:
		if u := act.DeleteOptions.Preconditions.UID; u == nil || *u != a.pod.UID {
			return nil, apierrors.NewConflict(gr, "p", errors.New("the UID in the precondition does not match"))
		}
		if *act.DeleteOptions.GracePeriodSeconds != 0 {
			return nil, errors.New("a graceful deletion")
		}
		a.pod = nil
		return nil, nil
	}
	return a.pod.DeepCopy(), nil
}

func (a *api) store(p *v1.Pod) {
	a.rv++
	p.ResourceVersion = strconv.Itoa(a.rv)
	a.pod = p
}

// edit changes the pod as another client would, and returns it as a watch would show it.
func (a *api) edit(f func(*v1.Pod)) *v1.Pod {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pod.DeepCopy()
	f(p)
	a.store(p)
	return p.DeepCopy()
}

// setFail replaces fail.
func (a *api) setFail(f func(verb string) error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fail = f
}

// asked returns the requests so far.
func (a *api) asked() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.calls)
}

// drop deletes the pod.
func (a *api) drop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pod = nil
}

// present returns the stored pod, or nil.
func (a *api) present() *v1.Pod {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pod
}

func (a *api) count(verb string) int {
	return len(slices.DeleteFunc(a.asked(), func(c string) bool { return c != verb }))
}

// merge keeps the conditions of other components, whose types contain a slash.
func merge(api, wanted v1.PodStatus) v1.PodStatus {
	out := *wanted.DeepCopy()
	out.Conditions = nil
	for _, c := range api.Conditions {
		if strings.Contains(string(c.Type), "/") {
			out.Conditions = append(out.Conditions, c)
		}
	}
	out.Conditions = append(out.Conditions, wanted.Conditions...)
	return out
}

func running(ready v1.ConditionStatus) v1.PodStatus {
	return v1.PodStatus{Phase: v1.PodRunning, Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: ready}}}
}

func start(t *testing.T, a *api, tune func(*Config)) (*Writer, *v1.Pod) {
	t.Helper()
	a.store(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "uid"}, Status: v1.PodStatus{Phase: v1.PodPending}})
	c := Config{Pods: a.client().CoreV1(), Merge: merge}
	if tune != nil {
		tune(&c)
	}
	w, err := New(c)
	testutil.Must(t, err)
	stop := testutil.Go(t.Context(), w.Run)
	t.Cleanup(func() { _ = stop() })
	return w, a.present().DeepCopy()
}

// bubble runs a test with a Writer that writes to a.
func bubble(t *testing.T, tune func(*Config), test func(t *testing.T, a *api, w *Writer, p *v1.Pod)) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{}
		w, p := start(t, a, tune)
		test(t, a, w, p)
	})
}

func TestPatchesOnlyWhatChanged(t *testing.T) {
	bubble(t, nil, func(t *testing.T, a *api, w *Writer, _ *v1.Pod) {
		p := a.edit(func(p *v1.Pod) {
			p.Status.Conditions = []v1.PodCondition{{Type: "ex/gate", Status: v1.ConditionTrue}}
		})
		st := running(v1.ConditionFalse)
		st.PodIP = "10.0.0.5"
		w.Set(p, st)
		synctest.Wait()
		st.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}
		w.Set(p, st) // p is older than what the writer knows
		w.Set(p, st)
		synctest.Wait()
		if n := a.count("patch"); n != 2 {
			t.Fatalf("%d patches for two statuses", n)
		}
		if b := a.bodies[1]; strings.Contains(b, "podIP") || !strings.Contains(b, `"uid":"uid"`) || !strings.Contains(b, `"status":"True"`) {
			t.Errorf("second patch %s", b)
		}
		if got := a.present().Status; got.PodIP != "10.0.0.5" || len(got.Conditions) != 2 || a.count("get") != 0 {
			t.Errorf("status %+v, calls %v", got, a.asked())
		}
	})
}

func TestCoalescesWhileAWriteIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{}
		hold := make(chan struct{})
		w, p := start(t, a, nil)
		a.setFail(func(string) error {
			a.mu.Unlock()
			<-hold
			a.mu.Lock()
			return nil
		})
		for i := range 50 {
			st := running(v1.ConditionFalse)
			st.Message = strconv.Itoa(i)
			w.Set(p, st)
			synctest.Wait()
		}
		close(hold)
		synctest.Wait()
		if n := a.count("patch"); n != 2 || a.present().Status.Message != "49" {
			t.Errorf("%d patches, last message %q; want the first and the last", n, a.present().Status.Message)
		}
	})
}

func TestRetriesUntilTheAPIIsBack(t *testing.T) {
	bubble(t, nil, func(t *testing.T, a *api, w *Writer, p *v1.Pod) {
		a.setFail(func(string) error { return errors.New("connection refused") })
		w.Set(p, running(v1.ConditionFalse))
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		n := a.count("patch")
		if n < 25 || n > 50 {
			t.Errorf("%d tries in 5 minutes", n)
		}
		w.Set(p, running(v1.ConditionTrue)) // only the newest status is written
		a.setFail(nil)
		time.Sleep(15 * time.Second)
		synctest.Wait()
		if a.present().Status.Conditions[0].Status != v1.ConditionTrue || a.count("patch") != n+1 {
			t.Errorf("status %+v after %d patches", a.present().Status, a.count("patch"))
		}
	})
}

func TestReconcilePutsRightWhatAnotherWrote(t *testing.T) {
	bubble(t, nil, func(t *testing.T, a *api, w *Writer, p *v1.Pod) {
		w.Set(p, running(v1.ConditionTrue))
		synctest.Wait()
		w.Reconcile(a.edit(func(*v1.Pod) {})) // an event that changes nothing in our part
		synctest.Wait()
		if n := a.count("patch"); n != 1 {
			t.Fatalf("%d patches", n)
		}
		w.Reconcile(a.edit(func(p *v1.Pod) {
			p.Status.Conditions[0].Status = v1.ConditionFalse // the node controller
			p.Status.Conditions = append(p.Status.Conditions, v1.PodCondition{Type: "ex/gate", Status: v1.ConditionTrue})
		}))
		synctest.Wait()
		got := a.present().Status.Conditions
		if len(got) != 2 || !slices.ContainsFunc(got, func(c v1.PodCondition) bool { return c.Type == v1.PodReady && c.Status == v1.ConditionTrue }) {
			t.Errorf("conditions %+v", got)
		}
	})
}

// While another process writes for the pod, nothing is written over its status or counts as
// written. Afterwards everything is.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{}
		var silent atomic.Bool
		w, p := start(t, a, func(c *Config) { c.Silent = silent.Load })
		w.Set(p, running(v1.ConditionFalse))
		synctest.Wait()
		silent.Store(true)
		theirs := a.edit(func(p *v1.Pod) { p.Status.Conditions[0].Status = v1.ConditionTrue })
		w.Reconcile(theirs)
		done := running(v1.ConditionFalse)
		done.Phase = v1.PodSucceeded
		w.Set(theirs, done)
		synctest.Wait()
		if n := a.count("patch"); n != 1 || a.present().Status.Phase != v1.PodRunning {
			t.Errorf("%d patches, and the phase is %s", n, a.present().Status.Phase)
		}
		if w.Accepted(p.UID) {
			t.Error("what was not sent is accepted")
		}
		silent.Store(false)
		w.Reconcile(a.present().DeepCopy())
		synctest.Wait()
		if n := a.count("patch"); n != 2 || a.present().Status.Phase != v1.PodSucceeded || !w.Accepted(p.UID) {
			t.Errorf("%d patches, the phase is %s, accepted %t", n, a.present().Status.Phase, w.Accepted(p.UID))
		}
	})
}

// The held-back status is written when the silence ends, even without an event of the pod, and
// after reading what the other process wrote.
func TestTheEndOfASilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{}
		var silent atomic.Bool
		w, p := start(t, a, func(c *Config) { c.Silent = silent.Load })
		w.Set(p, running(v1.ConditionTrue))
		synctest.Wait()
		silent.Store(true)
		done := running(v1.ConditionFalse)
		done.Phase = v1.PodSucceeded
		w.Set(p, done)
		a.edit(func(p *v1.Pod) { p.Status.Conditions[0].Status = v1.ConditionFalse; p.Status.Phase = v1.PodPending })
		time.Sleep(time.Hour)
		if n := a.count("patch"); n != 1 {
			t.Errorf("%d patches in the silence", n)
		}
		silent.Store(false)
		time.Sleep(silentPause + time.Second)
		synctest.Wait()
		if n := a.count("patch"); n != 2 || a.present().Status.Phase != v1.PodSucceeded || !w.Accepted(p.UID) {
			t.Errorf("%d patches, the phase is %s, accepted %t", n, a.present().Status.Phase, w.Accepted(p.UID))
		}
	})
}

func TestAPatchThatChangesNothingIsNotRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{ignore: true}
		w, p := start(t, a, nil)
		for range 5 {
			w.Set(p, running(v1.ConditionTrue))
			synctest.Wait()
		}
		if n := a.count("patch"); n != 1 {
			t.Errorf("%d patches", n)
		}
	})
}

func TestFinalComesAfterTheLastStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{}
		var changed []pod.Ref
		w, _ := start(t, a, func(c *Config) { c.Changed = func(r pod.Ref) { changed = append(changed, r) } })
		p := a.edit(func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
		down := true
		a.setFail(func(string) error {
			if down {
				return apierrors.NewServiceUnavailable("later")
			}
			return nil
		})
		w.Set(p, v1.PodStatus{Phase: v1.PodFailed})
		done := 0
		w.Final(refOf(p), func() { done++ })
		w.Final(refOf(p), func() { done += 100 }) // was called already
		w.Forget(p.UID)                           // what is left to write is still written
		time.Sleep(time.Second)
		synctest.Wait()
		if w.Accepted(p.UID) || done != 0 {
			t.Fatal("accepted while the API server is away")
		}
		a.mu.Lock()
		down, a.calls = false, nil
		a.mu.Unlock()
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if !slices.Equal(a.asked(), []string{"patch", "delete"}) || a.present() != nil || done != 1 {
			t.Errorf("calls %v, done %d", a.calls, done)
		}
		if len(changed) != 1 {
			t.Errorf("Changed called for %v", changed)
		}
		synctest.Wait()
		if w.mu.Lock(); len(w.entries) != 0 {
			t.Error("the entry stays for ever")
		}
		w.mu.Unlock()
	})
}

func TestFinalKeepsWhatWasNotDeleted(t *testing.T) {
	bubble(t, nil, func(t *testing.T, a *api, w *Writer, p *v1.Pod) {
		w.Set(p, v1.PodStatus{Phase: v1.PodSucceeded})
		done := false
		w.Final(refOf(p), func() { done = true })
		time.Sleep(time.Minute)
		synctest.Wait()
		if a.present() == nil || done {
			t.Fatal("a pod that no one deleted is deleted")
		}
		if !w.Accepted(p.UID) {
			t.Error("its terminal status is not accepted")
		}
		w.Reconcile(a.edit(func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} }))
		synctest.Wait()
		if a.present() != nil || !done {
			t.Error("not deleted once it was asked for")
		}
	})
}

func TestAnotherUIDIsNeverTouched(t *testing.T) {
	for name, present := range map[string]bool{"recreated": true, "absent": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, nil, func(t *testing.T, a *api, w *Writer, p *v1.Pod) {
				a.edit(func(p *v1.Pod) { p.UID = "other" })
				if !present {
					a.drop()
				}
				p.DeletionTimestamp = &metav1.Time{Time: time.Now()}
				w.Set(p, v1.PodStatus{Phase: v1.PodFailed})
				done := false
				w.Final(refOf(p), func() { done = true })
				time.Sleep(time.Minute)
				synctest.Wait()
				if !w.Accepted("uid") || !done {
					t.Error("still waiting for an object that is absent")
				}
				if present && (a.present() == nil || a.present().Status.Phase != v1.PodPending) {
					t.Error("the successor was touched")
				}
				if n := len(a.asked()); n > 2 {
					t.Errorf("calls %v", a.asked())
				}
			})
		})
	}
}

func TestAcceptedAfterOurRestart(t *testing.T) {
	bubble(t, nil, func(t *testing.T, a *api, w *Writer, _ *v1.Pod) {
		p := a.edit(func(p *v1.Pod) { p.Status.Phase = v1.PodSucceeded })
		if w.Accepted(p.UID) {
			t.Error("accepted without having been set")
		}
		w.Set(p, p.Status)
		synctest.Wait()
		if !w.Accepted(p.UID) || len(a.asked()) != 0 {
			t.Errorf("accepted %v, calls %v", w.Accepted(p.UID), a.asked())
		}
		w.Set(p, running(v1.ConditionTrue)) // not terminal, so it is not accepted as such
		synctest.Wait()
		if w.Accepted(p.UID) {
			t.Error("a running pod counts as reported")
		}
	})
}

func TestAbsentAndForbiddenEndTheRetries(t *testing.T) {
	bubble(t, nil, func(t *testing.T, a *api, w *Writer, p *v1.Pod) {
		a.setFail(func(string) error { return apierrors.NewForbidden(gr, "p", errors.New("another node's")) })
		w.Set(p, running(v1.ConditionTrue))
		time.Sleep(time.Second)
		synctest.Wait()
		w.Forget(p.UID)
		time.Sleep(time.Minute)
		synctest.Wait()
		n := len(a.asked())
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(a.asked()) != n {
			t.Error("a forgotten pod is tried for ever")
		}
		w.Set(p, running(v1.ConditionFalse))
		w.Absent(p.UID)
		if !w.Accepted(p.UID) {
			t.Error("absent, and not accepted")
		}
	})
}

// A pod may have another life under the same UID before the last write of the former one ends.
func TestNextLifeWaitsForTheWrite(t *testing.T) {
	bubble(t, nil, func(t *testing.T, a *api, w *Writer, p *v1.Pod) {
		hold := make(chan struct{})
		a.setFail(func(string) error {
			a.mu.Unlock()
			<-hold
			a.mu.Lock()
			return nil
		})
		w.Set(p, running(v1.ConditionFalse))
		synctest.Wait()
		w.Absent(p.UID)
		w.Forget(p.UID)
		w.Set(p, running(v1.ConditionTrue))
		synctest.Wait()
		if n := len(a.asked()); n != 1 {
			t.Errorf("%d writes at the same time", n)
		}
		close(hold)
		synctest.Wait()
		if c := a.present().Status.Conditions; len(c) != 1 || c[0].Status != v1.ConditionTrue {
			t.Errorf("conditions %+v", c)
		}
	})
}

// TestNotFoundIsReadAgain: NodeRestriction answers "not found" for a pod that its own cache does
// not show yet. The object exists and is written.
func TestNotFoundIsReadAgain(t *testing.T) {
	for _, verb := range []string{"patch", "delete"} {
		t.Run(verb, func(t *testing.T) {
			bubble(t, nil, func(t *testing.T, a *api, w *Writer, _ *v1.Pod) {
				p := a.edit(func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
				lagging := 2
				a.setFail(func(v string) error {
					if v == verb && lagging > 0 {
						lagging--
						return apierrors.NewNotFound(gr, "p")
					}
					return nil
				})
				w.Set(p, running(v1.ConditionTrue))
				done := false
				w.Final(refOf(p), func() { done = true })
				time.Sleep(5 * time.Second)
				synctest.Wait()
				if !done || len(a.bodies) != 1 || a.present() != nil {
					t.Errorf("done %t, %d patches taken, object %v; want it written and deleted", done, len(a.bodies), a.present())
				}
			})
		})
	}
}

func TestMirrorPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{}
		object := pod.Ref{Namespace: "ns", Name: "p", UID: "uid"}
		exists := false
		w, _ := start(t, a, func(c *Config) { c.Mirror = func(pod.Ref) (pod.Ref, bool) { return object, exists } })
		static := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "static"}}
		w.Set(static, running(v1.ConditionTrue))
		synctest.Wait()
		if len(a.asked()) != 0 {
			t.Fatalf("calls %v without a mirror pod", a.asked())
		}
		exists = true
		done := false
		w.Set(static, v1.PodStatus{Phase: v1.PodFailed})
		w.Final(refOf(static), func() { done = true })
		synctest.Wait()
		if a.present() == nil || a.present().Status.Phase != v1.PodFailed || !done {
			t.Errorf("mirror pod %+v, done %v", a.present(), done)
		}
	})
}

// A mirror pod that replaces another one has no status yet, whatever was written to the other; and
// a missing mirror pod is waited for.
func TestMirrorPodReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{}
		mirror := func(uid types.UID) *v1.Pod {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.store(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: uid,
				Annotations: map[string]string{v1.MirrorPodAnnotationKey: "static"}}, Status: v1.PodStatus{Phase: v1.PodPending}})
			return a.pod.DeepCopy()
		}
		var shown atomic.Pointer[v1.Pod] // by the watch
		w, _ := start(t, a, func(c *Config) {
			c.Mirror = func(r pod.Ref) (pod.Ref, bool) {
				if p := shown.Load(); p != nil {
					r.UID = p.UID
					return r, true
				}
				return pod.Ref{}, false
			}
		})
		show := func(p *v1.Pod) {
			shown.Store(p)
			w.Reconcile(p)
			synctest.Wait()
		}
		static := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "static"}}
		told := func(what string) {
			t.Helper()
			if p := a.present(); p == nil || p.Status.Phase != v1.PodRunning {
				t.Errorf("%s: the mirror pod is %+v", what, p)
			}
		}
		w.Set(static, running(v1.ConditionTrue))
		show(mirror("m1"))
		told("the first")
		show(a.present())
		show(mirror("m2"))
		told("another in its place")
		// It goes before a status is written, and the watch shows that late.
		a.drop()
		w.Set(static, running(v1.ConditionFalse))
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if w.Accepted("static") {
			t.Error("a mirror pod that is gone counts as told")
		}
		w.Set(static, running(v1.ConditionTrue))
		synctest.Wait()
		show(mirror("m3"))
		told("the third")
		// Another pod's mirror pod with the same hash does not belong to this entry.
		patches := len(a.bodies)
		stranger := mirror("m4")
		stranger.Name = "q"
		w.Reconcile(stranger)
		synctest.Wait()
		if len(a.bodies) != patches {
			t.Errorf("a stranger was reported: %v", a.bodies[patches:])
		}
		w.Absent("static")
		w.Forget("static")
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.entries) != 0 {
			t.Errorf("%d entries are left", len(w.entries))
		}
	})
}

// TestOnTheWire checks the requests that a real client sends.
func TestOnTheWire(t *testing.T) {
	type request struct{ method, path, contentType, body string }
	got := make(chan request, 10)
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got <- request{r.Method, r.URL.Path, r.Header.Get("Content-Type"), string(b)}
		rw.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(rw).Encode(&v1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"},
			ObjectMeta: metav1.ObjectMeta{UID: "uid", ResourceVersion: "9"}, Status: v1.PodStatus{Phase: v1.PodFailed, HostIP: "192.0.2.1"}})
	}))
	defer srv.Close()
	client := kubernetes.NewForConfigOrDie(&rest.Config{Host: srv.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	w, err := New(Config{Pods: client.CoreV1(), Merge: merge})
	testutil.Must(t, err)
	stop := testutil.Go(t.Context(), w.Run)
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "uid", ResourceVersion: "8",
		DeletionTimestamp: &metav1.Time{Time: time.Now()}}, Status: v1.PodStatus{Phase: v1.PodRunning, HostIP: "192.0.2.1"}}
	w.Set(p, v1.PodStatus{Phase: v1.PodFailed, HostIP: "192.0.2.1"})
	w.Final(refOf(p), func() {})
	patch, del := <-got, <-got
	if patch.method != "PATCH" || patch.path != "/api/v1/namespaces/ns/pods/p/status" ||
		patch.contentType != "application/strategic-merge-patch+json" ||
		patch.body != `{"metadata":{"uid":"uid"},"status":{"phase":"Failed"}}` {
		t.Errorf("patch %+v", patch)
	}
	var opts metav1.DeleteOptions
	if err := json.Unmarshal([]byte(del.body), &opts); err != nil {
		t.Errorf("delete options (%s): %v", del.contentType, err)
	} else if opts.GracePeriodSeconds == nil || *opts.GracePeriodSeconds != 0 || opts.Preconditions == nil || *opts.Preconditions.UID != "uid" {
		t.Errorf("delete options %s", del.body)
	}
	if del.method != "DELETE" || del.path != "/api/v1/namespaces/ns/pods/p" {
		t.Errorf("delete %+v", del)
	}
	if err := stop(); !errors.Is(err, context.Canceled) {
		t.Errorf("Run returned %v", err)
	}
}

// TestFailureOfAWriteThatNothingNeeds: the pod went while it was written, so its failure is not
// retried and leaves no back-off behind.
func TestFailureOfAWriteThatNothingNeeds(t *testing.T) {
	bubble(t, nil, func(t *testing.T, a *api, w *Writer, p *v1.Pod) {
		hold := make(chan struct{})
		a.setFail(func(string) error {
			a.mu.Unlock()
			<-hold
			a.mu.Lock()
			return apierrors.NewServiceUnavailable("later")
		})
		w.Set(p, running(v1.ConditionFalse))
		synctest.Wait()
		w.Absent(p.UID)
		w.Forget(p.UID)
		close(hold)
		synctest.Wait()
		if n := w.retries.NumRequeues(p.UID); n != 0 || len(w.entries) != 0 {
			t.Errorf("%d failures and %d entries of a pod that is gone", n, len(w.entries))
		}
	})
}

func TestConfigIsValidated(t *testing.T) {
	if _, err := New(Config{}); err == nil {
		t.Error("a writer without an API server")
	}
}

// A bubble does not end before its goroutines, so this test fails if a Writer has some without Run.
func TestNewStartsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, err := New(Config{Pods: (&api{}).client().CoreV1(), Merge: merge})
		testutil.Must(t, err)
		w.Set(&v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "uid"}}, running(v1.ConditionTrue))
	})
}

// TestRestoredStore: an API server whose store was restored shows an older version than the known
// one. If that persists, the object is read, believed and corrected.
func TestRestoredStore(t *testing.T) {
	bubble(t, nil, func(t *testing.T, a *api, w *Writer, _ *v1.Pod) {
		p := a.edit(func(*v1.Pod) {})
		before := p.DeepCopy()
		for range 5 {
			p = a.edit(func(p *v1.Pod) { p.Labels = map[string]string{"edited": "yes"} })
		}
		st := running(v1.ConditionTrue)
		w.Set(p, st)
		synctest.Wait()
		a.mu.Lock()
		a.rv, a.pod = 1, before
		a.pod.ResourceVersion = "1"
		restored := a.pod.DeepCopy()
		a.mu.Unlock()
		w.Reconcile(restored)
		time.Sleep(watchLag + time.Second)
		synctest.Wait()
		if got := a.present().Status; len(got.Conditions) == 0 || got.Conditions[0].Status != v1.ConditionTrue {
			t.Errorf("the restored pod has status %+v after %v", got, a.asked())
		}
	})
}
