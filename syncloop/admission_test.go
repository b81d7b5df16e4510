package syncloop_test

import (
	"context"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/syncloop/admit"
)

func privileged(p *v1.Pod) {
	yes := true
	p.Spec.Containers[0].SecurityContext = &v1.SecurityContext{Privileged: &yes}
}

// A pod that violates the policy fails like a pod that a kubelet rejects, and nothing of it is ever
// created. A pod that complies runs beside it.
func TestPodBeyondThePolicy(t *testing.T) {
	w := newParallelWorld(t)
	w.policy = admit.Policy{NoPrivileged: true}
	w.up()
	w.api.create(with(newPod("bad"), privileged))
	w.createReady(newPod("good"))
	w.until("the pod fails", func() bool { return w.api.pod("bad").Status.Phase == v1.PodFailed })
	check := func() {
		t.Helper()
		st := w.api.pod("bad").Status
		const field = "spec.containers[app].securityContext.privileged is true"
		if st.Phase != v1.PodFailed || st.Reason != admit.ReasonPrivileged || !strings.HasPrefix(st.Message, "Pod was rejected: ") ||
			!strings.Contains(st.Message, field) || len(st.ContainerStatuses) != 0 {
			t.Errorf("the status is %+v", st)
		}
		for _, e := range w.rt.Log() {
			if strings.Contains(e.Pod, "bad") {
				t.Errorf("the runtime was asked for %s %s", e.Op, e.Name)
			}
		}
	}
	check()
	w.wantEvent("Warning PrivilegedForbidden the owner of this host does not allow it")
	w.down()
	w.up() // a new process decides the same
	w.until("the new process has seen the pods", func() bool { _, ok := w.node.loop.Why(namespace, "good"); return ok })
	w.untilSettled("good")
	check()
	w.end(5, "bad", "good")
}

// oneClaim binds every claim to a PersistentVolume with one path of the host.
type oneClaim struct{ path string }

func (c oneClaim) PersistentVolumeClaim(_ context.Context, namespace, name string) (*v1.PersistentVolumeClaim, error) {
	return &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "1"},
		Spec: v1.PersistentVolumeClaimSpec{VolumeName: "pv"}, Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound}}, nil
}

func (c oneClaim) PersistentVolume(context.Context, string) (*v1.PersistentVolume, error) {
	return &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: v1.PersistentVolumeSpec{ClaimRef: &v1.ObjectReference{UID: "1"},
		PersistentVolumeSource: v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: c.path}}}}, nil
}

func (oneClaim) Node(context.Context) (*v1.Node, error) { return &v1.Node{}, nil }

func claimed(p *v1.Pod) {
	p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{
		PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}})
	p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, v1.VolumeMount{Name: "data", MountPath: "/host"})
}

// A claim cannot be used to mount a host path that the owner does not allow. Neither the pod nor
// the claim shows the path before the PersistentVolume is known.
func TestPersistentVolumeBeyondThePolicy(t *testing.T) {
	w := newParallelWorld(t)
	w.claims = oneClaim{t.TempDir()}
	w.up()
	w.createReady(with(newPod("before"), claimed))
	w.down()
	w.policy = admit.Policy{NoHostPath: true}
	w.up()
	w.api.create(with(newPod("bad"), claimed))
	w.until("the pod fails", func() bool { return w.api.pod("bad").Status.Phase == v1.PodFailed })
	if st := w.api.pod("bad").Status; st.Reason != admit.ReasonHostPath || !strings.Contains(st.Message, "spec.volumes[data] is the persistent volume pv, whose hostPath is ") {
		t.Errorf("the status is %+v", st)
	}
	for _, e := range w.rt.Log() {
		if strings.Contains(e.Pod, "bad") && strings.Contains(string(e.Op), "Start") {
			t.Errorf("the runtime was asked for %s %s", e.Op, e.Name)
		}
	}
	w.wantEvent("Warning HostPathForbidden the owner of this host does not allow it")
	w.untilSettled("before")
	if st := w.api.pod("before").Status; st.Phase != v1.PodRunning {
		t.Errorf("a stricter policy ended what ran: %+v", st)
	}
	w.end(5, "bad", "before")
}

// Under a stricter policy a running pod keeps the very PersistentVolume that it has, and not
// another one that has taken its name: no further container gets that one, and what runs continues.
func TestAnotherVolumeUnderTheNameOfOneThatAPodHas(t *testing.T) {
	w := newParallelWorld(t)
	was := t.TempDir()
	w.claims = oneClaim{was}
	w.up()
	for _, name := range []string{"kept", "swapped"} {
		w.api.create(with(with(newPod(name), claimed), func(p *v1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, newContainer("beside"))
		}))
		w.untilReady(name)
	}
	w.down()
	w.policy = admit.Policy{NoHostPath: true}
	w.up()
	w.untilSettled("kept")
	testutil.Must(t, w.rt.Exit(w.instance("kept", "app"), 1))
	w.until("it is started again with the volume that it has", func() bool { return w.rt.Count(fake.OpStart, "app") == 3 })
	if got := w.mountsOf(t, "kept", "app")["/host"].GetHostPath(); got != was {
		t.Errorf("mounted is %q", got)
	}
	w.down()
	w.claims = oneClaim{t.TempDir()}
	w.up()
	testutil.Must(t, w.rt.Exit(w.instance("swapped", "app"), 1))
	w.until("the status tells that it has ended", func() bool {
		s := w.api.pod("swapped").Status.ContainerStatuses
		return len(s) == 2 && s[0].Name == "app" && s[0].State.Running == nil
	})
	w.until("an event tells why it is not started again", func() bool {
		return w.event(`Warning FailedMount MountVolume.SetUp failed for volume "data" : the owner of this host does not allow it (policy.allowHostPath is false): spec.volumes[data] is the persistent volume pv`)
	})
	if n := w.rt.Count(fake.OpStart, "app"); n != 3 {
		t.Errorf("the containers were started %d times, the last with %+v", n, w.mountsOf(t, "swapped", "app")["/host"])
	}
	if st := w.api.pod("swapped").Status; st.Phase != v1.PodRunning || w.rt.Count(fake.OpStart, "beside") != 2 {
		t.Errorf("what ran was ended: %+v", st)
	}
	w.end(5, "kept", "swapped")
}

// A pod with resource claims is held before its sandbox is made, and ends when it is deleted.
// Without its devices it must not start.
func TestResourceClaimsAreHeld(t *testing.T) {
	w := up(t)
	template := "t"
	w.api.create(with(newPod("spec"), func(p *v1.Pod) {
		p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &template}}
	}))
	w.api.create(with(newPod("extended"), func(p *v1.Pod) {
		p.Status.ExtendedResourceClaimStatus = &v1.PodExtendedResourceClaimStatus{ResourceClaimName: "extended-gpu"}
	}))
	for _, name := range []string{"gpu", "extended-gpu"} {
		w.until("the event of "+name, func() bool {
			return w.event("Warning FailedPrepareDynamicResources Failed to prepare dynamic resources: this node does not support dynamic resource allocation, but the pod has the resource claims " + name)
		})
	}
	for _, e := range w.rt.Log() {
		if strings.Contains(e.Pod, "spec") || strings.Contains(e.Pod, "extended") {
			t.Errorf("the runtime was asked for %s %s", e.Op, e.Name)
		}
	}
	for _, name := range []string{"spec", "extended"} {
		if phase := w.api.pod(name).Status.Phase; phase != v1.PodPending {
			t.Errorf("%s is %s", name, phase)
		}
		w.api.delete(name, 5)
	}
	w.untilGone()
}

// A stricter policy ends nothing that runs, and admits nothing new.
func TestPolicyBecomesStricter(t *testing.T) {
	w := up(t)
	id := w.createReady(with(newPod("old"), privileged)).Status.ContainerStatuses[0].ContainerID
	w.down()
	w.policy = admit.Policy{NoPrivileged: true}
	w.up()
	w.api.create(with(newPod("new"), privileged))
	w.until("the new pod is rejected", func() bool { return w.api.pod("new").Status.Phase == v1.PodFailed })
	w.untilSettled("old")
	if p := w.api.pod("old"); !ready(p) || p.Status.ContainerStatuses[0].ContainerID != id {
		t.Errorf("what ran is now %+v", p.Status)
	}
	w.rt.Exit(strings.TrimPrefix(id, "containerd://"), 1)
	w.until("its container is started again", func() bool { return w.rt.Count(fake.OpStart, "app") == 2 })
	w.end(5, "old", "new")
}

// An ephemeral container that violates the policy never starts and its status says why. One that
// complies starts, and the pod continues.
func TestEphemeralContainerBeyondThePolicy(t *testing.T) {
	w := newParallelWorld(t)
	w.policy = admit.Policy{NoPrivileged: true}
	w.up()
	w.createReady(newPod("web"))
	w.api.update("web", func(p *v1.Pod) {
		for _, name := range []string{"bad", "good"} {
			c := v1.EphemeralContainer{EphemeralContainerCommon: v1.EphemeralContainerCommon(newContainer(name))}
			if name == "bad" {
				c.SecurityContext = &v1.SecurityContext{Capabilities: &v1.Capabilities{Add: []v1.Capability{"SYS_ADMIN"}}}
			}
			p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, c)
		}
	})
	state := func(name string) v1.ContainerState {
		for _, s := range w.api.pod("web").Status.EphemeralContainerStatuses {
			if s.Name == name {
				return s.State
			}
		}
		return v1.ContainerState{}
	}
	w.until("the one inside the policy runs", func() bool { return state("good").Running != nil })
	if s := state("bad").Waiting; s == nil || s.Reason != admit.ReasonPrivileged || !strings.Contains(s.Message, "spec.ephemeralContainers[bad].securityContext.capabilities.add has SYS_ADMIN") {
		t.Errorf("the one beyond it is %+v", state("bad"))
	}
	if n := w.rt.Count(fake.OpCreate, "bad"); n != 0 {
		t.Errorf("%d containers were made of it", n)
	}
	if !w.event("Warning PrivilegedForbidden") || !ready(w.api.pod("web")) {
		t.Errorf("events %v, the pod is %+v", w.warnings(), w.api.pod("web").Status.Conditions)
	}
	w.end(5, "web")
}
