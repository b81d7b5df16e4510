package mirror

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
)

func static(name, hash string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(hash), Labels: map[string]string{"l": "m"},
		Annotations: map[string]string{pod.AnnotationSource: "file", pod.AnnotationConfigHash: hash}}, Spec: v1.PodSpec{NodeName: "node"}}
}

func mirrored(name, uid, hash string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(uid),
		Annotations: map[string]string{pod.AnnotationConfigHash: hash, pod.AnnotationMirror: hash}}}
}

func leaving(p *v1.Pod) *v1.Pod {
	at := metav1.Now()
	p.DeletionTimestamp = &at
	return p
}

func failed(p *v1.Pod) *v1.Pod {
	p.Status.Phase = v1.PodFailed
	return p
}

func TestDecide(t *testing.T) {
	pods := func(p ...*v1.Pod) []*v1.Pod { return p }
	for _, tc := range []struct {
		name            string
		static, mirrors []*v1.Pod
		incomplete      bool
		ending          string
		withheld        string // hash of the mirror pod
		dead            bool   // the static pod has ended as well
		want            []string
	}{
		{name: "nothing"},
		{name: "none yet", static: pods(static("a", "1")), want: []string{"make a of 1"}},
		{name: "update a mirror pod", static: pods(static("a", "1")), mirrors: pods(mirrored("a", "m", "1"))},
		{name: "stale", static: pods(static("a", "2")), mirrors: pods(mirrored("a", "m", "1")), want: []string{"delete m, make a of 2"}},
		{name: "deleted by hand", static: pods(static("a", "1")), mirrors: pods(leaving(mirrored("a", "m", "1"))), want: []string{"delete m, make a of 1"}},
		{name: "of nothing", mirrors: pods(mirrored("a", "m", "1")), want: []string{"delete m"}},
		{name: "of nothing that is known yet", mirrors: pods(mirrored("a", "m", "1")), incomplete: true},
		{name: "of a broken manifest", mirrors: pods(mirrored("a", "m", "1")), withheld: "1"},
		{name: "of a life that ended", static: pods(static("a", "1")), mirrors: pods(failed(mirrored("a", "m", "1"))), want: []string{"delete m, make a of 1"}},
		{name: "of this life, which has ended", static: pods(static("a", "1")), mirrors: pods(failed(mirrored("a", "m", "1"))), dead: true},
		{name: "the old one still ends", static: pods(static("a", "2")), mirrors: pods(mirrored("a", "m", "1")), ending: "a"},
		{name: "the removed one still ends", mirrors: pods(mirrored("a", "m", "1")), ending: "a"},
		{name: "none while the old one ends", static: pods(static("a", "2")), ending: "a"},
		{name: "two of one name", static: pods(static("a", "1"), static("a", "2")), want: []string{"make a of 1"}},
		{name: "two of one name, the second is shown", static: pods(static("a", "1"), static("a", "2")), mirrors: pods(mirrored("a", "m", "2"))},
		{name: "put back", static: pods(static("a", "1")), mirrors: pods(mirrored("a", "forgotten", "1")), want: []string{"delete forgotten, make a of 1"}},
		{name: "several", static: pods(static("a", "1"), static("b", "2")), mirrors: pods(mirrored("b", "m", "2"), mirrored("c", "n", "3")),
			want: []string{"make a of 1", "delete n"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			for _, a := range decide(input{static: tc.static, mirrors: tc.mirrors, complete: !tc.incomplete,
				forgotten: func(mirror types.UID) bool { return mirror == "forgotten" },
				ending:    func(_, name string) bool { return name == tc.ending },
				alive:     func(types.UID) bool { return !tc.dead },
				withheld:  func(a map[string]string) bool { return a[pod.AnnotationMirror] == tc.withheld }}) {
				var words []string
				if a.mirror != nil {
					words = append(words, "delete "+string(a.mirror.UID))
				}
				if a.static != nil {
					words = append(words, "make "+a.static.Name+" of "+string(a.static.UID))
				}
				if a.why == "" {
					t.Error("no reason is given")
				}
				got = append(got, strings.Join(words, ", "))
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// world is what the Manager sees and does.
type world struct {
	mu              sync.Mutex
	static, mirrors []*v1.Pod
	unseen          bool
	silent          bool
	node            types.UID
	fail            map[string]error // by verb
	refuse          string           // name of a pod that may not be created
	made            []*v1.Pod
	calls           []string
	events          []string
	poke            chan struct{}
}

func (w *world) Mirrored() <-chan struct{} { return w.poke }
func (w *world) StaticPods() (static, mirrors []*v1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.static, w.mirrors
}
func (w *world) SeenBy(string) bool              { return w.do(func() bool { return !w.unseen }) }
func (w *world) AllSeen() bool                   { return w.SeenBy("") }
func (w *world) MirrorForgotten(types.UID) bool  { return false }
func (w *world) Withheld(map[string]string) bool { return false }
func (w *world) do(f func() bool) bool           { w.mu.Lock(); defer w.mu.Unlock(); return f() }
func (w *world) change(f func())                 { w.do(func() bool { f(); return true }) }
func (w *world) got() []string                   { w.mu.Lock(); defer w.mu.Unlock(); return slices.Clone(w.calls) }

func (w *world) client() *fake.Clientset {
	c := &fake.Clientset{}
	c.AddReactor("*", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.calls = append(w.calls, action.GetVerb())
		if err := w.fail[action.GetVerb()]; err != nil {
			return true, nil, err
		}
		switch act := action.(type) {
		case clienttesting.CreateActionImpl:
			p := act.GetObject().(*v1.Pod).DeepCopy()
			if p.Name == w.refuse {
				return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, p.Name, errors.New("no"))
			}
			p.UID = types.UID(fmt.Sprintf("made-%d", len(w.made)))
			w.made = append(w.made, p)
			w.mirrors = append(w.mirrors, p)
			return true, p, nil
		case clienttesting.DeleteActionImpl:
			if *act.DeleteOptions.GracePeriodSeconds != 0 {
				return true, nil, errors.New("a graceful deletion")
			}
			w.mirrors = slices.DeleteFunc(slices.Clone(w.mirrors), func(p *v1.Pod) bool { return p.UID == *act.DeleteOptions.Preconditions.UID })
		}
		return true, nil, nil
	})
	return c
}

func run(t *testing.T, w *world, test func()) {
	synctest.Test(t, func(t *testing.T) {
		w.poke = make(chan struct{}, 1)
		m, err := New(Config{Pods: w.client().CoreV1(), Sources: w, NodeName: "node", Ending: func(string, string) bool { return false },
			Node:   func() types.UID { w.mu.Lock(); defer w.mu.Unlock(); return w.node },
			Silent: func() bool { return w.do(func() bool { return w.silent }) },
			Event:  func(reason, message string) { w.change(func() { w.events = append(w.events, reason+" "+message) }) }})
		testutil.Must(t, err)
		stop := testutil.Go(t.Context(), m.Run)
		synctest.Wait()
		test()
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestManager(t *testing.T) {
	w := &world{static: []*v1.Pod{static("a", "1")}, unseen: true}
	run(t, w, func() {
		pass := func() { time.Sleep(period + time.Second); synctest.Wait() }
		for what, change := range map[string]func(){
			"the API server's pods are not known": func() { w.unseen = true },
			"another process speaks":              func() { w.unseen, w.silent = false, true },
			"the node's object is not known":      func() { w.unseen, w.silent = false, false },
		} {
			w.change(change)
			if pass(); len(w.got()) > 0 {
				t.Errorf("%s: calls %v", what, w.got())
			}
		}
		w.change(func() { w.node, w.unseen, w.silent = "uid", false, false })
		pass()
		if len(w.made) != 1 {
			t.Fatalf("made %d", len(w.made))
		}
		p, yes := w.made[0], true
		want := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "made-0", Labels: map[string]string{"l": "m"},
			Annotations:     map[string]string{pod.AnnotationSource: "file", pod.AnnotationConfigHash: "1", pod.AnnotationMirror: "1"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "node", UID: "uid", Controller: &yes}}},
			Spec: v1.PodSpec{NodeName: "node"}}
		if diff := cmp.Diff(want, p); diff != "" || pod.IsMirror(w.static[0]) {
			t.Errorf("mirror pod %s\nstatic pod %v", diff, w.static[0].Annotations)
		}
		pass()
		if got := w.got(); len(got) != 1 {
			t.Errorf("calls %v", got)
		}
		w.change(func() { w.static = nil })
		w.poke <- struct{}{}
		synctest.Wait()
		if got := w.got(); !slices.Equal(got, []string{"create", "delete"}) || len(w.mirrors) != 0 {
			t.Errorf("calls %v, and %v are left", got, w.mirrors)
		}
	})
}

// A refused mirror pod is reported once and retried at growing intervals.
func TestRefused(t *testing.T) {
	resource := schema.GroupResource{Resource: "pods"}
	for name, tc := range map[string]struct {
		err    error
		events int
	}{
		"forbidden":    {apierrors.NewForbidden(resource, "a", errors.New("no")), 1},
		"a taken name": {apierrors.NewAlreadyExists(resource, "a"), 0},
		"unavailable":  {apierrors.NewServiceUnavailable("down"), 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{static: []*v1.Pod{static("a", "1")}, node: "uid", fail: map[string]error{"create": tc.err}}
			run(t, w, func() {
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				if n := len(w.got()); n < 15 || n > 40 || len(w.events) != tc.events {
					t.Errorf("%d calls in ten minutes, events %q", n, w.events)
				}
				w.change(func() { w.fail = nil })
				time.Sleep(maxBackoff)
				synctest.Wait()
				if len(w.made) != 1 {
					t.Error("it is not made when it is taken")
				}
			})
		})
	}
}

// A refused mirror pod delays no other one.
func TestRefusedDelaysNothingElse(t *testing.T) {
	w := &world{static: []*v1.Pod{static("a", "1")}, node: "uid", refuse: "a"}
	run(t, w, func() {
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := len(w.got()); n < 15 || n > 40 || len(w.made) != 0 {
			t.Errorf("%d calls in ten minutes, made %d", n, len(w.made))
		}
		before := len(w.got())
		w.change(func() { w.static = append(w.static, static("b", "2")) })
		w.poke <- struct{}{}
		synctest.Wait()
		if got := w.got()[before:]; len(w.made) != 1 || w.made[0].Name != "b" || len(got) != 1 {
			t.Errorf("made %d by %v", len(w.made), got)
		}
		w.change(func() { w.refuse = "" })
		time.Sleep(maxBackoff)
		synctest.Wait()
		if len(w.made) != 2 {
			t.Error("it is not made when it is taken")
		}
	})
}
