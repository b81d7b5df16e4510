package e2e

import (
	"context"
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// The steps of TestPressure in which the machine is short of more than pods have taken.

// others: something else has filled the disk of images. The node reports that removing its own
// images would not help, and keeps them.
func (s *strained) others(runtime *cri.Client, since time.Time) {
	s.Helper()
	ctx := s.Context()
	s.event(host, "FreeDiskSpaceFailed", "Failed to free sufficient space by deleting unused images")
	for _, image := range []string{webV2, toolbox} {
		if i, err := runtime.ImageStatus(ctx, &runtimeapi.ImageSpec{Image: image}); err != nil || i == nil {
			s.Errorf("%s, which is used, is gone: %v", image, err)
		}
	}
	s.runs("critical")
	list, err := s.own.Client.CoreV1().Events("").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + host})
	testutil.Must(s.T, err)
	for _, e := range list.Items {
		if e.LastTimestamp.Time.After(since) && (e.Reason == "ImageGCFailed" || e.Reason == "FreeDiskSpaceFailed" && e.Count > 1) {
			s.Errorf("it was reported %d times: %s %s", e.Count, e.Reason, e.Message)
		}
	}
}

// processes: if PIDs are short, the pod with the most processes goes first among equals.
func (s *strained) processes(root string) {
	s.Helper()
	s.pod("few", "", "command: [sleep, inf]")
	s.pod("many", "", `command: [sh, -c, "for i in 1 2 3 4 5 6 7 8; do sleep inf & done; wait"]`)
	s.runs("few", "many")
	testutil.Must(s.T, s.b.Stop())
	s.start("rootDirectory: "+root, "allowForeignPods: true", `evictionHard: {pid.available: "99.99%"}`)
	many := s.fails("many", "Evicted", "The node was low on resource: pids. Threshold quantity: ", true)
	few := s.fails("few", "Evicted", "The node was low on resource: pids. Threshold quantity: ", true)
	if a, b := s.disruptedAt(many), s.disruptedAt(few); a.After(b) {
		s.Errorf("who has more processes went at %v, the other one at %v", a, b)
	}
	s.condition(v1.NodePIDPressure, v1.ConditionTrue, "KubeletHasInsufficientPID", v1.TaintNodePIDPressure)
	s.runs("critical")
	testutil.Must(s.T, s.b.Stop())
}

func (s *strained) disruptedAt(p *v1.Pod) time.Time {
	if c := labtest.Condition(p, v1.DisruptionTarget); c != nil {
		return c.LastTransitionTime.Time
	}
	return time.Time{}
}

// allocatable: the pods' share of the memory is nearly used up, while the machine has plenty.
func (s *strained) allocatable(root string) {
	s.Helper()
	n := getNode(s.T, s.own)
	s.start("rootDirectory: "+root, "allowForeignPods: true", "evictionHard: {memory.available: 128Mi}",
		fmt.Sprintf(`systemReserved: {memory: "%d"}`, n.Status.Capacity.Memory().Value()-(320<<20)))
	s.pod("within", "", "command: [sleep, inf], resources: {requests: {memory: 16Mi}}")
	s.runs("within")
	s.pod("large", "", "command: [alloc, 200Mi]")
	s.fails("large", "Evicted", "The node was low on resource: memory. Threshold quantity: 128Mi, available: ", true)
	s.runs("within", "critical")
	testutil.Must(s.T, s.b.Stop())
}

// full: nothing more can be written in the volumes' file system. Existing data stays complete,
// missing objects are reported, and both are updated once there is room.
func (s *strained) full(root string) {
	s.Helper()
	ctx := s.Context()
	core := s.own.Client.CoreV1()
	configMap := func(name, text string) *v1.ConfigMap {
		return &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Data: map[string]string{"text": text}}
	}
	const size = 512 << 10
	for _, m := range []*v1.ConfigMap{configMap("live", "old"), configMap("large", strings.Repeat("x", size))} {
		_, err := core.ConfigMaps("default").Create(ctx, m, metav1.CreateOptions{})
		testutil.Must(s.T, err)
	}
	mounts := func(name string) string { return "volumes: [{name: v, configMap: {name: " + name + "}}]" }
	const reads = "command: [sleep, inf], volumeMounts: [{name: v, mountPath: /v}]"
	s.pod("reader", mounts("live"), reads)
	s.runs("reader")

	filler := root + "/filler"
	onHost := func(want int, argv ...string) {
		s.Helper()
		if out, err := labtest.Capture(s.own.Exec(ctx, host, argv...)); err != nil || (out.Code == 0) != (want == 0) {
			s.Fatalf("%q: %v, code %d, %s", argv, err, out.Code, out.Stderr)
		}
	}
	onHost(1, "dd", "if=/dev/zero", "of="+filler, "bs=65536")
	_, err := core.ConfigMaps("default").Update(ctx, configMap("live", strings.Repeat("new", size/3)), metav1.UpdateOptions{})
	testutil.Must(s.T, err)
	s.pod("writer", mounts("large"), reads)
	// FailedMount, or Failed if not even the pod's directories have room.
	findEvent(s.T, s.own, "", "involvedObject.name=writer,type=Warning", "no space left on device")
	s.event("reader", "FailedMount", "no space left on device")
	text := func() string {
		out, err := s.own.Kubectl(ctx, "exec", "reader", "--", "cat", "/v/text")
		testutil.Must(s.T, err)
		return out.Stdout
	}
	if got := text(); got != "old" {
		s.Errorf("on a full disk the reader has %d bytes, %.20q", len(got), got)
	}
	if p, err := core.Pods("default").Get(ctx, "writer", metav1.GetOptions{}); err != nil || p.Status.Phase != v1.PodPending {
		s.Errorf("the pod that waits for its volume is %s, %v", p.Status.Phase, err)
	}

	onHost(0, "rm", filler)
	s.runs("writer")
	until(s.T, "the reader has what is new", func(context.Context) error {
		if got := text(); !strings.HasPrefix(got, "newnew") {
			return fmt.Errorf("it has %d bytes, %.20q", len(got), got)
		}
		return nil
	})
	s.runs("reader", "critical")
}

// precedence: a critical pod without room preempts another pod, whether it is new or grows.
func (s *strained) precedence(root string) {
	s.Helper()
	ctx := s.Context()
	s.start("rootDirectory: "+root, "allowForeignPods: true")
	n := getNode(s.T, s.own)
	all := n.Status.Allocatable.Cpu().MilliValue()
	asks := func(milli int64) string {
		return fmt.Sprintf("command: [sleep, inf], resources: {requests: {cpu: %dm}}", milli)
	}
	const important = "priorityClassName: system-node-critical"
	s.pod("gives", "", asks(all-500))
	s.pod("grows", important, asks(100))
	s.runs("gives", "grows")
	_, err := s.own.Client.CoreV1().Pods("default").Patch(ctx, "grows", types.StrategicMergePatchType,
		[]byte(`{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"900m"}}}]}}`), metav1.PatchOptions{}, "resize")
	testutil.Must(s.T, err)
	gaveWay := func(name string) {
		s.Helper()
		p, err := s.own.Pod(ctx, "default", name, patience, "it has given way", func(p *v1.Pod) error {
			if p.Status.Phase != v1.PodFailed {
				return fmt.Errorf("it is %s", p.Status.Phase)
			}
			return nil
		})
		testutil.Must(s.T, err)
		c := labtest.Condition(p, v1.DisruptionTarget)
		if p.Status.Reason != "Preempting" || p.Status.Message != "Preempted in order to admit critical pod" || c == nil ||
			c.Message != "Pod was preempted by Kubelet to accommodate a critical pod." {
			s.Errorf("%s: %s %q, %+v", name, p.Status.Reason, p.Status.Message, c)
		}
		s.event(name, "Preempting", p.Status.Message)
	}
	gaveWay("gives")
	_, err = s.own.Pod(ctx, "default", "grows", patience, "it has grown", func(p *v1.Pod) error {
		c := labtest.Container(p, "main")
		if c == nil || c.Resources == nil || c.Resources.Requests.Cpu().MilliValue() != 900 || c.RestartCount != 0 {
			return fmt.Errorf("its container has %+v", c)
		}
		return nil
	})
	testutil.Must(s.T, err)
	s.pod("gives-too", "", asks(all-1500))
	s.runs("gives-too")
	s.pod("comes", important, asks(800))
	s.runs("comes", "grows")
	gaveWay("gives-too")
	testutil.Must(s.T, s.b.Stop())
}
