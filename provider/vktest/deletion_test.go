package vktest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/syncloop/podconfig"
)

// TestDeletionOfAPodThatIsOnlyStarting: virtual-kubelet takes a pod with a running init container,
// whose main containers do not run yet, as "not running". It deletes the object at once, and calls
// DeletePod only because the object is gone.
func TestDeletionOfAPodThatIsOnlyStarting(t *testing.T) {
	t.Parallel()
	starting := func(s *v1.PodStatus) {
		s.InitContainerStatuses = []v1.ContainerStatus{{Name: "setup", Image: "x", ImageID: "x", State: v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: metav1.Now()}}}}
		s.ContainerStatuses = []v1.ContainerStatus{{Name: "main", Image: "x", State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "PodInitializing"}}}}
	}
	withInit := func(p *v1.Pod) { p.Spec.InitContainers = []v1.Container{{Name: "setup", Image: "x"}} }

	t.Run("alone", func(t *testing.T) {
		w := newBareWorld(t)
		w.pod("web-0", withInit)
		s := newScript()
		there := make(chan bool, 10) // whether the object still existed at DeletePod
		s.onDelete = func(p *v1.Pod) { there <- w.getPod(p.Name) != nil }
		w.alone(s)
		w.until("created", func() bool { return s.saw("create web-0") })
		w.setStatus("web-0", starting)
		w.deletePod("web-0", 600)
		w.until("the API object gone, 10 min too soon", func() bool { return w.getPod("web-0") == nil })
		select {
		case early := <-there:
			if early {
				t.Error("DeletePod came before the object went; virtual-kubelet has fixed this")
			}
		case <-time.After(5 * time.Second): // never called: even worse
		}
	})
	t.Run("behind", func(t *testing.T) {
		w := newWorld(t)
		o, p := w.added("web-0", withInit)
		w.setStatus("web-0", starting)
		w.deletePod("web-0", 600)
		w.until("the loop asked to end it", func() bool { return o.saw("terminate web-0") })
		w.until("the source says DELETE", func() bool { return o.got(podconfig.Delete, p) })
		w.stays(time.Second, "the API object", func() bool { return w.getPod("web-0") != nil })
	})
}

// TestDeletionAfterGraceWhateverRuns: after DeletePod has returned, virtual-kubelet deletes the
// object when the grace period is over, whatever still runs.
func TestDeletionAfterGraceWhateverRuns(t *testing.T) {
	t.Parallel()
	t.Run("alone", func(t *testing.T) {
		w := newBareWorld(t)
		s, _ := w.created("db-0")
		w.setStatus("db-0", runningStatus)
		w.deletePod("db-0", 2)
		w.until("DeletePod", func() bool { return s.saw("delete db-0") })
		w.until("the API object gone", func() bool { return w.getPod("db-0") == nil })
		if s.held("db-0") == nil {
			t.Error("the script ended by itself; the test shows nothing")
		}
	})
	t.Run("behind", func(t *testing.T) {
		w := newWorld(t)
		o, _ := w.added("db-0")
		w.setStatus("db-0", runningStatus)
		w.deletePod("db-0", 2)
		w.until("the loop asked to end it, after the grace", func() bool { return o.saw("terminate db-0") })
		w.stays(2*time.Second, "the API object", func() bool { return w.getPod("db-0") != nil })
	})
}

// TestMissedDelete: a delete that the watch missed arrives as a tombstone, which virtual-kubelet
// drops.
func TestMissedDelete(t *testing.T) {
	t.Parallel()
	t.Run("alone", func(t *testing.T) {
		w := newBareWorld(t)
		s, _ := w.created("lost")
		w.wire.lose()
		w.deletePod("lost", 0)
		w.pod("later")
		w.wire.restore()
		w.until("the wire works again", func() bool { return s.saw("create later") })
		w.stays(2*time.Second, "its containers, unknown to the cluster", func() bool { return !s.saw("delete lost") && s.held("lost") != nil })
	})
	t.Run("behind", func(t *testing.T) {
		w := newWorld(t)
		o, p := w.added("lost")
		w.wire.lose()
		w.deletePod("lost", 0)
		later := w.pod("later")
		w.wire.restore()
		w.until("the wire works again", func() bool { return o.got(podconfig.Add, later) })
		w.until("REMOVE", func() bool { return o.got(podconfig.Remove, p) })
		if _, err := o.node.Pods().Lister().Pods(w.ns).Get("lost"); err == nil {
			t.Error("the lister holds a pod that is gone; housekeeping would keep it")
		}
	})
}

// TestRecreatedUnderItsName: a pod that is recreated under its name while the watch is down arrives
// as an update or, if its spec is the same, not at all.
func TestRecreatedUnderItsName(t *testing.T) {
	t.Parallel()
	t.Run("alone", func(t *testing.T) {
		w := newBareWorld(t)
		s, old := w.created("web-0")
		w.wire.lose()
		w.deletePod("web-0", 0)
		w.pod("web-0")
		w.pod("later")
		w.wire.restore()
		w.until("the wire works again", func() bool { return s.saw("create later") })
		w.stays(2*time.Second, "the old one runs on in the new one's place", func() bool {
			return s.held("web-0").UID == old.UID && !s.saw("delete web-0") && s.count("create web-0") == 1
		})
	})
	t.Run("behind", func(t *testing.T) {
		w := newWorld(t)
		o, old := w.added("web-0")
		w.wire.lose()
		w.deletePod("web-0", 0)
		fresh := w.pod("web-0")
		w.wire.restore()
		w.until("the new one added", func() bool { return o.got(podconfig.Add, fresh) })
		got := strings.Join(o.source("web-0"), ", ")
		want := fmt.Sprintf("ADD %s, REMOVE %s, ADD %s", old.UID, old.UID, fresh.UID)
		if got != want {
			t.Errorf("the source said %s\nwant            %s", got, want)
		}
	})
}

// TestStaticPodsAtStart: virtual-kubelet deletes at its start what the provider has and the API
// server does not, so static pods would die at each restart.
func TestStaticPodsAtStart(t *testing.T) {
	t.Parallel()
	static := func(w *world) *v1.Pod {
		return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "static", UID: "file-1"}}
	}
	t.Run("alone", func(t *testing.T) {
		w := newBareWorld(t)
		s := newScript()
		s.pods[w.ns+"/static"] = static(w)
		w.alone(s)
		w.until("the static pod deleted", func() bool { return s.saw("delete static") })
	})
	t.Run("behind", func(t *testing.T) {
		w := newWorld(t)
		o := w.build()
		o.held[w.ns+"/static"] = static(w)
		w.start(o)
		p := w.pod("marker")
		w.until("the controllers work", func() bool { return o.saw("changed marker") && o.got(podconfig.Add, p) })
		o.mu.Lock()
		defer o.mu.Unlock()
		for _, h := range o.hooks {
			if strings.HasSuffix(h, " static") {
				t.Errorf("the loop got %q", h)
			}
		}
	})
}

// TestRestartRunsNothingTwice: after a restart, virtual-kubelet asks the provider to create every
// pod that is unfinished in the API, so pods that have already finished run again.
func TestRestartRunsNothingTwice(t *testing.T) {
	t.Parallel()
	once := func(p *v1.Pod) { p.Spec.RestartPolicy = v1.RestartPolicyNever }
	t.Run("alone", func(t *testing.T) {
		w := newBareWorld(t)
		w.pod("job", once)
		w.setStatus("job", runningStatus) // its end was not reported before the restart
		s := newScript()
		executions := 1 // before the restart
		s.create = func(*v1.Pod) error { executions++; return nil }
		w.alone(s)
		w.until("created", func() bool { return s.saw("create job") })
		s.mu.Lock()
		defer s.mu.Unlock()
		if executions != 2 {
			t.Errorf("executed %d times; virtual-kubelet has fixed this", executions)
		}
	})
	t.Run("behind", func(t *testing.T) {
		w := newWorld(t)
		o := w.build()
		p := w.pod("job", once)
		w.setStatus("job", runningStatus)
		// The loop can adopt pods here: before Run no pods arrive.
		if o.node.Pods().HasSynced() || len(o.source("job")) > 0 {
			t.Fatal("pods arrive before Run")
		}
		w.start(o)
		w.until("the loop is only asked to look", func() bool { return o.saw("changed job") && o.got(podconfig.Add, p) })
	})
}

// TestTerminalPodsAreSeen: a pod that another client made terminal (an eviction) never reaches the
// provider: its containers keep running.
func TestTerminalPodsAreSeen(t *testing.T) {
	t.Parallel()
	evict := func(s *v1.PodStatus) { s.Phase, s.Reason = v1.PodFailed, "Evicted" }
	t.Run("alone", func(t *testing.T) {
		w := newBareWorld(t)
		s, _ := w.created("evicted")
		w.setStatus("evicted", evict)
		w.pod("marker")
		w.until("the controller works", func() bool { return s.saw("create marker") })
		w.stays(2*time.Second, "it is left running", func() bool { return !s.saw("delete evicted") && !s.saw("update evicted") })
	})
	t.Run("behind", func(t *testing.T) {
		w := newWorld(t)
		o, p := w.added("evicted")
		w.setStatus("evicted", evict)
		w.until("RECONCILE", func() bool { return o.got(podconfig.Reconcile, p) })
	})
}
