package hosts

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

func same(*v1alpha1.Host) {}

// TestHostIsManaged: from creation to Ready. A changed Host is not Ready by a report of its old
// driver.
func TestHostIsManaged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, secret("box"))
		w.api.change("box", same)
		after(5 * time.Second)
		if h := w.api.get("box"); len(h.Finalizers) != 1 || h.Finalizers[0] != v1alpha1.Finalizer {
			t.Errorf("the finalizers are %q", h.Finalizers)
		}
		if w.wanted() != "box" {
			t.Fatalf("wanted are %q", w.wanted())
		}
		w.ready("box", ReasonStarting)
		w.manages("box")
		after(2 * time.Second)
		w.ready("box", ReasonNodeReady)
		if st := w.api.get("box").Status; st.NodeName != "box" || st.Link.State != v1alpha1.LinkUp || st.Link.RoundTrip != "20ms" || st.Runtime.Version != "2.2" || *st.Pods != 1 {
			t.Errorf("the status is %+v", st)
		}

		pods := int32(9)
		before := w.set["box"]
		w.api.change("box", func(h *v1alpha1.Host) { h.Spec.MaxPods = &pods })
		after(5 * time.Second)
		w.ready("box", ReasonChanged)
		w.manages("box", func(r *Report) { r.Config, r.Pods = before, 3 })
		after(5 * time.Second)
		w.ready("box", ReasonChanged)
		if w.set["box"].MaxPods != 9 || before.MaxPods == 9 {
			t.Errorf("the host of before has %d pods, the new one %d", before.MaxPods, w.set["box"].MaxPods)
		}
		w.manages("box")
		after(5 * time.Second)
		w.ready("box", ReasonNodeReady)

		// A change that does not concern the driver does not restart it.
		sets := w.sets
		w.api.change("box", func(h *v1alpha1.Host) { h.Spec.DeletionPolicy = v1alpha1.DeletionDetach })
		after(5 * time.Second)
		w.ready("box", ReasonNodeReady)
		if w.sets != sets {
			t.Error("a change of the deletion policy restarted the driver")
		}
		w.manages("box", func(r *Report) { *r = Report{Config: r.Config, Err: errors.New("no route to host")} })
		after(5 * time.Second)
		w.ready("box", ReasonFailed, "no route to host")
		if e := w.api.get("box").Status.LastError; e != "no route to host" {
			t.Errorf("the last error is %q", e)
		}
	})
}

// TestSecretIsFollowed: a missing Secret is reported, and the Host is managed as soon as it exists.
// No other Secret is requested.
func TestSecretIsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.api.change("box", same)
		after(2 * time.Second)
		w.ready("box", ReasonCredentials, "the Secret ours/box-key does not exist", "kubectl create secret")
		empty := secret("box")
		empty.Data = nil
		if _, err := w.client.CoreV1().Secrets("ours").Create(t.Context(), empty, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		after(2 * time.Second)
		w.ready("box", ReasonCredentials, "has no ssh-privatekey")
		if w.wanted() != "" {
			t.Errorf("without a key %q is wanted", w.wanted())
		}
		if _, err := w.client.CoreV1().Secrets("ours").Update(t.Context(), secret("box"), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		after(2 * time.Second)
		w.ready("box", ReasonStarting)
		if w.wanted() != "box" {
			t.Errorf("wanted are %q", w.wanted())
		}
		asked := 0
		for _, a := range w.client.Actions() {
			if a.GetResource().Resource != "secrets" || a.GetVerb() != "list" && a.GetVerb() != "watch" {
				continue
			}
			asked++
			var only string
			switch a := a.(type) {
			case clienttesting.ListAction:
				only = a.GetListRestrictions().Fields.String()
			case clienttesting.WatchAction:
				only = a.GetWatchRestrictions().Fields.String()
			}
			if only != "metadata.name=box-key" || a.GetNamespace() != "ours" {
				t.Errorf("Secrets are asked for by %q in %q", only, a.GetNamespace())
			}
		}
		if asked == 0 {
			t.Error("no Secret was asked for")
		}
	})
}

// TestSecretMayNotBeRead: the message says what to do.
func TestSecretMayNotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		forbidden := apierrors.NewForbidden(v1.Resource("secrets"), "box-key", errors.New("no rule"))
		w.client.PrependReactor("list", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, forbidden })
		w.api.change("box", same)
		after(30 * time.Second)
		w.ready("box", ReasonCredentials, "cannot be read", "no rule", "Role with resourceNames")
	})
}

// TestNodeOfAnother: a node that is not ours is not taken, and no other Host is disturbed. When the
// node is gone, the Host is managed.
func TestNodeOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, secret("box"), secret("other"), secret("back"), node("box", ""), node("back", "back"))
		for _, name := range []string{"other", "box", "back"} {
			w.api.change(name, same)
		}
		after(20 * time.Second)
		w.ready("box", ReasonNodeTaken, "kubectl delete node box")
		if h := w.api.get("box"); len(h.Finalizers) != 0 {
			t.Errorf("a Host that is not managed has the finalizers %q", h.Finalizers)
		}
		if w.wanted() != "back other" {
			t.Errorf("wanted are %q: the node of before is this Host's own", w.wanted())
		}
		testutil.Must(t, w.client.CoreV1().Nodes().Delete(t.Context(), "box", metav1.DeleteOptions{}))
		after(20 * time.Second)
		w.ready("box", ReasonStarting)
		w.manages("other")
		after(2 * time.Second)
		w.ready("other", ReasonNodeReady)
	})
}

// TestTwoHostsOfOneName: the older one is the node. The other one becomes it when the older one is
// gone.
func TestTwoHostsOfOneName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, secret("a"), secret("b"))
		w.api.change("b", func(h *v1alpha1.Host) { h.Spec.NodeName = "box" })
		after(2 * time.Second)
		w.api.change("a", func(h *v1alpha1.Host) { h.Spec.NodeName = "box" })
		after(2 * time.Second)
		w.ready("a", ReasonHostTaken, "the Host b already has the node name box")
		if w.wanted() != "b" {
			t.Errorf("wanted are %q", w.wanted())
		}
		w.api.remove("b")
		after(20 * time.Second)
		if w.wanted() != "a" {
			t.Errorf("when b is gone, wanted are %q", w.wanted())
		}
	})
}

// TestWrongChangesNothing: a managed Host that becomes invalid says so, and its node continues as
// it was.
func TestWrongChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, secret("box"), secret("good"))
		w.api.change("box", same)
		w.api.change("good", same)
		after(2 * time.Second)
		sets, before := w.sets, w.set["box"]
		w.api.change("box", func(h *v1alpha1.Host) { h.Spec.Labels = map[string]string{"kubernetes.io/role": "master"} })
		after(5 * time.Second)
		w.ready("box", ReasonInvalid, "spec.labels", "kubectl")
		if w.sets != sets || w.set["box"] != before {
			t.Error("its driver was restarted")
		}
		w.api.change("box", func(h *v1alpha1.Host) { h.Spec.Labels = nil })
		after(5 * time.Second)
		w.ready("box", ReasonStarting)
		if w.sets != sets {
			t.Error("fixed, its driver was restarted although nothing is different")
		}
	})
}

// TestStatusIsWrittenSeldom: a steady link causes no writes. Pods that come and go each second
// cause a few writes a minute. A broken link is written at once.
func TestStatusIsWrittenSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, secret("box"))
		w.api.change("box", same)
		after(2 * time.Second)
		w.manages("box")
		after(2 * time.Second)
		written := w.api.writes["box"]
		for i := range 600 {
			w.manages("box", func(r *Report) { r.Link.RTT = time.Duration(15+i%20) * time.Millisecond })
			after(time.Second)
		}
		if got := w.api.writes["box"]; got != written {
			t.Errorf("a steady link wrote %d times", got-written)
		}
		for i := range 600 {
			w.manages("box", func(r *Report) { r.Pods = i })
			after(time.Second)
		}
		if got := w.api.writes["box"] - written; got < 10 || got > 31 {
			t.Errorf("ten minutes of pods wrote %d times", got)
		}
		after(time.Minute)
		w.manages("box", func(r *Report) { r.Pods = 600; r.Link = &Link{Message: "cut"} })
		w.ready("box", ReasonLinkGrace, "cut")
	})
}

// TestHostThatNeverWas: nothing delays the deletion of a Host that was never a node.
func TestHostThatNeverWas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, secret("box"))
		w.api.change("box", same)
		after(2 * time.Second)
		w.manages("box", func(r *Report) { *r = Report{Config: r.Config, Err: errors.New("no route to host")} })
		w.api.remove("box")
		after(5 * time.Second)
		if h := w.api.get("box"); h != nil {
			t.Errorf("it is there: %+v", h.Status)
		}
		if len(w.released) != 0 || w.wanted() != "" {
			t.Errorf("released are %q, wanted %q", w.released, w.wanted())
		}
	})
}

func TestNewWantsAll(t *testing.T) {
	_, err := New(Config{})
	for _, field := range []string{"API", "Client", "Namespace", "Template", "Sink", "Managed", "Release"} {
		if err == nil || !strings.Contains(err.Error(), field+" is required") {
			t.Errorf("without %s: %v", field, err)
		}
	}
}

// TestLocalHostIsRefused: a Host cannot name the machine that Bowline runs on, unless its
// configuration allows it.
func TestLocalHostIsRefused(t *testing.T) {
	for _, allowed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.source.cfg.AllowLocal = allowed
			w.api.change("box", func(h *v1alpha1.Host) { h.Spec = v1alpha1.HostSpec{Endpoint: "unix:///run/containerd/containerd.sock"} })
			after(5 * time.Second)
			if allowed {
				w.ready("box", ReasonStarting)
				if w.wanted() != "box" {
					t.Errorf("wanted are %q", w.wanted())
				}
				return
			}
			w.ready("box", ReasonInvalid, "hostObjects.allowLocal")
			if h := w.api.get("box"); w.wanted() != "" || len(h.Finalizers) != 0 {
				t.Errorf("wanted are %q, the finalizers %q", w.wanted(), h.Finalizers)
			}
		})
	}
}
