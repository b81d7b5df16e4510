package statuswriter

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// A minor change is held for a while. Any other change is written at once, together with a held
// one.
func TestMinorChangesWaitForCompany(t *testing.T) {
	sandbox := func(st v1.PodStatus, ip string) v1.PodStatus {
		st.PodIP, st.PodIPs = ip, []v1.PodIP{{IP: ip}}
		st.Conditions = append(st.Conditions, v1.PodCondition{Type: v1.PodReadyToStartContainers, Status: v1.ConditionTrue})
		return st
	}
	pending := v1.PodStatus{Phase: v1.PodPending}
	bubble(t, nil, func(t *testing.T, a *api, w *Writer, p *v1.Pod) {
		w.Set(p, sandbox(pending, "10.0.0.5"))
		synctest.Wait()
		if n := len(a.asked()); n != 0 {
			t.Errorf("written at once: %v", a.asked())
		}
		// Being seen or changed again does not extend the hold.
		time.Sleep(600 * time.Millisecond)
		w.Reconcile(p)
		w.Set(p, sandbox(pending, "10.0.0.6"))
		time.Sleep(400*time.Millisecond - time.Nanosecond)
		synctest.Wait()
		if n := len(a.asked()); n != 0 {
			t.Errorf("written before its time: %v", a.asked())
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if got := a.present().Status.PodIP; got != "10.0.0.6" || len(a.asked()) != 1 {
			t.Errorf("address %q after the hold, calls %v", got, a.asked())
		}

		w.Set(p, sandbox(pending, "10.0.0.7"))
		w.Set(p, sandbox(running(v1.ConditionTrue), "10.0.0.7"))
		synctest.Wait()
		if st := a.present().Status; st.PodIP != "10.0.0.7" || st.Phase != v1.PodRunning || len(a.asked()) != 2 {
			t.Errorf("status %v, calls %v: the significant change takes the minor one with it, at once", st, a.asked())
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := len(a.asked()); n != 2 {
			t.Errorf("the held change was written once more: %v", a.asked())
		}

		// The end of the pod is never held.
		p = a.edit(func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
		w.Set(p, sandbox(running(v1.ConditionTrue), "10.0.0.8"))
		gone := false
		w.Final(pod.Ref{Namespace: "ns", Name: "p", UID: p.UID}, func() { gone = true })
		synctest.Wait()
		if !gone || a.present() != nil {
			t.Errorf("a held change kept the pod: calls %v", a.asked())
		}
		if !strings.Contains(a.bodies[len(a.bodies)-1], "10.0.0.8") {
			t.Errorf("the held change was lost: %s", a.bodies[len(a.bodies)-1])
		}
	})
}

// A caller that saw Accepted become false during a held change is notified when it is true again.
func TestAcceptedAgainAfterTheHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{}
		told := 0
		w, p := start(t, a, func(c *Config) { c.Changed = func(pod.Ref) { told++ } })
		done := v1.PodStatus{Phase: v1.PodSucceeded}
		w.Set(p, done)
		synctest.Wait()
		if told != 1 || !w.Accepted(p.UID) {
			t.Fatalf("told %d times, accepted %v", told, w.Accepted(p.UID))
		}
		done.Conditions = []v1.PodCondition{{Type: v1.PodReadyToStartContainers, Status: v1.ConditionFalse}}
		w.Set(p, done)
		synctest.Wait()
		if told != 1 || w.Accepted(p.UID) {
			t.Fatalf("while it waits: told %d times, accepted %v", told, w.Accepted(p.UID))
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if told != 2 || !w.Accepted(p.UID) {
			t.Errorf("after the hold: told %d times, accepted %v", told, w.Accepted(p.UID))
		}
	})
}

// A changed waiting message is held; a changed waiting reason is written at once.
func TestWordsOfWaitingAreHeld(t *testing.T) {
	waiting := func(reason, message string) v1.PodStatus {
		return v1.PodStatus{Phase: v1.PodPending, ContainerStatuses: []v1.ContainerStatus{{Name: "c",
			State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason, Message: message}}}}}
	}
	bubble(t, nil, func(t *testing.T, a *api, w *Writer, p *v1.Pod) {
		told := func() string {
			synctest.Wait()
			if list := a.present().Status.ContainerStatuses; len(list) > 0 {
				return list[0].State.Waiting.Reason + " " + list[0].State.Waiting.Message
			}
			return ""
		}
		w.Set(p, waiting("ContainerCreating", ""))
		if got := told(); got != "ContainerCreating " {
			t.Errorf("told %q", got)
		}
		w.Set(p, waiting("ContainerCreating", "its volumes"))
		if got := told(); got != "ContainerCreating " {
			t.Errorf("%q was not held", got)
		}
		time.Sleep(time.Second)
		if got := told(); got != "ContainerCreating its volumes" {
			t.Errorf("after the hold %q is reported", got)
		}
		w.Set(p, waiting("ErrImagePull", "no such image"))
		if got := told(); got != "ErrImagePull no such image" {
			t.Errorf("%q is reported still", got)
		}
	})
}

// Each accepted status is counted once, with the time since its first change: of a minor change that
// was held, and of one that failed at first. What others change, or what changes nothing, is not.
func TestSynced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{}
		var took []time.Duration
		w, p := start(t, a, func(c *Config) { c.Synced = func(d time.Duration) { took = append(took, d) } })
		w.Set(p, running(v1.ConditionTrue))
		synctest.Wait()
		w.Set(p, running(v1.ConditionTrue))
		minor := running(v1.ConditionTrue)
		minor.Conditions = append(minor.Conditions, v1.PodCondition{Type: v1.PodReadyToStartContainers, Status: v1.ConditionTrue})
		w.Set(p, minor)
		time.Sleep(time.Minute)
		synctest.Wait()
		a.mu.Lock()
		a.fail = func(string) error { return errors.New("away") }
		a.mu.Unlock()
		w.Set(p, running(v1.ConditionFalse))
		time.Sleep(5 * time.Second)
		w.Set(p, running(v1.ConditionUnknown))
		a.mu.Lock()
		a.fail = nil
		a.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(took) != 3 || took[0] != 0 || took[1] != holdTime || took[2] < 5*time.Second || took[2] > 20*time.Second {
			t.Errorf("synced after %v", took)
		}
	})
}
