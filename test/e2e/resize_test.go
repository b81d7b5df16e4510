package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
)

// patchResize requests other resources as kubectl patch --subresource resize does.
func patchResize(t *testing.T, ns, name, spec string) *v1.Pod {
	t.Helper()
	p, err := lab.Client.CoreV1().Pods(ns).Patch(t.Context(), name, types.StrategicMergePatchType,
		[]byte(`{"spec":{`+spec+`}}`), metav1.PatchOptions{}, "resize")
	testutil.Must(t, err)
	return p
}

// resized waits until a resize is complete.
func resized(t *testing.T, ns, name string) *v1.Pod {
	t.Helper()
	return podIs(t, ns, name, 2*time.Minute, "is resized", func(p *v1.Pod) error {
		if p.Status.ObservedGeneration < p.Generation {
			return fmt.Errorf("generation %d is not observed", p.Generation)
		}
		for _, c := range p.Status.Conditions {
			if c.Type == v1.PodResizePending || c.Type == v1.PodResizeInProgress {
				return fmt.Errorf("%v", c)
			}
		}
		want := map[string]v1.ResourceRequirements{}
		for c := range pod.Containers(&p.Spec) {
			want[c.Name] = c.Resources
		}
		for s := range pod.Statuses(&p.Status) {
			w := want[s.Name]
			if s.State.Running == nil {
				continue
			}
			if s.Resources == nil || !sameAmounts(s.Resources.Requests, w.Requests) || !sameAmounts(s.Resources.Limits, w.Limits) || !sameAmounts(s.AllocatedResources, w.Requests) {
				return fmt.Errorf("%s has %v of %v allocated, and wants %v", s.Name, s.Resources, s.AllocatedResources, w)
			}
		}
		return nil
	})
}

func sameAmounts(a, b v1.ResourceList) bool {
	return len(a) == len(b) && a.Cpu().Cmp(*b.Cpu()) == 0 && a.Memory().Cmp(*b.Memory()) == 0
}

// podFile returns a cgroup v1 file of the pod, or of one of its containers.
func podFile(p *v1.Pod, class, controller, container, file string) string {
	dir := filepath.Join("/sys/fs/cgroup", controller, lab.Host(host).Cgroup, "kubepods", class, "pod"+string(p.UID))
	for s := range pod.Statuses(&p.Status) {
		if s.Name == container {
			dir = filepath.Join(dir, strings.TrimPrefix(s.ContainerID, "containerd://"))
		}
	}
	data, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(data))
}

// A running pod gets other resources: the kernel's files have them, a container restarts only if
// its resize policy says so, and a request that cannot be met is reported and waits.
func TestResize(t *testing.T) {
	parallel(t)
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		t.Skip("the files named here are of cgroup v1")
	}
	ns := namespace(t)
	const sleeper = "image: $TOOLBOX, command: [sh, -c, \"trap 'exit 0' TERM; while :; do sleep 1; done\"]"
	create(t, ns, `
metadata: {name: many}
spec:
  terminationGracePeriodSeconds: 2
  initContainers:
  - {name: side, restartPolicy: Always, `+sleeper+`, resources: {requests: {cpu: 20m, memory: 20Mi}, limits: {cpu: 20m, memory: 20Mi}}}
  containers:
  - {name: main, `+sleeper+`, resources: {requests: {cpu: 50m, memory: 50Mi}, limits: {cpu: 50m, memory: 50Mi}}}
  - name: again
    image: $TOOLBOX
    command: [sh, -c, "trap 'exit 0' TERM; while :; do sleep 1; done"]
    resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}]
    resources: {requests: {cpu: 30m, memory: 30Mi}, limits: {cpu: 30m, memory: 30Mi}}
`)
	create(t, ns, `
metadata: {name: whole}
spec:
  terminationGracePeriodSeconds: 2
  resources: {requests: {cpu: 100m, memory: 100Mi}, limits: {cpu: 100m, memory: 100Mi}}
  containers:
  - {name: main, `+sleeper+`}
`)
	create(t, ns, `
metadata: {name: init}
spec:
  terminationGracePeriodSeconds: 2
  initContainers:
  - {name: first, `+sleeper+`, resources: {requests: {cpu: 20m}, limits: {cpu: 20m}}}
  containers:
  - {name: main, `+sleeper+`, resources: {requests: {cpu: 20m}, limits: {cpu: 20m}}}
`)
	check := func(p *v1.Pod, class, controller, container, file, want string) {
		t.Helper()
		equal(t, fmt.Sprintf("%s of %s %s", file, p.Name, container), podFile(p, class, controller, container, file), want)
	}
	ready(t, ns, "many")
	p := resized(t, ns, "many")
	check(p, "", "memory", "", "memory.limit_in_bytes", "104857600")

	// CPU up and memory down, including sidecars.
	patchResize(t, ns, "many", `"initContainers":[{"name":"side","resources":{"requests":{"cpu":"40m"},"limits":{"cpu":"40m"}}}],
		"containers":[{"name":"main","resources":{"requests":{"cpu":"100m","memory":"40Mi"},"limits":{"cpu":"100m","memory":"40Mi"}}}]`)
	p = resized(t, ns, "many")
	check(p, "", "cpu", "side", "cpu.cfs_quota_us", "4000")
	check(p, "", "cpu", "main", "cpu.cfs_quota_us", "10000")
	check(p, "", "cpu", "main", "cpu.shares", "102")
	check(p, "", "memory", "main", "memory.limit_in_bytes", "41943040")
	check(p, "", "cpu", "", "cpu.cfs_quota_us", "17000")
	check(p, "", "memory", "", "memory.limit_in_bytes", "94371840")

	// Memory of the container whose policy requires a restart.
	patchResize(t, ns, "many", `"containers":[{"name":"again","resources":{"requests":{"memory":"60Mi"},"limits":{"memory":"60Mi"}}}]`)
	podIs(t, ns, "many", 2*time.Minute, "has restarted a container", func(got *v1.Pod) error {
		for _, s := range got.Status.ContainerStatuses {
			if s.Name == "again" && (s.RestartCount != 1 || s.State.Running == nil) {
				return fmt.Errorf("%v", s)
			}
		}
		return nil
	})
	p = resized(t, ns, "many")
	check(p, "", "memory", "again", "memory.limit_in_bytes", "62914560")
	check(p, "", "memory", "", "memory.limit_in_bytes", "125829120")
	for _, s := range append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...) {
		equal(t, "restarts of "+s.Name, s.RestartCount, map[string]int32{"again": 1}[s.Name])
	}

	// A request beyond the node waits; memory in use is not taken away; both are reported.
	wantCondition := func(kind v1.PodConditionType, reason, words string) {
		t.Helper()
		podIs(t, ns, "many", 2*time.Minute, string(kind)+" "+reason, func(got *v1.Pod) error {
			for _, c := range got.Status.Conditions {
				if c.Type == kind && c.Reason == reason && strings.Contains(c.Message, words) && c.ObservedGeneration == got.Generation {
					return nil
				}
			}
			return fmt.Errorf("%v", got.Status.Conditions)
		})
	}
	node := getNode(t, lab)
	whole := node.Status.Allocatable.Cpu().MilliValue() // the pod's other containers use a part of it already
	patchResize(t, ns, "many", fmt.Sprintf(`"containers":[{"name":"main","resources":{"requests":{"cpu":"%dm"},"limits":{"cpu":"%[1]dm"}}}]`, whole-70))
	wantCondition(v1.PodResizePending, v1.PodReasonDeferred, fmt.Sprintf("Node didn't have enough resource: cpu, requested: %d, used: ", whole))
	patchResize(t, ns, "many", `"containers":[{"name":"main","resources":{"requests":{"cpu":"100m","memory":"10Ki"},"limits":{"cpu":"100m","memory":"10Ki"}}}]`)
	wantCondition(v1.PodResizeInProgress, v1.PodReasonError, `memory limit (10240) below current usage`)
	patchResize(t, ns, "many", `"containers":[{"name":"main","resources":{"requests":{"memory":"50Mi"},"limits":{"memory":"50Mi"}}}]`)
	p = resized(t, ns, "many")
	check(p, "", "memory", "main", "memory.limit_in_bytes", "52428800")

	// The pod as a whole: the pod's limit applies to its container.
	ready(t, ns, "whole")
	patchResize(t, ns, "whole", `"resources":{"requests":{"cpu":"150m","memory":"80Mi"},"limits":{"cpu":"150m","memory":"80Mi"}}`)
	p = resized(t, ns, "whole")
	check(p, "", "cpu", "", "cpu.cfs_quota_us", "15000")
	check(p, "", "memory", "", "memory.limit_in_bytes", "83886080")
	check(p, "", "memory", "main", "memory.limit_in_bytes", "83886080")
	if r := p.Status.Resources; r == nil || r.Limits.Memory().String() != "80Mi" {
		t.Errorf("status.resources: %v", r)
	}

	// An init container that runs.
	podIs(t, ns, "init", 2*time.Minute, "runs its init container", func(got *v1.Pod) error {
		if len(got.Status.InitContainerStatuses) == 0 || got.Status.InitContainerStatuses[0].State.Running == nil {
			return fmt.Errorf("%v", got.Status.InitContainerStatuses)
		}
		return nil
	})
	patchResize(t, ns, "init", `"initContainers":[{"name":"first","resources":{"requests":{"cpu":"60m"},"limits":{"cpu":"60m"}}}]`)
	p = resized(t, ns, "init")
	check(p, "burstable", "cpu", "first", "cpu.cfs_quota_us", "6000")
}
