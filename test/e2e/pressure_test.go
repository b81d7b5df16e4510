package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// strained is a node of the test's own lab that runs short of resources.
type strained struct {
	*testing.T
	own *labtest.Lab
	b   *labtest.Bowline
	w   *labtest.Wire
}

// start runs the node with these lines in its configuration.
func (s *strained) start(lines ...string) {
	s.Helper()
	if remote {
		more, err := s.own.SSHLines(host, s.w.Address())
		testutil.Must(s.T, err)
		lines = append(more, lines...)
	}
	file := filepath.Join(s.own.Dir, "strained.yaml")
	testutil.Must(s.T, os.WriteFile(file, []byte(s.own.ConfigYAML(host, lines...)), 0o644))
	s.b = &labtest.Bowline{Lab: s.own, Host: host, Config: file, Wire: s.w, Args: []string{"-v=2"}}
	if remote {
		s.b.Apart = &labtest.Apart{}
	}
	testutil.Must(s.T, s.b.Start())
	if _, err := s.own.NodeReady(s.Context(), host, v1.ConditionTrue, patience); err != nil {
		s.Fatalf("%v\n%s", err, s.b.LogTail(4000))
	}
}

// pod makes a pod on the node, bypassing the scheduler.
func (s *strained) pod(name, spec, container string) {
	s.Helper()
	p := manifest[v1.Pod](s.T, "default", brief(name, `
  nodeName: `+host+`
  tolerations: [{operator: Exists}]
  `+spec+`
  containers: [{name: main, image: $TOOLBOX, `+container+`}]
`))
	_, err := s.own.Client.CoreV1().Pods("default").Create(s.Context(), p, metav1.CreateOptions{})
	testutil.Must(s.T, err)
}

// fails waits until the pod fails for this reason, with these words.
func (s *strained) fails(name, reason, words string, disrupted bool) *v1.Pod {
	s.Helper()
	p, err := s.own.Pod(s.Context(), "default", name, 2*time.Minute, "failed", func(p *v1.Pod) error {
		if p.Status.Phase != v1.PodFailed {
			return fmt.Errorf("it is %s", p.Status.Phase)
		}
		return nil
	})
	if err != nil {
		s.Fatalf("%v\n%s", err, s.b.LogTail(6000))
	}
	c := labtest.Condition(p, v1.DisruptionTarget)
	if p.Status.Reason != reason || !strings.Contains(p.Status.Message, words) || (c != nil) != disrupted ||
		c != nil && (c.Reason != v1.PodReasonTerminationByKubelet || c.Message != p.Status.Message) {
		s.Errorf("%s: %s %q, DisruptionTarget %+v; want %s %q, %v", name, p.Status.Reason, p.Status.Message, c, reason, words, disrupted)
	}
	return p
}

func (s *strained) runs(names ...string) {
	s.Helper()
	for _, name := range names {
		if _, err := s.own.PodReady(s.Context(), "default", name, 90*time.Second); err != nil {
			s.Fatalf("%v\n%s", err, s.b.LogTail(6000))
		}
	}
}

// condition waits for a condition of the node, with its reason and its taint.
func (s *strained) condition(kind v1.NodeConditionType, status v1.ConditionStatus, reason, taint string) {
	s.Helper()
	until(s.T, fmt.Sprintf("%s %s", kind, status), func(ctx context.Context) error {
		n, err := s.own.Client.CoreV1().Nodes().Get(ctx, host, metav1.GetOptions{})
		if err != nil {
			return err
		}
		tainted := false
		for _, t := range n.Spec.Taints {
			tainted = tainted || t.Key == taint
		}
		for _, c := range n.Status.Conditions {
			if c.Type == kind && c.Status == status && c.Reason == reason && tainted == (status == v1.ConditionTrue) {
				return nil
			}
		}
		return fmt.Errorf("the conditions are %+v, the taints %+v", n.Status.Conditions, n.Spec.Taints)
	})
}

// event waits for an event on an object.
func (s *strained) event(object, reason, words string) {
	s.Helper()
	findEvent(s.T, s.own, "", "involvedObject.name="+object+",reason="+reason, words)
}

// Pods fill the disk, exceed their own limits, and want more than the node has; the machine is
// short of memory and of PIDs. The right pods are evicted, in order, with the kubelet's reasons,
// and the node reports its pressure.
func TestPressure(t *testing.T) {
	if !full {
		onlyLocal(t, "host/hosttest measures pressure locally and over SSH; BOWLINE_E2E_FULL=1 runs it")
	}
	parallel(t)
	ctx := t.Context()
	s := &strained{T: t, own: ownLab(t, 1)}
	var err error
	if remote {
		s.w, err = s.own.NewWire(host)
		testutil.Must(t, err)
		t.Cleanup(s.w.Close)
	}
	// The pods' file system is a small one, which the test can fill without harm.
	const root = "/var/lib/kubelet/small"
	for _, argv := range [][]string{{"mkdir", "-p", root}, {"mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", root}} {
		out, err := labtest.Capture(s.own.Exec(ctx, host, argv...))
		testutil.Must(t, err)
		if out.Code != 0 {
			t.Fatalf("%q: %s", argv, out.Stderr)
		}
	}
	s.start("rootDirectory: "+root, "evictionHard: {nodefs.available: 24Mi}")
	t.Cleanup(func() { s.b.Kill() })

	const volume = "volumes: [{name: v, emptyDir: {}}]"
	writes := func(mib int) string {
		return fmt.Sprintf(`command: [sh, -c, "dd if=/dev/zero of=/v/f bs=1048576 count=%d; sleep inf"], volumeMounts: [{name: v, mountPath: /v}]`, mib)
	}
	s.pod("modest", volume, writes(1))
	s.pod("critical", "priorityClassName: system-node-critical", "command: [sleep, inf]")
	s.pod("asked", "", "command: [sleep, inf], resources: {requests: {memory: 64Mi}}")
	s.pod("hog", "", "command: [alloc, 32Mi]")
	s.runs("modest", "critical", "asked", "hog")
	s.pod("limited", "volumes: [{name: v, emptyDir: {sizeLimit: 1Mi}}]", writes(3))
	s.pod("cpu", "", "command: [sleep, inf], resources: {requests: {cpu: 1k}}")
	s.pod("elsewhere", "nodeSelector: {there: isnone}", "command: [sleep, inf]")
	s.pod("sysctl", `securityContext: {sysctls: [{name: kernel.msgmax, value: "1"}]}`, "command: [sleep, inf]")
	s.fails("cpu", "OutOfcpu", "Pod was rejected: Node didn't have enough resource: cpu, requested: 1000000, used: ", false)
	s.fails("elsewhere", "NodeAffinity", "Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector", false)
	s.fails("sysctl", "SysctlForbidden", `Pod was rejected: forbidden sysctl: "kernel.msgmax" not allowlisted`, false)
	s.fails("limited", "Evicted", `Usage of EmptyDir volume "v" exceeds the limit "1Mi". `, false)

	s.pod("greedy", volume, writes(45))
	s.fails("greedy", "Evicted", "The node was low on resource: ephemeral-storage. Threshold quantity: 24Mi, available: ", true)
	s.condition(v1.NodeDiskPressure, v1.ConditionTrue, "KubeletHasDiskPressure", v1.TaintNodeDiskPressure)
	s.pod("late", "", "command: [sleep, inf]")
	s.fails("late", "Evicted", "Pod was rejected: The node had condition: [DiskPressure]. ", false)
	s.event("greedy", "Evicted", "The node was low on resource: ephemeral-storage. ")
	s.event(host, "EvictionThresholdMet", "Attempting to reclaim ephemeral-storage")
	s.event(host, "NodeHasDiskPressure", "")
	s.runs("asked", "hog", "modest", "critical")

	// A threshold above the machine's free resources is met without using any of them.
	testutil.Must(t, s.b.Stop())
	s.start("rootDirectory: "+root, `evictionHard: {memory.available: "99.99%", pid.available: "99.99%"}`)
	hog := s.fails("hog", "Evicted", "The node was low on resource: memory. Threshold quantity: ", true)
	asked := s.fails("asked", "Evicted", "The node was low on resource: memory. Threshold quantity: ", true)
	if !strings.Contains(hog.Status.Message, "Container main was using ") || strings.Contains(asked.Status.Message, "Container main was using ") {
		t.Errorf("the messages are %q and %q", hog.Status.Message, asked.Status.Message)
	}
	ended := func(p *v1.Pod) time.Time {
		if c := labtest.Container(p, "main"); c != nil && c.State.Terminated != nil {
			return c.State.Terminated.FinishedAt.Time
		}
		t.Errorf("%s has the statuses %+v", p.Name, p.Status.ContainerStatuses)
		return time.Time{}
	}
	if ended(hog).After(ended(asked)) {
		t.Error("who stays within its request went before who does not")
	}
	s.condition(v1.NodeMemoryPressure, v1.ConditionTrue, "KubeletHasInsufficientMemory", v1.TaintNodeMemoryPressure)
	s.condition(v1.NodePIDPressure, v1.ConditionTrue, "KubeletHasInsufficientPID", v1.TaintNodePIDPressure)
	s.condition(v1.NodeDiskPressure, v1.ConditionFalse, "KubeletHasNoDiskPressure", v1.TaintNodeDiskPressure)
	s.pod("too-late", "", "command: [sleep, inf]")
	s.fails("too-late", "Evicted", "Pod was rejected: The node had condition: [MemoryPressure PIDPressure]. ", false)
	s.runs("critical")

	// Image GC removes images when their disk is short, but not those that any container uses, ours
	// or foreign, nor those that a pod of ours names.
	testutil.Must(t, s.b.Stop())
	runtime, err := s.own.CRI(ctx, host)
	testutil.Must(t, err)
	defer runtime.Close()
	stranger := s.stranger(runtime, webV2)
	_, err = runtime.PullImage(ctx, &runtimeapi.ImageSpec{Image: webV1}, nil, nil)
	testutil.Must(t, err)
	has := func(ctx context.Context, image string) bool {
		i, err := runtime.ImageStatus(ctx, &runtimeapi.ImageSpec{Image: image})
		testutil.Must(t, err)
		return i != nil
	}
	s.start("rootDirectory: "+root, "allowForeignPods: true", `evictionHard: {imagefs.available: "99.99%"}`, "imageMinimumGCAge: 1s")
	until(t, "the unused image goes", func(ctx context.Context) error {
		if has(ctx, webV1) {
			return fmt.Errorf("%s is there", webV1)
		}
		return nil
	})
	for _, image := range []string{webV2, toolbox} {
		if !has(ctx, image) {
			t.Errorf("%s is gone, and is used", image)
		}
	}
	if c, err := runtime.ContainerStatus(ctx, stranger); err != nil || c.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the container of another driver: %+v, %v", c, err)
	}
	s.runs("critical")
	testutil.Must(t, s.b.Stop())
	// More than 1 % of any machine's disk is in use, and not by the lab's few images.
	since := time.Now().Add(-time.Second) // events have whole seconds
	s.start("rootDirectory: "+root, "allowForeignPods: true", "evictionHard: {memory.available: 1Mi}",
		"imageGCHighThresholdPercent: 1", "imageGCLowThresholdPercent: 0")
	s.full(root)
	s.others(runtime, since)
	s.processes(root)
	s.allocatable(root)
	s.precedence(root)
}

// stranger runs a foreign container of an image.
func (s *strained) stranger(runtime *cri.Client, image string) (container string) {
	s.Helper()
	ctx := s.Context()
	own := &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}
	sandbox := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "stranger", Namespace: "default", Uid: "57a49e40-0000-4000-8000-000000000001"},
		Linux: &runtimeapi.LinuxPodSandboxConfig{CgroupParent: "/strangers",
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: own}},
	}
	ref, err := runtime.PullImage(ctx, &runtimeapi.ImageSpec{Image: image}, nil, sandbox)
	testutil.Must(s.T, err)
	id, err := runtime.RunPodSandbox(ctx, sandbox, "")
	testutil.Must(s.T, err)
	container, err = runtime.CreateContainer(ctx, id, &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Image: &runtimeapi.ImageSpec{Image: ref},
		Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{NamespaceOptions: own}},
	}, sandbox)
	testutil.Must(s.T, err)
	testutil.Must(s.T, runtime.StartContainer(ctx, container))
	return container
}
