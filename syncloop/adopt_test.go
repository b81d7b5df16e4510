package syncloop_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
)

// mutations are the calls that change the runtime.
var mutations = []string{"RunPodSandbox", "StopPodSandbox", "RemovePodSandbox", "CreateContainer", "StartContainer", "StopContainer", "RemoveContainer"}

func (w *world) mutations() []int {
	var n []int
	for _, m := range mutations {
		n = append(n, w.rt.Calls(m))
	}
	return n
}

// A new process adopts everything as it is: it changes nothing, and no status goes backwards,
// readiness included.
func TestAdoption(t *testing.T) {
	w := up(t)
	always := v1.ContainerRestartPolicyAlways
	probe := &v1.Probe{ProbeHandler: execOf("exit 0"), PeriodSeconds: 10, TimeoutSeconds: 1, FailureThreshold: 3, SuccessThreshold: 1}
	w.api.create(with(newPod("full"), func(p *v1.Pod) {
		side := newContainer("side")
		side.RestartPolicy, side.StartupProbe = &always, probe
		p.Spec.InitContainers = []v1.Container{newContainer("setup", "exit 0"), side}
		p.Spec.Containers[0].ReadinessProbe = probe
		p.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PostStart: &v1.LifecycleHandler{Exec: execOf("out hooked").Exec}}
		p.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
		p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "v", MountPath: "/v"}}
	}))
	w.api.create(newPod("plain"))
	w.untilReady("full")
	w.untilReady("plain")
	testutil.Must(t, w.rt.Exit(w.instance("plain", "app"), 7))
	w.until("plain runs again", func() bool { p := w.api.pod("plain"); return container(p, "app").RestartCount == 1 && ready(p) })
	w.api.create(with(newPod("over", "exit 0"), func(p *v1.Pod) { p.Spec.RestartPolicy = v1.RestartPolicyNever }))
	w.until("over has ended", func() bool { return done(w.api.pod("over")) && w.rt.Count(fake.OpStopSandbox, "") == 1 })
	w.untilSettled("full")
	w.untilSettled("plain")

	before, starts := w.mutations(), []string{w.instance("full", "app"), w.instance("plain", "app")}
	unready := len(w.api.everUnready())
	for range 3 {
		w.down()
		w.up()
		w.untilSettled("full")
		w.untilSettled("plain")
		w.until("the worker of the pod that is over ends", func() bool {
			r, _ := w.node.loop.Why(namespace, "over")
			return r.Phase == "Gone"
		})
	}
	after := w.mutations()
	before[1], after[1] = 0, 0
	if !slices.Equal(before, after) {
		t.Errorf("calls of %v: %v before, %v after", mutations, before, after)
	}
	// Stopping a sandbox is the only way to know, after a restart too, that its network is
	// released. Nothing else may be called, and it may stop nothing.
	if n := w.rt.Count(fake.OpStopSandbox, ""); n != 1 {
		t.Errorf("%d sandboxes were stopped", n)
	}
	if got := []string{w.instance("full", "app"), w.instance("plain", "app")}; !slices.Equal(got, starts) {
		t.Errorf("instances %v, want %v", got, starts)
	}
	if n := len(w.api.everUnready()); n != unready {
		t.Errorf("pods became unready: %v", w.api.everUnready())
	}
	hooks := 0
	for _, e := range w.rt.Log() {
		if e.Op == fake.OpExec && strings.Contains(e.Detail, "hooked") {
			hooks++
		}
	}
	if hooks != 1 {
		t.Errorf("the postStart hook was run %d times", hooks)
	}
	w.end(5, "full", "plain", "over")
}

// foreign makes a sandbox with a container that another owner has stamped.
func (w *world) foreign() (sandboxID, containerID string) {
	w.t.Helper()
	ctx := context.Background()
	client, err := cri.Connect(ctx, cri.Config{Dial: w.rt.Dial})
	if err != nil {
		w.t.Fatal(err)
	}
	defer client.Close()
	labels := map[string]string{pod.LabelPodUID: "foreign-uid", pod.LabelPodName: "foreign", pod.LabelPodNamespace: namespace, pod.LabelContainerName: "foreign"}
	sb := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "foreign", Namespace: namespace, Uid: "foreign-uid"}, Labels: labels}
	if sandboxID, err = client.RunPodSandbox(ctx, sb, ""); err != nil {
		w.t.Fatal(err)
	}
	image := &runtimeapi.ImageSpec{Image: "registry.example/other:1"}
	if _, err := client.PullImage(ctx, image, nil, nil); err != nil {
		w.t.Fatal(err)
	}
	c := &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: "foreign"}, Image: image, Labels: labels}
	if containerID, err = client.CreateContainer(ctx, sandboxID, c, sb); err != nil {
		w.t.Fatal(err)
	}
	if err := client.StartContainer(ctx, containerID); err != nil {
		w.t.Fatal(err)
	}
	return sandboxID, containerID
}

// TestOrphansHookWithANamedPort: the annotations of a container resolve the port of its hook, too.
func TestOrphansHookWithANamedPort(t *testing.T) {
	asked := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case asked <- r.URL.Path:
		default:
		}
	}))
	defer server.Close()
	port := server.Listener.Addr().(*net.TCPAddr).Port
	w := up(t)
	w.createReady(with(newPod("web"), func(p *v1.Pod) {
		c := &p.Spec.Containers[0]
		c.Ports = []v1.ContainerPort{{Name: "admin", ContainerPort: int32(port)}}
		c.Lifecycle = &v1.Lifecycle{PreStop: &v1.LifecycleHandler{HTTPGet: &v1.HTTPGetAction{Host: "127.0.0.1", Port: intstr.FromString("admin"), Path: "/drain"}}}
	}))
	w.down()
	w.api.delete("web", 0)
	w.up()
	w.untilGone()
	select {
	case path := <-asked:
		if path != "/drain" {
			t.Errorf("the hook asked for %s", path)
		}
	default:
		t.Error("the preStop hook was not run")
	}
}

// TestOrphansAndForeigners: what runs with this owner's stamp and has no pod any more is ended, its
// preStop hook included. What has another stamp, or none, is not touched.
func TestOrphansAndForeigners(t *testing.T) {
	w := up(t)
	w.foreign()
	w.createReady(with(newPod("web"), func(p *v1.Pod) {
		p.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PreStop: &v1.LifecycleHandler{Exec: execOf("out stopping").Exec}}
	}))
	w.down()
	w.api.delete("web", 0)
	w.up()
	w.untilGone()
	if w.rt.Count(fake.OpExec, "app") != 1 {
		t.Error("the preStop hook was not run")
	}
	for _, e := range w.rt.Log() {
		if !strings.Contains(e.Pod, "foreign") {
			continue
		}
		switch e.Op {
		case fake.OpTerm, fake.OpKill, fake.OpExit, fake.OpRemove, fake.OpStopSandbox, fake.OpRemoveSandbox:
			t.Errorf("a foreign container met %s", e.Op)
		}
	}
}

// Nothing is an orphan before the sources have shown their pods.
func TestNoOrphansBeforeTheSourcesAreSeen(t *testing.T) {
	w := up(t)
	w.createReady(newPod("web"))
	w.down()
	w.api.mu.Lock()
	w.api.blind = true
	w.api.mu.Unlock()
	w.up()
	// Longer than the housekeeping period, in which an orphan would be ended.
	turns := time.After(3 * time.Second)
	w.until("housekeeping has come by", func() bool {
		select {
		case <-turns:
			return true
		default:
			return false
		}
	})
	if n := w.rt.Count(fake.OpTerm, ""); n != 0 {
		t.Fatal("a pod was ended that no source had had the time to show")
	}
	w.api.mu.Lock()
	w.api.blind = false
	w.api.mu.Unlock()
	w.api.show(w.node.sources)
	w.untilSettled("web")
	w.end(1, "web")
	if n := w.rt.Count(fake.OpStart, "app"); n != 1 {
		t.Errorf("%d starts", n)
	}
}

// A process that ends in the middle of anything logs no error and reports no failure. The next one
// brings the pod up and makes nothing twice.
func TestShutdownInMidOperation(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"PullImage", "ImageStatus", "RunPodSandbox", "CreateContainer", "StartContainer", "ExecSync", "StopContainer", "StopPodSandbox", "RemovePodSandbox"} {
		for _, done := range []bool{false, true} {
			t.Run(method+map[bool]string{false: "/undone", true: "/done"}[done], func(t *testing.T) {
				w := newParallelWorld(t)
				fault := fake.Fault{Withhold: true}
				if !done {
					fault = fake.Fault{Hold: make(chan struct{})}
				}
				w.rt.Inject(method, fault)
				w.up()
				w.api.create(with(newPod("web"), func(p *v1.Pod) {
					p.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PostStart: &v1.LifecycleHandler{Exec: execOf("exit 0").Exec}}
				}))
				if strings.HasPrefix(method, "Stop") || strings.HasPrefix(method, "Remove") {
					w.untilReady("web")
					w.api.delete("web", 5)
				}
				w.until("the call is under way", func() bool { return w.rt.Calls(method) > 0 })
				first := w.node
				w.down()
				if logs := first.errorLogs(); len(logs) != 0 {
					t.Errorf("errors in the log: %q", logs)
				}
				if warnings := w.warnings(); len(warnings) != 0 {
					t.Errorf("warnings: %q", warnings)
				}
				w.up()
				if p := w.api.pod("web"); p != nil && p.DeletionTimestamp == nil {
					w.untilReady("web")
					w.api.delete("web", 5)
				}
				w.untilGone()
				if n := w.rt.Count(fake.OpStart, "app"); n != 1 {
					t.Errorf("the container was started %d times", n)
				}
				if n := w.rt.Count(fake.OpRunSandbox, ""); n != 1 {
					t.Errorf("%d sandboxes were made", n)
				}
			})
		}
	}
}

// Losing the runtime changes nothing: no restart, no status, no orphan.
func TestStaleIsNeverDead(t *testing.T) {
	w := up(t)
	p := w.api.create(newPod("web"))
	w.untilReady("web")
	w.untilSettled("web")
	rv := w.api.pod("web").ResourceVersion
	w.rt.Stop()
	w.until("the loop is blind", func() bool { return w.node.pleg.Cache().Get(p.UID).Stale != "" })
	w.until("the worker says so", func() bool { return strings.Contains(w.why("web"), "stale") })
	if now := w.api.pod("web").ResourceVersion; now != rv {
		t.Error("the status was written while nothing could be seen")
	}
	testutil.Must(t, w.rt.Serve())
	w.untilSettled("web")
	if n := w.rt.Count(fake.OpStart, ""); n != 1 {
		t.Errorf("%d starts", n)
	}
	w.end(1, "web")
}

// A host that rebooted while the process kept running has lost its mounts. They are mounted again
// before anything runs in the new sandbox.
func TestNewSandboxFindsItsVolumes(t *testing.T) {
	w := up(t)
	w.createReady(with(newPod("web"), func(p *v1.Pod) {
		p.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}}}
		p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "v", MountPath: "/v"}}
	}))
	sandbox := w.rt.Log()[w.at(fake.OpStart, "app", 0)].SandboxID
	mounted := func() int {
		w.host.mu.Lock()
		defer w.host.mu.Unlock()
		return len(w.host.mounts)
	}
	if mounted() != 1 {
		t.Fatalf("%d mounts", mounted())
	}
	w.host.mu.Lock()
	w.host.mounts = nil
	w.host.mu.Unlock()
	atStart := make(chan int, 1)
	w.rt.Inject("StartContainer", fake.Fault{Times: -1, Match: func(any) bool {
		select {
		case atStart <- mounted():
		default:
		}
		return false
	}})
	testutil.Must(t, w.rt.FailSandbox(sandbox))
	w.until("it runs in a new sandbox", func() bool { return w.rt.Count(fake.OpStart, "app") == 2 })
	if n := <-atStart; n != 1 {
		t.Errorf("%d mounts when the container was started again", n)
	}
	w.wantEvent("Normal SandboxChanged")
	w.untilReady("web")
	w.end(1, "web")
}

// The runtime's own readiness holds starts back and releases them.
func TestNetworkThatIsNotReady(t *testing.T) {
	w := newParallelWorld(t)
	w.rt.SetCondition(runtimeapi.NetworkReady, false, "NetworkPluginNotReady", "cni plugin not initialized")
	w.up()
	w.api.create(newPod("web"))
	w.createReady(with(newPod("host"), func(p *v1.Pod) { p.Spec.HostNetwork = true }))
	if !strings.Contains(w.why("web"), "cni plugin not initialized") {
		t.Errorf("why: %s", w.why("web"))
	}
	w.rt.SetCondition(runtimeapi.NetworkReady, true, "", "")
	w.untilReady("web")
	w.end(1, "web", "host")
}

// Each call, with each kind of fault: in every case the pod comes up and goes away, and no
// container starts twice because a call's outcome is unknown.
func TestFaults(t *testing.T) {
	t.Parallel()
	lost := status.Error(codes.Unavailable, "connection lost for the test")
	failed := status.Error(codes.Unknown, "failed for the test")
	faults := []struct {
		name  string
		fault fake.Fault
		doubt bool // the caller does not learn the call's outcome
	}{
		{"not sent", fake.Fault{Before: lost}, true},
		{"reply lost", fake.Fault{After: lost}, true},
		{"no reply", fake.Fault{Withhold: true}, true},
		{"refused", fake.Fault{Before: failed}, false},
		{"done and failed", fake.Fault{After: failed}, false},
	}
	methods := append([]string{"PullImage", "ImageStatus", "ListPodSandbox", "ListContainers", "PodSandboxStatus", "ContainerStatus", "Status"}, mutations...)
	for _, method := range methods {
		for _, f := range faults {
			if method == "PullImage" && !f.doubt {
				continue // the back-off of 10 s is tested elsewhere
			}
			t.Run(method+"/"+f.name, func(t *testing.T) {
				w := newParallelWorld(t)
				w.setHook(impatient("cri/" + method))
				w.rt.Inject(method, f.fault)
				w.up()
				w.createReady(with(newPod("web"), func(p *v1.Pod) {
					p.Spec.InitContainers = []v1.Container{newContainer("setup", "exit 0")}
				}))
				w.end(5, "web")
				for _, reason := range []string{"CreatePodSandboxError", "CreateContainerError", "RunContainerError"} {
					if f.doubt && w.api.showed(reason) {
						t.Errorf("the status said %s of a call whose outcome no one knew", reason)
					}
				}
				most := 1
				if !f.doubt && method == "StartContainer" {
					most = 2 // a failed start is repeated
				}
				if n := w.rt.Count(fake.OpStart, "app"); n > most {
					t.Errorf("the container was started %d times", n)
				}
			})
		}
	}
}

// impatient gives the calls of this label half a second, so that no test waits for a real deadline.
func impatient(label string) host.Hook {
	return func(ctx context.Context, at string, call func(context.Context) error) error {
		if at == label {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, 500*time.Millisecond)
			defer cancel()
		}
		return call(ctx)
	}
}

// A host that shows an endless number of pods does not get a worker for each: the pods may be
// invented.
func TestOrphansAreEndedInTurns(t *testing.T) {
	t.Parallel()
	const invented = 300
	w := newWorld(t, fake.Config{})
	client, err := cri.Connect(t.Context(), cri.Config{Dial: w.rt.Dial})
	testutil.Must(t, err)
	defer client.Close()
	for i := range invented {
		uid := fmt.Sprintf("invented-%03d", i)
		labels := map[string]string{pod.LabelPodUID: uid, pod.LabelPodNamespace: "ns", pod.LabelPodName: uid, pod.LabelOwner: owner}
		sandbox := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: uid, Namespace: "ns", Uid: uid}, Labels: labels}
		if _, err := client.RunPodSandbox(t.Context(), sandbox, ""); err != nil {
			t.Fatal(err)
		}
	}
	hold := make(chan struct{})
	w.rt.Inject("StopPodSandbox", fake.Fault{Hold: hold, Times: -1})
	w.up()
	w.until("orphans are being ended", func() bool { return w.rt.Calls("StopPodSandbox") >= 30 })
	turned := w.node.loop.Turned()
	w.until("housekeeping has come by again", func() bool { return w.node.loop.Turned().Sub(turned) > 5*time.Second })
	if n := len(w.node.loop.Pods()); n > 32 {
		t.Errorf("%d workers of pods that no source has", n)
	}
	close(hold)
	testutil.Within(w.t, 2*time.Minute, "all orphans are gone", func() bool { return len(w.node.pleg.Cache().Known()) == 0 })
}

// The process stops, or hands over the host, while a container starts. The start finishes: containerd
// would abort it, and a pod that may not restart would have failed.
func TestStopDuringStart(t *testing.T) {
	w := up(t)
	within, calls := make(chan struct{}), make(chan context.Context, 1)
	w.rt.Inject("StartContainer", fake.Fault{Within: within})
	w.setHook(func(ctx context.Context, label string, call func(context.Context) error) error {
		if label == "cri/StartContainer" {
			calls <- ctx
		}
		return call(ctx)
	})
	w.api.create(with(newPod("once", "exit 0"), func(p *v1.Pod) { p.Spec.RestartPolicy = v1.RestartPolicyNever }))
	call := <-calls
	w.until("the start is under way", func() bool { return w.rt.Calls("StartContainer") == 1 })
	w.node.cancel()
	if call.Err() != nil {
		t.Error("the stop of the process cut off the start of a container")
	}
	close(within)
	w.down()
	w.setHook(nil)
	w.up()
	w.until("once has ended", func() bool { return done(w.api.pod("once")) })
	if p := w.api.pod("once"); p.Status.Phase != v1.PodSucceeded || w.rt.Calls("StartContainer") != 1 {
		t.Errorf("%d starts, and the pod has %s: %v", w.rt.Calls("StartContainer"), p.Status.Phase, container(p, "app").State)
	}
}

// A pod ends while its sidecar is being restarted: the start is cancelled, and leaves a container that
// never ran. As with a kubelet, that is the one that the last status names, and the end of the sidecar
// that ran stays readable.
func TestSidecarStartIsCancelled(t *testing.T) {
	w := up(t)
	hold := make(chan struct{})
	defer close(hold)
	w.rt.Inject("CreateContainer", fake.Fault{HoldAnswer: hold, Match: func(r any) bool {
		return r.(*runtimeapi.CreateContainerRequest).Config.Metadata.Attempt == 1
	}})
	w.createReady(with(newPod("once"), func(p *v1.Pod) {
		side := newContainer("side")
		side.RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
		p.Spec.RestartPolicy, p.Spec.InitContainers = v1.RestartPolicyNever, []v1.Container{side}
	}))
	ran := w.instance("once", "side")
	testutil.Must(t, w.rt.Exit(ran, 3))
	w.until("the next sidecar is created", func() bool { return w.at(fake.OpCreate, "side", 1) >= 0 })
	testutil.Must(t, w.rt.Exit(w.instance("once", "app"), 0))
	w.until("the pod is done", func() bool { return done(w.api.pod("once")) })
	p := w.api.pod("once")
	side := container(p, "side")
	is, was := side.State.Terminated, side.LastTerminationState.Terminated
	if p.Status.Phase != v1.PodSucceeded || side.RestartCount != 1 || w.rt.Count(fake.OpStart, "side") != 1 {
		t.Errorf("%s, %d restarts, %d starts", p.Status.Phase, side.RestartCount, w.rt.Count(fake.OpStart, "side"))
	}
	if is == nil || is.Reason != "ContainerStatusUnknown" || is.ContainerID != side.ContainerID || side.ContainerID == "containerd://"+ran {
		t.Errorf("the sidecar that never ran: %+v of %s", side.State, side.ContainerID)
	}
	if was == nil || was.ExitCode != 3 || was.ContainerID != "containerd://"+ran {
		t.Errorf("the sidecar that ran: %+v", side.LastTerminationState)
	}
}
