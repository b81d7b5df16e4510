package vktest

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	vknode "github.com/virtual-kubelet/virtual-kubelet/node"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/provider"
	"github.com/bowline-k8s/bowline/syncloop/podconfig"
)

func hasCondition(p *v1.Pod, kind v1.PodConditionType) bool {
	return p != nil && slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == kind })
}

const gateType v1.PodConditionType = "shop.example/load-balanced"

func gated(p *v1.Pod) { p.Spec.ReadinessGates = []v1.PodReadinessGate{{ConditionType: gateType}} }

func openGate(s *v1.PodStatus) {
	s.Conditions = append(s.Conditions, v1.PodCondition{Type: gateType, Status: v1.ConditionTrue})
}

// TestConditionsOfOthersSurvive: the status of the provider's pod replaces the server's whole
// status, including conditions of other controllers.
func TestConditionsOfOthersSurvive(t *testing.T) {
	t.Parallel()
	t.Run("alone", func(t *testing.T) {
		w := newBareWorld(t)
		s, _ := w.created("web", gated)
		w.setStatus("web", openGate)
		mine := s.held("web").DeepCopy()
		runningStatus(&mine.Status)
		s.changed(mine)
		w.until("its status written", func() bool { return w.getPod("web").Status.Phase == v1.PodRunning })
		if hasCondition(w.getPod("web"), gateType) {
			t.Error("the gate's condition survived; virtual-kubelet has fixed this")
		}
	})
	t.Run("behind", func(t *testing.T) {
		w := newWorld(t)
		o, p := w.added("web", gated)
		w.setStatus("web", openGate)
		w.until("the loop sees it", func() bool { return o.got(podconfig.Reconcile, p) })
		w.deletePod("web", 600) // triggers all of the controller's writes
		w.until("asked to end it", func() bool { return o.saw("terminate web") })
		if n := w.wire.count("PUT", "/pods/"); n != 0 {
			t.Errorf("%d pods were written whole", n)
		}
		if n := w.wire.count("DELETE", "/pods/"); n != 0 {
			t.Errorf("%d pods were deleted", n)
		}
		if !hasCondition(w.getPod("web"), gateType) {
			t.Error("the gate's condition is gone")
		}
	})
}

// TestOneErrorFailsNoJob: one error of CreatePod permanently fails a pod that may not restart, and
// modifies the informer's own object.
func TestOneErrorFailsNoJob(t *testing.T) {
	t.Parallel()
	once := func(p *v1.Pod) { p.Spec.RestartPolicy = v1.RestartPolicyNever }
	t.Run("alone", func(t *testing.T) {
		w := newBareWorld(t)
		w.pod("job", once)
		s := newScript()
		s.create = func(*v1.Pod) error { return errors.New("the runtime was busy for a moment") }
		// The second harm first: the informer's object is modified even if the write fails.
		w.wire.breakWith(noStatus)
		f := w.alone(s, func(c *vknode.PodControllerConfig) { c.SkipDownwardAPIResolution = true })
		w.until("the cached object changed in place", func() bool {
			p, err := f.Core().V1().Pods().Lister().Pods(w.ns).Get("job")
			return err == nil && p.Status.Phase == v1.PodFailed && p.ResourceVersion == ""
		})
		if w.getPod("job").Status.Phase == v1.PodFailed {
			t.Fatal("the write was not broken; the test shows nothing")
		}
	})
	t.Run("alone, written", func(t *testing.T) {
		w := newBareWorld(t)
		w.pod("job", once)
		s := newScript()
		s.create = func(*v1.Pod) error { return errors.New("the runtime was busy for a moment") }
		w.alone(s)
		w.until("the job failed", func() bool {
			p := w.getPod("job")
			return p.Status.Phase == v1.PodFailed && p.Status.Reason == "ProviderFailed"
		})
	})
	t.Run("behind", func(t *testing.T) {
		w := newWorld(t)
		o := w.behind()
		p := w.pod("job", once)
		w.until("handed on", func() bool { return o.saw("changed job") && o.got(podconfig.Add, p) })
		w.stays(time.Second, "Pending", func() bool { return w.getPod("job").Status.Phase == v1.PodPending })
	})
}

// TestStatusIsNotForgotten: virtual-kubelet gives up a status after 20 failed writes.
func TestStatusIsNotForgotten(t *testing.T) {
	t.Parallel()
	t.Run("alone", func(t *testing.T) {
		w := newBareWorld(t)
		w.pod("web")
		s := newScript()
		fast := func(c *vknode.PodControllerConfig) { // the same 20 attempts in a second instead of hours
			c.SyncPodStatusFromProviderRateLimiter = workqueue.NewTypedItemFastSlowRateLimiter[any](time.Millisecond, time.Millisecond, 100)
		}
		w.alone(s, fast)
		w.until("created", func() bool { return s.saw("create web") })
		w.wire.breakWith(noStatus)
		mine := s.held("web").DeepCopy()
		runningStatus(&mine.Status)
		s.changed(mine)
		tries := func() int { return w.wire.count("PUT", "/pods/web/status") }
		w.until("20 tries", func() bool { return tries() >= 20 })
		w.wire.breakWith(nil)
		last := tries()
		w.stays(3*time.Second, "no further try although the server is well", func() bool {
			return tries() <= max(last, 21) && w.getPod("web").Status.Phase != v1.PodRunning
		})
	})
	t.Run("behind", func(t *testing.T) {
		w := newWorld(t)
		o, p := w.added("web")
		// The queue is not used: the controller writes nothing, and syncloop's writer does not give
		// up.
		w.setStatus("web", runningStatus)
		w.until("seen", func() bool { return o.got(podconfig.Reconcile, p) })
		if n := w.wire.count("PUT", "/pods/"); n != 0 {
			t.Errorf("the controller wrote %d statuses", n)
		}
	})
}

// TestStatusChangesOfOthersAreSeen: a change of only the status is not passed on, so readiness
// gates set by others are missed.
func TestStatusChangesOfOthersAreSeen(t *testing.T) {
	t.Parallel()
	t.Run("alone", func(t *testing.T) {
		w := newBareWorld(t)
		s, _ := w.created("web", gated)
		w.setStatus("web", openGate)
		w.pod("marker")
		w.until("the controller works", func() bool { return s.saw("create marker") })
		w.stays(time.Second, "not handed on", func() bool { return !s.saw("update web") })
	})
	t.Run("behind", func(t *testing.T) {
		w := newWorld(t)
		o, p := w.added("web", gated)
		w.setStatus("web", openGate)
		w.until("RECONCILE", func() bool { return o.got(podconfig.Reconcile, p) })
	})
}

// TestPodLevelResizeIsSeen: a resize of the pod-level resources (not of a container) does not count
// as a change.
func TestPodLevelResizeIsSeen(t *testing.T) {
	t.Parallel()
	cpu := func(q string) *v1.ResourceRequirements {
		return &v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(q)}, Limits: v1.ResourceList{v1.ResourceCPU: resource.MustParse(q)}}
	}
	resize := func(w *world) {
		w.t.Helper()
		p := w.getPod("big")
		p.Spec.Resources = cpu("200m")
		if _, err := w.admin.CoreV1().Pods(w.ns).UpdateResize(w.ctx, "big", p, metav1.UpdateOptions{}); err != nil {
			if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
				w.t.Skipf("this API server does not resize pods as a whole: %v", err)
			}
			w.t.Fatal(err)
		}
	}
	level := func(p *v1.Pod) { p.Spec.Resources = cpu("100m") }
	const feature = "InPlacePodLevelResourcesVerticalScaling"
	t.Run("alone", func(t *testing.T) {
		w := newBareWorld(t)
		w.until("the node declares the feature", func() bool {
			n := w.getNode()
			n.Status.DeclaredFeatures = []string{feature}
			n.Status.Allocatable = v1.ResourceList{v1.ResourceCPU: resource.MustParse("2"), v1.ResourcePods: resource.MustParse("110")}
			n.Status.Capacity = n.Status.Allocatable
			_, err := w.admin.CoreV1().Nodes().UpdateStatus(w.ctx, n, metav1.UpdateOptions{})
			return err == nil
		})
		if w.pod("big", level).Spec.Resources == nil {
			t.Skip("this API server has no resources of pods as a whole")
		}
		s := newScript()
		w.alone(s)
		w.until("created", func() bool { return s.saw("create big") })
		resize(w)
		w.pod("marker")
		w.until("the controller works", func() bool { return s.saw("create marker") })
		w.stays(time.Second, "not handed on", func() bool { return !s.saw("update big") })
	})
	t.Run("behind", func(t *testing.T) {
		w := newWorld(t)
		o := w.behind(func(c *provider.Config) { c.Info.DeclaredFeatures = []string{feature} })
		p := w.pod("big", level)
		if p.Spec.Resources == nil {
			t.Skip("this API server has no resources of pods as a whole")
		}
		w.until("added", func() bool { return o.got(podconfig.Add, p) })
		resize(w)
		w.until("UPDATE", func() bool { return o.got(podconfig.Update, p) })
	})
}

// TestNoProviderEvents: every pod gets an event that it was created, before anything is.
func TestNoProviderEvents(t *testing.T) {
	t.Parallel()
	t.Run("alone", func(t *testing.T) {
		w := newBareWorld(t)
		w.pod("web")
		w.alone(newScript())
		w.until("the event", func() bool { return slices.Contains(w.events("web"), "ProviderCreateSuccess") })
	})
	t.Run("behind", func(t *testing.T) {
		w := newWorld(t)
		rec := w.recorder(w.client)
		o := w.behind()
		p := w.pod("web")
		w.until("handed on", func() bool { return o.saw("changed web") && o.got(podconfig.Add, p) })
		rec.Event(p, v1.EventTypeNormal, "Pulled", "an event of ours")
		w.until("our event", func() bool { return slices.Contains(w.events("web"), "Pulled") })
		for _, reason := range w.events("web") {
			if strings.HasPrefix(reason, "Provider") {
				t.Errorf("event %s", reason)
			}
		}
	})
}

// TestEnvOfPodIP: an environment variable with the pod IP cannot be resolved before there is an IP,
// so the pod is never created.
func TestEnvOfPodIP(t *testing.T) {
	t.Parallel()
	field := func(p *v1.Pod) {
		p.Spec.Containers[0].Env = []v1.EnvVar{{Name: "IP", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "status.podIP"}}}}
	}
	t.Run("alone", func(t *testing.T) {
		w := newBareWorld(t)
		w.pod("web", field)
		s := newScript()
		w.alone(s)
		w.pod("marker")
		w.until("the controller works", func() bool { return s.saw("create marker") })
		w.stays(2*time.Second, "never created", func() bool { return !s.saw("create web") })
	})
	t.Run("behind", func(t *testing.T) {
		w := newWorld(t)
		o := w.behind()
		p := w.pod("web", field)
		w.until("handed on", func() bool { return o.saw("changed web") && o.got(podconfig.Add, p) })
	})
}

// TestEnvStaysAsWritten: resourceFieldRef is dropped, the order of environment variables is lost,
// and secrets are written into the pod.
func TestEnvStaysAsWritten(t *testing.T) {
	t.Parallel()
	env := []v1.EnvVar{
		{Name: "A", Value: "1"},
		{Name: "PASSWORD", ValueFrom: &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: v1.LocalObjectReference{Name: "s"}, Key: "k"}}},
		{Name: "CPUS", ValueFrom: &v1.EnvVarSource{ResourceFieldRef: &v1.ResourceFieldSelector{Resource: "limits.cpu"}}},
		{Name: "B", Value: "$(A)2"},
	}
	with := func(p *v1.Pod) { p.Spec.Containers[0].Env = env; off := false; p.Spec.EnableServiceLinks = &off }
	secret := func(w *world) {
		_, err := w.admin.CoreV1().Secrets(w.ns).Create(w.ctx, &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"k": "hunter2"}}, metav1.CreateOptions{})
		testutil.Must(w.t, err)
	}
	t.Run("alone", func(t *testing.T) {
		w := newBareWorld(t)
		secret(w)
		w.pod("web", with)
		s := newScript()
		w.alone(s)
		w.until("created", func() bool { return s.held("web") != nil })
		dropped, leaked := true, false
		for _, e := range s.held("web").Spec.Containers[0].Env {
			dropped = dropped && e.Name != "CPUS"
			leaked = leaked || e.Value == "hunter2"
		}
		if !dropped || !leaked {
			t.Errorf("resourceFieldRef dropped: %v, secret written into the pod: %v; virtual-kubelet has fixed this", dropped, leaked)
		}
		// The order is that of a Go map: any other order in several pods proves it.
		shuffled := false
		for i := 0; i < 20 && !shuffled; i++ {
			name := "more-" + string(rune('a'+i))
			w.pod(name, with)
			w.until("created", func() bool { return s.held(name) != nil })
			var names []string
			for _, e := range s.held(name).Spec.Containers[0].Env {
				if len(e.Name) == 1 || e.Name == "PASSWORD" {
					names = append(names, e.Name)
				}
			}
			shuffled = strings.Join(names, " ") != "A PASSWORD B"
		}
		if !shuffled {
			t.Error("20 pods kept their order; virtual-kubelet has fixed this")
		}
	})
	t.Run("behind", func(t *testing.T) {
		w := newWorld(t)
		secret(w)
		o, _ := w.added("web", with)
		got, err := o.node.Pods().Lister().Pods(w.ns).Get("web")
		testutil.Must(t, err)
		var names []string
		for i, e := range got.Spec.Containers[0].Env {
			names = append(names, e.Name)
			if e.Value != env[i].Value {
				t.Errorf("%s is %q", e.Name, e.Value)
			}
		}
		if strings.Join(names, " ") != "A PASSWORD CPUS B" {
			t.Errorf("variables %v", names)
		}
		for _, kind := range []string{"/secrets", "/configmaps", "/services"} {
			if n := w.wire.count("GET", kind); n != 0 {
				t.Errorf("%d requests for %s: the stub informers were started", n, kind)
			}
		}
	})
}
