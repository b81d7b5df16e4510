package hosts

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
)

// TestLockEvents: the Host says when the lock of its machine is lost, and when it is held again.
func TestLockEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := managed(t, v1alpha1.DeletionDetach)
		unlocked := func(r *Report) { r.Unlocked = true }
		w.manages("box", unlocked)
		w.manages("box", unlocked, func(r *Report) { r.Pods = 7 })
		if lost := w.events("LockLost"); len(lost) != 1 || lost[0].Type != v1.EventTypeWarning || lost[0].InvolvedObject.Kind != "Host" || len(w.events("LockReacquired")) != 0 {
			t.Errorf("%+v", lost)
		}
		w.manages("box")
		if back := w.events("LockReacquired"); len(back) != 1 || back[0].Type != v1.EventTypeNormal {
			t.Errorf("%+v", back)
		}
		// Another process has it now: that is no reacquisition.
		w.manages("box", unlocked)
		w.manages("box", func(r *Report) { *r = Report{Config: r.Config, Err: fmt.Errorf("box: %w", inUse{})} })
		after(5 * time.Second)
		w.ready("box", ReasonInUse, "another Bowline")
		if e := w.events("InUse"); len(e) != 1 || e[0].Type != v1.EventTypeWarning || len(w.events("LockReacquired")) != 1 {
			t.Errorf("%+v, and %d times reacquired", e, len(w.events("LockReacquired")))
		}
	})
}

// inUse stands for the refusal of package owner.
type inUse struct{}

func (inUse) Error() string   { return "another Bowline manages this host" }
func (inUse) HostInUse() bool { return true }

// TestEventsAreBounded: a link, a lock and a driver that go and come for hours have few events, and what
// went has come back in them.
func TestEventsAreBounded(t *testing.T) {
	for name, c := range map[string]struct {
		gone      func(*Report)
		was, back string
	}{
		"link":   {func(r *Report) { r.Link = &Link{Message: "no route to host"} }, "LinkDown", "LinkUp"},
		"lock":   {func(r *Report) { r.Unlocked = true }, "LockLost", "LockReacquired"},
		"driver": {func(r *Report) { *r = Report{Config: r.Config, Err: errors.New("no route to host")} }, "Failed", "Managed"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := managed(t, v1alpha1.DeletionDetach)
				began := time.Now()
				for time.Since(began) < 2*time.Hour {
					w.manages("box", c.gone)
					after(3 * time.Second)
					w.manages("box")
					after(3 * time.Second)
				}
				was, back := len(w.events(c.was)), len(w.events(c.back))
				if was < 5 || was > 20 || back < 5 || back > 20 || name != "driver" && was != back {
					t.Errorf("%d times %s, %d times %s", was, c.was, back, c.back)
				}
			})
		})
	}
}
