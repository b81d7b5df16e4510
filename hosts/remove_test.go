package hosts

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

func onNode(name, node, controller string) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: v1.PodSpec{NodeName: node}}
	if controller != "" {
		yes := true
		p.OwnerReferences = []metav1.OwnerReference{{Kind: controller, Name: "owner", Controller: &yes}}
	}
	return p
}

// managed is a world with one managed Host whose node has pods.
func managed(t *testing.T, policy v1alpha1.DeletionPolicy) *world {
	w := newWorld(t, secret("box"), node("box", "box"), onNode("web", "box", "ReplicaSet"), onNode("agent", "box", "DaemonSet"))
	w.api.change("box", func(h *v1alpha1.Host) { h.Spec.DeletionPolicy = policy })
	after(2 * time.Second)
	w.manages("box")
	after(2 * time.Second)
	w.ready("box", ReasonNodeReady)
	return w
}

// told expects these events on the Host box, or on its node.
func (w *world) told(kind string, reasons ...string) {
	w.t.Helper()
	for _, reason := range reasons {
		found := false
		for _, e := range w.events(reason) {
			found = found || e.InvolvedObject.Kind == kind && e.InvolvedObject.Name == "box" && e.Message != ""
		}
		if !found {
			w.t.Errorf("no event %s on the %s", reason, kind)
		}
	}
}

// TestDrain: disruption budgets are respected, the driver ends the pods before it stops, the
// machine is released, and the node goes last.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := managed(t, v1alpha1.DeletionDrain)
		w.budget = apierrors.NewTooManyRequests("it would violate the budget of web", 0)
		w.release = errors.New("the machine is held by another")
		w.api.remove("box")
		after(10 * time.Second)
		w.ready("box", ReasonBlocked, "default/web", "budget of web")
		n, err := w.client.CoreV1().Nodes().Get(t.Context(), "box", metav1.GetOptions{})
		if err != nil || !n.Spec.Unschedulable {
			t.Fatalf("the node: %v, %+v", err, n)
		}
		if w.wanted() != "box" {
			t.Fatal("its driver was ended before its pods")
		}

		w.mu.Lock()
		w.budget, w.ending["box"] = nil, true
		w.mu.Unlock()
		after(10 * time.Second)
		for _, name := range w.evictions {
			if name != "web" {
				t.Errorf("%s was evicted", name)
			}
		}
		w.ready("box", ReasonDraining, "stopping the driver")
		if w.wanted() != "" || len(w.released) != 0 {
			t.Fatalf("wanted are %q, released %q", w.wanted(), w.released)
		}

		w.mu.Lock()
		w.ending["box"] = false
		w.mu.Unlock()
		after(5 * time.Second)
		w.ready("box", ReasonBlocked, "held by another", "deletionPolicy")
		if _, err := w.client.CoreV1().Nodes().Get(t.Context(), "box", metav1.GetOptions{}); err != nil {
			t.Fatalf("the node went before its machine was empty: %v", err)
		}

		w.mu.Lock()
		w.release = nil
		w.mu.Unlock()
		after(time.Minute)
		if h := w.api.get("box"); h != nil {
			t.Fatalf("it is there: %+v", h.Status)
		}
		if len(w.released) != 1 {
			t.Errorf("the machine was emptied %d times", len(w.released))
		}
		w.told("Host", "Draining", "Blocked", "Releasing", "Released")
		w.told("Node", "HostReleased")
		if _, err := w.client.CoreV1().Nodes().Get(t.Context(), "box", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the node: %v", err)
		}
		pods, err := w.client.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(pods.Items) != 0 {
			t.Errorf("%d pods are left: %v", len(pods.Items), err)
		}
	})
}

// TestDrainOfALostMachine: the status of a blocked drain names the way out, and that works.
func TestDrainOfALostMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := managed(t, v1alpha1.DeletionDrain)
		now := metav1.Now()
		stuck := onNode("stuck", "box", "")
		stuck.DeletionTimestamp, stuck.Finalizers = &now, []string{"driver"}
		testutil.Must(t, w.client.Tracker().Add(stuck))
		w.manages("box", func(r *Report) { r.Link = &Link{Message: "no answer for 2m"} })
		w.api.remove("box")
		after(20 * time.Second)
		w.ready("box", ReasonBlocked, "1 pods must stop", "no answer for 2m", `kubectl patch host box --type=merge -p '{"spec":{"deletionPolicy":"detach"}}'`)
		w.api.change("box", func(h *v1alpha1.Host) { h.Spec.DeletionPolicy = v1alpha1.DeletionDetach })
		after(10 * time.Second)
		if h := w.api.get("box"); h != nil {
			t.Fatalf("it is there: %+v", h.Status)
		}
		if len(w.released) != 0 {
			t.Error("a detach has touched the machine")
		}
		w.told("Host", "Detaching", "Detached")
		w.told("Node", "HostDetached")
	})
}

// TestDetach: the driver stops, then the node goes. No pod is evicted, and the machine is not
// touched.
func TestDetach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := managed(t, v1alpha1.DeletionDetach)
		w.mu.Lock()
		w.ending["box"] = true
		w.mu.Unlock()
		w.api.remove("box")
		after(10 * time.Second)
		w.ready("box", ReasonDetaching, "keep running")
		if _, err := w.client.CoreV1().Nodes().Get(t.Context(), "box", metav1.GetOptions{}); err != nil {
			t.Fatalf("the node went before its driver, who makes it again: %v", err)
		}
		w.mu.Lock()
		w.ending["box"] = false
		w.mu.Unlock()
		after(10 * time.Second)
		if h := w.api.get("box"); h != nil {
			t.Fatalf("it is there: %+v", h.Status)
		}
		if len(w.evictions)+len(w.released) != 0 {
			t.Errorf("evicted were %q, released %q", w.evictions, w.released)
		}
		if _, err := w.client.CoreV1().Nodes().Get(t.Context(), "box", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the node: %v", err)
		}
	})
}

// TestRemovalGoesOn: a process that starts while a Host is being deleted manages it until its pods
// have ended.
func TestRemovalGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, secret("box"), node("box", "box"), onNode("web", "box", ""))
		w.budget = apierrors.NewTooManyRequests("not yet", 0)
		w.api.change("box", func(h *v1alpha1.Host) {
			now := metav1.Now()
			h.DeletionTimestamp, h.Finalizers, h.Status.NodeName = &now, []string{v1alpha1.Finalizer, "of.another/one"}, "box"
		})
		after(5 * time.Second)
		if w.wanted() != "box" {
			t.Fatalf("wanted are %q", w.wanted())
		}
		w.mu.Lock()
		w.budget = nil
		w.mu.Unlock()
		after(20 * time.Second)
		h := w.api.get("box")
		if h == nil || len(h.Finalizers) != 1 || h.Finalizers[0] != "of.another/one" {
			t.Fatalf("it is %+v", h)
		}
		if w.wanted() != "" || len(w.released) != 1 {
			t.Errorf("wanted are %q, released %q", w.wanted(), w.released)
		}
	})
}
