package hostadmin

import (
	"context"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/hosts"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// added makes box-1 a node.
func (w *world) added() {
	w.t.Helper()
	w.answers = []bool{true, true}
	testutil.Must(w.t, w.Add(w.ctx(), request()))
	w.said.Reset()
	w.hosts.looks = 0
}

// ends plays a Bowline that removes a deleted Host, look by look.
func ends(h *v1alpha1.Host, look int) {
	if h.DeletionTimestamp == nil {
		return
	}
	switch look {
	case 3, 4:
		say(h, metav1.ConditionFalse, hosts.ReasonDraining, "1 pod is left: default/web-0")
	case 5:
		say(h, metav1.ConditionFalse, hosts.ReasonReleasing, "the machine is being emptied")
	}
}

func TestRemove(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.added()
		w.hosts.script, w.hosts.holds = ends, 5
		testutil.Must(t, w.Remove(w.ctx(), Removal{Name: "box-1", Namespace: "bowline", Wait: true}))
		golden(t, "remove.txt", w.said.String())
		w.noHost()
		w.noSecret()
		w.fails(w.Remove(w.ctx(), Removal{Name: "box-1", Namespace: "bowline", Wait: true}), "the Host box-1 does not exist", "host list")
	})
}

func TestRemoveDetaches(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.added()
		w.hosts.script, w.hosts.holds = ends, 3
		testutil.Must(t, w.Remove(w.ctx(), Removal{Name: "box-1", Namespace: "bowline", Detach: true}))
		golden(t, "detach.txt", w.said.String())
		if h := w.hosts.byName["box-1"]; h == nil || h.Spec.DeletionPolicy != v1alpha1.DeletionDetach || h.DeletionTimestamp == nil {
			t.Errorf("the Host is %+v", h)
		}
		w.theSecret() // it is deleted with its Host, not before
		testutil.Must(t, w.Remove(w.ctx(), Removal{Name: "box-1", Namespace: "bowline", Wait: true}))
		w.noHost()
		w.noSecret()
	})
}

// TestRemoveContinues: a removal that takes too long says what it waits for, and can be
// continued.
func TestRemoveContinues(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.added()
		w.hosts.holds = 1 << 20
		w.hosts.script = func(h *v1alpha1.Host, _ int) {
			say(h, metav1.ConditionFalse, hosts.ReasonBlocked, "the machine cannot be reached")
		}
		short, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		r := Removal{Name: "box-1", Namespace: "bowline", Wait: true}
		w.fails(w.Remove(short, r), "not gone in time", "Blocked: the machine cannot be reached", "run the command again", "--detach")
		w.theSecret()
		stopped, stop := context.WithCancel(t.Context())
		time.AfterFunc(5*time.Second, stop)
		w.fails(w.Remove(stopped, r), "interrupted")
		w.hosts.holds = 0
		testutil.Must(t, w.Remove(w.ctx(), r))
		w.noSecret()
	})
}

// TestRemoveTakesWhatAddMade: the Secret of someone else stays; that of a failed add is deleted.
func TestRemoveTakesWhatAddMade(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.added()
		s := w.theSecret()
		s.Labels = nil
		_, err := w.client.CoreV1().Secrets("bowline").Update(t.Context(), s, metav1.UpdateOptions{})
		testutil.Must(t, err)
		r := Removal{Name: "box-1", Namespace: "bowline", Wait: true}
		testutil.Must(t, w.Remove(w.ctx(), r))
		w.theSecret()
		s.Labels = map[string]string{LabelHost: "box-1"}
		s.OwnerReferences = nil
		_, err = w.client.CoreV1().Secrets("bowline").Update(t.Context(), s, metav1.UpdateOptions{})
		testutil.Must(t, err)
		testutil.Must(t, w.Remove(w.ctx(), r))
		w.noSecret()
	})
}

// TestRemoveLocal: a Host on Bowline's own machine has no key.
func TestRemoveLocal(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		h := &v1alpha1.Host{ObjectMeta: metav1.ObjectMeta{Name: "here", UID: "here"}}
		h.Spec.Endpoint = "unix:///run/containerd/containerd.sock"
		w.hosts.byName["here"] = h
		testutil.Must(t, w.client.Tracker().Add(&v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "other", Namespace: "bowline"}}))
		testutil.Must(t, w.Remove(w.ctx(), Removal{Name: "here", Namespace: "bowline", Wait: true}))
		golden(t, "remove-local.txt", w.said.String())
	})
}
