package syncloop_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clienttesting "k8s.io/client-go/testing"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

func TestPodRunsAndIsDeleted(t *testing.T) {
	w := up(t)
	p := w.createReady(with(newPod("web"), func(p *v1.Pod) {
		p.Spec.Containers = append(p.Spec.Containers, newContainer("side"))
	}))
	if p.Status.Phase != v1.PodRunning || p.Status.PodIP == "" || p.Status.HostIP != "192.0.2.1" {
		t.Errorf("status %+v", p.Status)
	}
	for _, event := range []string{"Normal Pulling", "Normal Pulled", "Normal Created", "Normal Started"} {
		w.wantEvent(event)
	}
	w.end(5, "web")
	if n := w.rt.Count(fake.OpStart, ""); n != 2 {
		t.Errorf("%d starts for 2 containers", n)
	}
	if kills := w.rt.Count(fake.OpKill, ""); kills != 0 {
		t.Errorf("%d containers were killed that end on SIGTERM", kills)
	}
	w.wantEvent("Normal Killing Stopping container app")
}

func TestRestartPolicies(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		policy v1.RestartPolicy
		script []string
		phase  v1.PodPhase // it continues, in back-off
	}{
		{"always-fail", v1.RestartPolicyAlways, []string{"exit 1"}, ""},
		{"always-done", v1.RestartPolicyAlways, []string{"exit 0"}, ""},
		{"onfailure-fail", v1.RestartPolicyOnFailure, []string{"exit 1"}, ""},
		{"onfailure-done", v1.RestartPolicyOnFailure, []string{"exit 0"}, v1.PodSucceeded},
		{"never-fail", v1.RestartPolicyNever, []string{"exit 3"}, v1.PodFailed},
		{"never-done", v1.RestartPolicyNever, []string{"exit 0"}, v1.PodSucceeded},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := up(t)
			w.api.create(with(newPod(tc.name, tc.script...), func(p *v1.Pod) { p.Spec.RestartPolicy = tc.policy }))
			if tc.phase == "" {
				w.until("it waits in back-off after one restart", func() bool {
					p := w.api.pod(tc.name)
					return waitingReason(p, "app") == "CrashLoopBackOff" && container(p, "app").RestartCount == 1
				})
				if n := w.rt.Count(fake.OpStart, "app"); n != 2 {
					t.Errorf("%d starts", n)
				}
				if container(w.api.pod(tc.name), "app").LastTerminationState.Terminated == nil {
					t.Error("no last termination state")
				}
				w.wantEvent("Warning BackOff Back-off restarting failed container app")
				in, err := w.node.loop.Instance(t.Context(), namespace, tc.name, "", "app", true)
				if err != nil || in.ID != w.rt.Log()[w.at(fake.OpStart, "app", 1)].ID {
					t.Errorf("between two instances the previous one is %+v, %v", in, err)
				}
			} else {
				w.until("it ends", func() bool { return w.api.pod(tc.name).Status.Phase == tc.phase })
				w.until("its sandbox is stopped and its worker ends", func() bool {
					r, ok := w.node.loop.Why(namespace, tc.name)
					return w.rt.Count(fake.OpStopSandbox, "") == 1 && ok && r.Phase == "Gone"
				})
				if n := w.rt.Count(fake.OpRemove, ""); n != 0 {
					t.Errorf("%d containers were removed: their logs are still wanted", n)
				}
			}
			w.end(5, tc.name)
		})
	}
}

func TestInitContainersAndSidecars(t *testing.T) {
	w := up(t)
	always := v1.ContainerRestartPolicyAlways
	w.createReady(with(newPod("web"), func(p *v1.Pod) {
		side := newContainer("side")
		side.RestartPolicy = &always
		p.Spec.InitContainers = []v1.Container{newContainer("first", "exit 0"), side, newContainer("second", "exit 0")}
	}))
	w.end(5, "web")
	order := []int{w.at(fake.OpExit, "first", 0), w.at(fake.OpStart, "side", 0), w.at(fake.OpStart, "second", 0),
		w.at(fake.OpExit, "second", 0), w.at(fake.OpStart, "app", 0), w.at(fake.OpExit, "app", 0), w.at(fake.OpTerm, "side", 0)}
	for i := range order {
		if order[i] < 0 || i > 0 && order[i] < order[i-1] {
			t.Fatalf("first, side, second, app, and back: at %v in the log", order)
		}
	}
}

func TestInitContainerThatFailsIsRunAgain(t *testing.T) {
	w := up(t)
	w.api.create(with(newPod("web"), func(p *v1.Pod) {
		p.Spec.InitContainers = []v1.Container{newContainer("setup", "exit 1")}
	}))
	w.until("back-off", func() bool { return waitingReason(w.api.pod("web"), "setup") == "CrashLoopBackOff" })
	if n := w.rt.Count(fake.OpStart, "app"); n != 0 {
		t.Errorf("the main container was started %d times", n)
	}
	w.end(1, "web")
}

func TestImageThatFailsAtFirst(t *testing.T) {
	w := up(t)
	w.rt.Inject("PullImage", fake.Fault{Before: status.Error(codes.Unknown, "no such image")})
	w.api.create(newPod("web"))
	w.until("the status says why", func() bool { return waitingReason(w.api.pod("web"), "app") == "ErrImagePull" })
	w.wantEvent("Warning Failed Failed to pull image")
	testutil.Within(w.t, 30*time.Second, "it runs after the back-off", func() bool { return ready(w.api.pod("web")) })
	w.end(1, "web")
}

func TestConfigMapThatComesLate(t *testing.T) {
	t.Parallel()
	fromEnv := func(p *v1.Pod) {
		p.Spec.Containers[0].Env = []v1.EnvVar{{Name: "KEY", ValueFrom: &v1.EnvVarSource{
			ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: v1.LocalObjectReference{Name: "late"}, Key: "key"}}}}
	}
	fromVolume := func(p *v1.Pod) {
		p.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{
			ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "late"}}}}}
		p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "v", MountPath: "/v"}}
	}
	for name, tc := range map[string]struct {
		change func(*v1.Pod)
		reason string
		event  string
	}{
		"environment": {fromEnv, "CreateContainerConfigError", `Warning Failed Error: configmap "late" not found`},
		"volume":      {fromVolume, "ContainerCreating", "Warning FailedMount "},
	} {
		t.Run(name, func(t *testing.T) {
			w := up(t)
			w.api.create(with(newPod("web"), tc.change))
			w.until("the status and an event say why", func() bool {
				return waitingReason(w.api.pod("web"), "app") == tc.reason && w.event(tc.event)
			})
			w.until("the object is watched", func() bool {
				return slices.ContainsFunc(w.api.client.Actions(), func(a clienttesting.Action) bool { return a.GetVerb() == "watch" })
			})
			cm := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "late", ResourceVersion: "1"}, Data: map[string]string{"key": "value"}}
			if _, err := w.api.client.CoreV1().ConfigMaps(namespace).Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			// The fake clientset counts a watch a moment before it serves it. If the creation falls
			// between, this change announces the object.
			again := time.After(5 * time.Second)
			w.until("pod web is ready", func() bool {
				select {
				case <-again:
					cm = cm.DeepCopy()
					cm.ResourceVersion = "2"
					if _, err := w.api.client.CoreV1().ConfigMaps(namespace).Update(t.Context(), cm, metav1.UpdateOptions{}); err != nil {
						t.Error(err)
					}
				default:
				}
				return ready(w.api.pod("web"))
			})
			w.end(1, "web")
		})
	}
}

// A volume update that a failed link has delayed is made soon after the link is back, not at the
// next regular refresh. The failed link causes no event on the pod.
func TestUpdateThatALinkKeptBack(t *testing.T) {
	w := up(t)
	w.keepsBack(&w.host.unreachable, 1)
	if w.event("Warning FailedMount") {
		t.Error("an event tells of the link as of the volume")
	}
	w.end(1, "web")
}

// The same for a full disk, which does cause an event.
func TestUpdateThatAFullDiskKeptBack(t *testing.T) {
	w := up(t)
	w.keepsBack(&w.host.full, 3)
	w.wantEvent("Warning FailedMount")
	w.end(1, "web")
}

// keepsBack changes the content of a volume of the pod web while cause is set, until that many
// writes have failed, then clears cause and waits for the change.
func (w *world) keepsBack(cause *atomic.Bool, tries int32) {
	w.t.Helper()
	p := w.createReady(with(newPod("web"), func(p *v1.Pod) {
		p.Labels = map[string]string{"turn": "first"}
		p.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{
			Items: []v1.DownwardAPIVolumeFile{{Path: "labels", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.labels"}}}}}}}
		p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "v", MountPath: "/v"}}
	}))
	cause.Store(true)
	w.api.update("web", func(p *v1.Pod) { p.Labels = map[string]string{"turn": "second"} })
	testutil.Within(w.t, 30*time.Second, "the update has failed", func() bool { return w.host.unwritten.Load() >= tries })
	cause.Store(false)
	file := filepath.Join(w.dir, "root", "pods", string(p.UID), "volumes/kubernetes.io~downward-api/v/labels")
	testutil.Within(w.t, 30*time.Second, "the update is there", func() bool {
		data, err := os.ReadFile(file)
		return err == nil && strings.Contains(string(data), "second")
	})
}

func execOf(steps ...string) v1.ProbeHandler {
	return v1.ProbeHandler{Exec: &v1.ExecAction{Command: append([]string{"/" + fake.TestImage}, steps...)}}
}

func TestLivenessProbeRestarts(t *testing.T) {
	w := up(t)
	w.api.create(with(newPod("web"), func(p *v1.Pod) {
		p.Spec.Containers[0].LivenessProbe = &v1.Probe{ProbeHandler: execOf("out broken", "exit 1"), PeriodSeconds: 1, TimeoutSeconds: 1, FailureThreshold: 1, SuccessThreshold: 1}
	}))
	w.until("it is restarted", func() bool { return container(w.api.pod("web"), "app").RestartCount >= 1 })
	w.wantEvent("Normal Killing Container app failed liveness probe, will be restarted")
	w.end(1, "web")
}

// The health of the loop is by the monotonic clock: a clock that is set back must not hide a loop
// that is stuck.
func TestTheTurnHasAMonotonicReading(t *testing.T) {
	w := up(t)
	w.until("the loop iterates", func() bool { return !w.node.loop.Turned().IsZero() })
	if at := w.node.loop.Turned(); at == at.Round(0) {
		t.Errorf("%v has none", at)
	}
}

// TestALoopThatEnds does not run any more, although its workers may take long to end.
func TestALoopThatEnds(t *testing.T) {
	w := up(t)
	w.until("the loop iterates", func() bool { return !w.node.loop.Turned().IsZero() })
	loop := w.node.loop
	w.down()
	if err := loop.Healthy(); err != nil || !loop.Turned().IsZero() {
		t.Errorf("%v, and it counts as running", err)
	}
}

// Between the stop signal and SIGKILL a container has at least the kubelet's two seconds, even if a
// deletion, an eviction or a probe gives it one.
func TestLeastGrace(t *testing.T) {
	w := up(t)
	one := int64(1)
	stubborn := func(name string, change func(*v1.Pod)) *v1.Pod {
		return with(newPod(name, "ignore-term", "wait"), change)
	}
	w.api.create(stubborn("deleted", func(*v1.Pod) {}))
	w.api.create(stubborn("evicted", func(*v1.Pod) {}))
	w.api.create(stubborn("probed", func(p *v1.Pod) {
		p.Spec.Containers[0].LivenessProbe = &v1.Probe{ProbeHandler: execOf("exit 1"), TerminationGracePeriodSeconds: &one,
			InitialDelaySeconds: 1, PeriodSeconds: 1, TimeoutSeconds: 1, FailureThreshold: 1, SuccessThreshold: 1}
	}))
	w.untilReady("deleted")
	w.untilReady("evicted")
	w.api.delete("deleted", 1)
	w.node.loop.End(w.api.pod("evicted").UID, plan.Terminate{At: time.Now(), Grace: time.Second, Cause: plan.CauseEvicted})
	ends := func(name string) (grace time.Duration, ended bool) {
		var reported time.Time
		for _, e := range w.rt.Log() {
			switch {
			case e.Name != "app" || !strings.Contains(e.Pod, namespace+"/"+name+" "):
			case e.Op == fake.OpTerm:
				reported = e.Time
			case e.Op == fake.OpExit && !reported.IsZero():
				return e.Time.Sub(reported), true
			}
		}
		return 0, false
	}
	for _, name := range []string{"deleted", "evicted", "probed"} {
		w.until(name+" has ended", func() bool { _, ended := ends(name); return ended })
		if grace, _ := ends(name); grace < 2*time.Second {
			t.Errorf("%s: killed %v after the stop signal", name, grace)
		}
	}
}

// A container is not reported as running or Ready before its postStart hook has ended, whatever
// makes the node report meanwhile.
func TestNotReadyBeforePostStart(t *testing.T) {
	w := up(t)
	release := make(chan struct{})
	hooking := make(chan struct{}, 1)
	w.setHook(func(ctx context.Context, label string, call func(context.Context) error) error {
		if label == "cri/ExecSync" {
			select {
			case hooking <- struct{}{}:
			default:
			}
			select {
			case <-release:
			case <-ctx.Done():
			}
		}
		return call(ctx)
	})
	w.api.create(with(newPod("web"), func(p *v1.Pod) {
		p.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PostStart: &v1.LifecycleHandler{Exec: execOf("out started").Exec}}
	}))
	select {
	case <-hooking:
	case <-time.After(30 * time.Second):
		t.Fatal("the hook was not run")
	}
	look := 0
	w.until("the node has decided with the container running", func() bool {
		look++
		w.api.update("web", func(p *v1.Pod) { p.Labels = map[string]string{"look": strconv.Itoa(look)} })
		r, ok := w.node.loop.Why(namespace, "web")
		return ok && strings.Contains(r.Reason, "postStart")
	})
	w.until("its status is reported", func() bool { return len(w.api.pod("web").Status.ContainerStatuses) == 1 })
	if s := container(w.api.pod("web"), "app"); s.State.Running != nil || s.Ready {
		t.Errorf("reported as running before the hook has ended: %+v", s)
	}
	close(release)
	w.untilReady("web")
	w.end(5, "web")
}

func TestHooks(t *testing.T) {
	w := up(t)
	hook := func(step string) *v1.LifecycleHandler {
		return &v1.LifecycleHandler{Exec: execOf(step).Exec}
	}
	w.createReady(with(newPod("web"), func(p *v1.Pod) {
		p.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PostStart: hook("out started"), PreStop: hook("out stopping")}
		p.Spec.Containers = append(p.Spec.Containers, newContainer("later"))
	}))
	w.end(5, "web")
	if a, b := w.at(fake.OpExec, "app", 0), w.at(fake.OpStart, "later", 0); a < 0 || b < a {
		t.Errorf("postStart at %d, the next container at %d", a, b)
	}
	if a, b := w.at(fake.OpExec, "app", 1), w.at(fake.OpTerm, "app", 0); a < 0 || b < a {
		t.Errorf("preStop at %d, SIGTERM at %d", a, b)
	}
	if n := w.rt.Count(fake.OpExec, ""); n != 2 {
		t.Errorf("%d hooks were run", n)
	}
}

func TestPostStartThatFailsEndsTheContainer(t *testing.T) {
	w := up(t)
	w.api.create(with(newPod("web"), func(p *v1.Pod) {
		p.Spec.RestartPolicy = v1.RestartPolicyNever
		p.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PostStart: &v1.LifecycleHandler{Exec: execOf("exit 1").Exec}}
	}))
	w.until("the container is stopped and the pod over", func() bool { return done(w.api.pod("web")) })
	w.wantEvent("Warning FailedPostStartHook")
	w.end(1, "web")
}

func TestDeadlineEvent(t *testing.T) {
	w := up(t)
	w.api.create(with(newPod("web"), func(p *v1.Pod) { p.Spec.ActiveDeadlineSeconds = new(int64(1)) }))
	w.until("the pod's time is over", func() bool { return done(w.api.pod("web")) })
	w.wantEvent("Normal DeadlineExceeded Pod was active on the node longer than the specified deadline")
	w.end(1, "web")
}

func TestContainerThatIgnoresTermIsKilled(t *testing.T) {
	w := up(t)
	w.createReady(newPod("web", "ignore-term", "wait"))
	w.end(1, "web")
	if w.rt.Count(fake.OpTerm, "app") != 1 || w.rt.Count(fake.OpKill, "app") != 1 {
		t.Errorf("%d SIGTERM, %d SIGKILL", w.rt.Count(fake.OpTerm, "app"), w.rt.Count(fake.OpKill, "app"))
	}
}

// A pod that is deleted before anything of it was made leaves nothing behind, even if its final
// status is accepted before its volumes are known to be released.
func TestDeletionBeforeTheBeginning(t *testing.T) {
	w := newParallelWorld(t)
	w.host.hold = make(chan struct{})
	w.api.create(newPod("web"))
	w.api.delete("web", 30)
	w.up()
	w.until("the last status is accepted", func() bool { return done(w.api.pod("web")) })
	close(w.host.hold)
	w.untilGone()
	if n := w.rt.Count(fake.OpRunSandbox, ""); n != 0 {
		t.Errorf("%d sandboxes were made", n)
	}
}

func TestEphemeralContainerSeesItsTarget(t *testing.T) {
	w := up(t)
	w.createReady(newPod("web"))
	target := make(chan string, 1)
	w.rt.Inject("CreateContainer", fake.Fault{Times: -1, Match: func(req any) bool {
		select {
		case target <- req.(*runtimeapi.CreateContainerRequest).GetConfig().GetLinux().GetSecurityContext().GetNamespaceOptions().GetTargetId():
		default:
		}
		return false
	}})
	w.api.update("web", func(p *v1.Pod) {
		c := newContainer("debug", "exit 0")
		p.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon(c), TargetContainerName: "app"}}
	})
	if got, want := <-target, w.instance("web", "app"); got != want {
		t.Errorf("target %q, want %q", got, want)
	}
	w.until("it has run", func() bool { return container(w.api.pod("web"), "debug").State.Terminated != nil })
	w.end(1, "web")
	if n := w.rt.Count(fake.OpStart, "debug"); n != 1 {
		t.Errorf("it was started %d times", n)
	}
}

// A pod of the same name with another UID is another pod: its start does not wait for the end of
// the first, and neither writes the other's status.
func TestRecreatedPod(t *testing.T) {
	w := up(t)
	first := w.createReady(newPod("web", "ignore-term", "wait"))
	second := w.api.recreate(newPod("web"))
	w.until("the second is ready", func() bool { p := w.api.pod("web"); return p.UID == second.UID && ready(p) })
	if exit := w.at(fake.OpExit, "app", 0); exit >= 0 && exit < w.at(fake.OpStart, "app", 1) {
		t.Error("the second waited for the end of the first")
	}
	w.until("the first is gone", func() bool { return len(w.left()) == 2 })
	for _, what := range w.left() {
		if strings.Contains(what, string(first.UID)) {
			t.Errorf("left of the first: %s", what)
		}
	}
	if !ready(w.api.pod("web")) {
		t.Error("the second is not ready any more")
	}
	w.end(1, "web")
}

func TestForcedDeletionInMidStart(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"PullImage", "RunPodSandbox", "CreateContainer", "StartContainer"} {
		t.Run(method, func(t *testing.T) {
			w := up(t)
			hold := make(chan struct{})
			w.rt.Inject(method, fake.Fault{Hold: hold})
			w.api.create(newPod("web"))
			w.until("the call is under way", func() bool { return w.rt.Calls(method) > 0 })
			w.api.delete("web", 0)
			w.until("the worker ends the pod", func() bool {
				r, _ := w.node.loop.Why(namespace, "web")
				return r.Phase != "Syncing"
			})
			close(hold)
			w.untilGone()
		})
	}
}

func TestRuntimeClass(t *testing.T) {
	w := up(t)
	class := "small"
	handler := make(chan string, 1)
	w.rt.Inject("RunPodSandbox", fake.Fault{Times: -1, Match: func(req any) bool {
		select {
		case handler <- req.(*runtimeapi.RunPodSandboxRequest).GetRuntimeHandler():
		default:
		}
		return false
	}})
	w.api.create(with(newPod("web"), func(p *v1.Pod) { p.Spec.RuntimeClassName = &class }))
	w.until("an event tells that there is no such class", func() bool {
		return w.event(`Warning FailedCreatePodSandBox Failed to create pod sandbox: find the pod's runtime class: runtimeclasses.node.k8s.io "small" not found`)
	})
	if n := w.rt.Calls("RunPodSandbox"); n != 0 {
		t.Errorf("%d sandboxes were asked for", n)
	}
	if _, err := w.api.client.NodeV1().RuntimeClasses().Create(t.Context(), &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Handler: "vm"}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.untilReady("web")
	if got := <-handler; got != "vm" {
		t.Errorf("handler %q", got)
	}
	w.end(1, "web")
}
