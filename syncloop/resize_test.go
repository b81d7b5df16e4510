package syncloop_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/bowline-k8s/bowline/cri/fake"
)

// sized gives a container requests and limits, "" for none.
func sized(c *v1.Container, cpu, cpuLimit, memory, memoryLimit string) {
	c.Resources = v1.ResourceRequirements{Requests: amounts(cpu, memory), Limits: amounts(cpuLimit, memoryLimit)}
}

func amounts(cpu, memory string) v1.ResourceList {
	out := v1.ResourceList{}
	if cpu != "" {
		out[v1.ResourceCPU] = resource.MustParse(cpu)
	}
	if memory != "" {
		out[v1.ResourceMemory] = resource.MustParse(memory)
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// resize requests other resources, as the API server records it.
func (w *world) resize(name string, change func(*v1.Pod)) {
	w.t.Helper()
	w.api.update(name, func(p *v1.Pod) {
		p.Generation++
		change(p)
	})
}

func condition(p *v1.Pod, t v1.PodConditionType) *v1.PodCondition {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == t {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}

// untilResized waits until the status has the newest generation, no pending resize or resize in
// progress, and these requests and limits for container app.
func (w *world) untilResized(name, cpu, cpuLimit, memory, memoryLimit string) {
	w.t.Helper()
	want := v1.ResourceRequirements{Requests: amounts(cpu, memory), Limits: amounts(cpuLimit, memoryLimit)}
	same := func(a, b v1.ResourceList) bool {
		return len(a) == len(b) && a.Cpu().Cmp(*b.Cpu()) == 0 && a.Memory().Cmp(*b.Memory()) == 0
	}
	w.until("pod "+name+" has its new size", func() bool {
		p := w.api.pod(name)
		if p == nil || p.Status.ObservedGeneration < p.Generation || !ready(p) ||
			condition(p, v1.PodResizePending) != nil || condition(p, v1.PodResizeInProgress) != nil {
			return false
		}
		s := container(p, "app")
		return s.Resources != nil && same(s.Resources.Requests, want.Requests) && same(s.Resources.Limits, want.Limits) &&
			same(s.AllocatedResources, want.Requests)
	})
}

// updates returns the resizes that the runtime was asked for.
func (w *world) updates() []string {
	var out []string
	for _, e := range w.rt.Log() {
		if e.Op == fake.OpUpdate {
			out = append(out, e.Name+" "+e.Detail)
		}
	}
	return out
}

func (w *world) count(op fake.Op) int {
	n := 0
	for _, e := range w.rt.Log() {
		if e.Op == op {
			n++
		}
	}
	return n
}

func (m *machine) settings() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.sets)
}

func sizedPod(name string, cpu, memory string) *v1.Pod {
	return with(newPod(name), func(p *v1.Pod) { sized(&p.Spec.Containers[0], cpu, cpu, memory, memory) })
}

// TestResizeInPlace: limits of the pod's cgroup are raised before the container's and lowered after
// them; nothing restarts; the next process knows of the resize.
func TestResizeInPlace(t *testing.T) {
	w := newWorld(t, fake.Config{})
	w.allocatable = amounts("2", "1Gi")
	w.up()
	w.createReady(sizedPod("p", "100m", "200Mi"))
	w.untilResized("p", "100m", "100m", "200Mi", "200Mi")
	began := len(w.host.settings())

	w.resize("p", func(p *v1.Pod) { sized(&p.Spec.Containers[0], "200m", "200m", "100Mi", "100Mi") })
	w.untilResized("p", "200m", "200m", "100Mi", "100Mi")
	if got, want := w.updates(), []string{"app shares 204 quota 20000 memory 104857600"}; !slices.Equal(got, want) {
		t.Errorf("the runtime was asked for %q, want %q", got, want)
	}
	if got, want := w.host.settings()[began:], []string{"0: shares 204 quota 20000 memory 0", "1: shares 0 quota 0 memory 104857600"}; !slices.Equal(got, want) {
		t.Errorf("the pod's cgroup was set to %q, want %q", got, want)
	}
	for _, reason := range []string{"Normal ResizeStarted Pod resize started: {\"containers\":[{\"name\":\"app\"", "Normal ResizeCompleted Pod resize completed: {"} {
		w.wantEvent(reason)
	}

	// The next process repeats neither calls nor events.
	w.down()
	events := len(w.events)
	w.up()
	w.untilSettled("p")
	w.untilResized("p", "200m", "200m", "100Mi", "100Mi")
	if n := len(w.updates()); n != 1 {
		t.Errorf("after a restart of ours the runtime was asked %d times", n)
	}
	if len(w.events) != events {
		t.Errorf("after a restart of ours: %q", w.events[events:])
	}

	// A resize that is requested while no process manages the host is decided and done by the next
	// one.
	w.down()
	w.resize("p", func(p *v1.Pod) { sized(&p.Spec.Containers[0], "300m", "300m", "100Mi", "100Mi") })
	w.up()
	w.untilResized("p", "300m", "300m", "100Mi", "100Mi")
	if got := w.updates(); len(got) != 2 || got[1] != "app shares 307 quota 30000 memory 104857600" {
		t.Errorf("updates: %q", got)
	}
	if n := w.count(fake.OpStart); n != 1 {
		t.Errorf("%d containers were started", n)
	}
	w.end(5, "p")
}

// TestResizeWhileAwayWithoutRecord: the allocation of a pod that was never resized is in its
// sandbox's annotation, and a container's size in its own.
func TestResizeWhileAwayWithoutRecord(t *testing.T) {
	w := newWorld(t, fake.Config{})
	w.allocatable = amounts("1", "1Gi")
	w.up()
	w.createReady(sizedPod("p", "100m", "100Mi"))
	w.down()
	w.resize("p", func(p *v1.Pod) { sized(&p.Spec.Containers[0], "4", "4", "100Mi", "100Mi") })
	w.up()
	w.until("the resize is deferred", func() bool {
		c := condition(w.api.pod("p"), v1.PodResizePending)
		return c != nil && c.Reason == v1.PodReasonDeferred &&
			c.Message == "Node didn't have enough resource: cpu, requested: 4000, used: 0, capacity: 1000" && c.ObservedGeneration == w.api.pod("p").Generation
	})
	w.wantEvent("Warning ResizeDeferred Pod resize OutOfcpu: {")
	if got := w.updates(); len(got) != 0 {
		t.Errorf("updates: %q", got)
	}
	if s := container(w.api.pod("p"), "app"); s.AllocatedResources.Cpu().String() != "100m" || s.Resources.Limits.Cpu().String() != "100m" {
		t.Errorf("reported as allocated: %v of %v", s.AllocatedResources, s.Resources)
	}
	w.resize("p", func(p *v1.Pod) { sized(&p.Spec.Containers[0], "100m", "100m", "100Mi", "100Mi") })
	w.untilResized("p", "100m", "100m", "100Mi", "100Mi")
}

// TestResizeByRestart: a resource with resizePolicy RestartContainer is changed by a new instance;
// the pod's cgroup is changed before it starts.
func TestResizeByRestart(t *testing.T) {
	w := newWorld(t, fake.Config{})
	w.allocatable = amounts("2", "1Gi")
	w.up()
	w.createReady(with(sizedPod("p", "100m", "100Mi"), func(p *v1.Pod) {
		p.Spec.Containers[0].ResizePolicy = []v1.ContainerResizePolicy{
			{ResourceName: v1.ResourceCPU, RestartPolicy: v1.NotRequired},
			{ResourceName: v1.ResourceMemory, RestartPolicy: v1.RestartContainer}}
	}))
	w.resize("p", func(p *v1.Pod) { sized(&p.Spec.Containers[0], "200m", "200m", "100Mi", "100Mi") })
	w.untilResized("p", "200m", "200m", "100Mi", "100Mi")
	if n := w.count(fake.OpStart); n != 1 {
		t.Fatalf("CPU alone restarts it: %d starts", n)
	}
	w.resize("p", func(p *v1.Pod) { sized(&p.Spec.Containers[0], "200m", "200m", "150Mi", "150Mi") })
	w.untilResized("p", "200m", "200m", "150Mi", "150Mi")
	if n := w.count(fake.OpStart); n != 2 || container(w.api.pod("p"), "app").RestartCount != 1 {
		t.Errorf("%d starts, restart count %d", n, container(w.api.pod("p"), "app").RestartCount)
	}
	w.wantEvent("Normal Killing Container app resize requires restart")
	if got := w.updates(); len(got) != 1 {
		t.Errorf("updates: %q", got)
	}
	sets := w.host.settings()
	if last := sets[len(sets)-1]; last != "1: shares 0 quota 0 memory 157286400" {
		t.Errorf("the pod's cgroup: %q", sets)
	}
	w.down()
	w.up()
	w.untilSettled("p")
	w.untilResized("p", "200m", "200m", "150Mi", "150Mi")
	if n := w.count(fake.OpStart); n != 2 {
		t.Errorf("a restart of ours restarts the container: %d starts", n)
	}
}

// TestResizeBelowUsage: a memory limit is not lowered below the usage. That is reported, retried,
// and dropped when another size is requested.
func TestResizeBelowUsage(t *testing.T) {
	w := newWorld(t, fake.Config{})
	w.up()
	w.rt.SetMemoryUsage(50 << 20)
	w.createReady(sizedPod("p", "100m", "200Mi"))
	w.resize("p", func(p *v1.Pod) { sized(&p.Spec.Containers[0], "100m", "100m", "10Mi", "10Mi") })
	w.until("the resize has failed", func() bool {
		c := condition(w.api.pod("p"), v1.PodResizeInProgress)
		return c != nil && c.Reason == v1.PodReasonError && strings.Contains(c.Message, "memory limit (10485760) below current usage (52428800)")
	})
	w.wantEvent("Warning ResizeError Pod resize error: {")
	if s := container(w.api.pod("p"), "app"); s.Resources.Limits.Memory().String() != "200Mi" || s.AllocatedResources.Memory().String() != "10Mi" {
		t.Errorf("reported: %v, allocated %v", s.Resources, s.AllocatedResources)
	}
	if s := w.api.pod("p").Status; s.Resources.Limits.Memory().String() != "200Mi" || s.AllocatedResources.Memory().String() != "10Mi" {
		t.Errorf("of the pod is reported: %v, allocated %v", s.Resources, s.AllocatedResources)
	}
	w.resize("p", func(p *v1.Pod) { sized(&p.Spec.Containers[0], "100m", "100m", "200Mi", "200Mi") })
	w.untilResized("p", "100m", "100m", "200Mi", "200Mi")
	if got := w.updates(); len(got) != 0 {
		t.Errorf("updates: %q", got)
	}
}

// TestResizeWaitsForRoom: a pod that requests more than is free waits. The pod with the higher
// priority gets what another one frees.
func TestResizeWaitsForRoom(t *testing.T) {
	w := newWorld(t, fake.Config{})
	w.allocatable = amounts("1", "1Gi")
	w.up()
	for _, name := range []string{"big", "low", "high"} {
		w.api.create(with(sizedPod(name, "200m", "100Mi"), func(p *v1.Pod) {
			priority := int32(len(name)) // high is higher than low
			p.Spec.Priority = &priority
			if name == "big" {
				sized(&p.Spec.Containers[0], "600m", "600m", "100Mi", "100Mi")
			}
		}))
		w.untilReady(name)
	}
	deferred := func(name string) func() bool {
		return func() bool {
			c := condition(w.api.pod(name), v1.PodResizePending)
			return c != nil && c.Reason == v1.PodReasonDeferred
		}
	}
	allocated := func() map[string]string {
		out := map[string]string{}
		for _, p := range w.node.loop.AllocatedPods() {
			out[p.Name] = p.Spec.Containers[0].Resources.Requests.Cpu().String()
		}
		return out
	}
	for _, name := range []string{"low", "high"} {
		w.resize(name, func(p *v1.Pod) { sized(&p.Spec.Containers[0], "500m", "500m", "100Mi", "100Mi") })
		w.until(name+" waits", deferred(name))
	}
	if got, want := allocated(), map[string]string{"big": "600m", "low": "200m", "high": "200m"}; !maps.Equal(got, want) {
		t.Errorf("allocated %v, want %v", got, want)
	}
	w.resize("big", func(p *v1.Pod) { sized(&p.Spec.Containers[0], "300m", "300m", "100Mi", "100Mi") })
	w.untilResized("high", "500m", "500m", "100Mi", "100Mi")
	if !deferred("low")() {
		t.Error("the lower priority got room that there is not")
	}
	w.api.delete("big", 1)
	w.untilResized("low", "500m", "500m", "100Mi", "100Mi")
	if got, want := allocated(), map[string]string{"low": "500m", "high": "500m"}; !maps.Equal(got, want) {
		t.Errorf("allocated %v, want %v", got, want)
	}
}

// TestResizeOfACriticalPod: as few less important pods as possible end to make room, and the resize
// is never reported as deferred. If preemption would not help, the resize waits and no pod ends.
func TestResizeOfACriticalPod(t *testing.T) {
	w := newWorld(t, fake.Config{})
	w.allocatable = withPods(amounts("1", "1Gi"), "10")
	w.up()
	priority := func(p *v1.Pod, n int32) *v1.Pod { p.Spec.Priority = &n; return p }
	w.api.create(priority(sizedPod("critical", "200m", "100Mi"), 2_000_000_000))
	w.api.create(priority(sizedPod("large", "500m", "100Mi"), 5))
	w.api.create(priority(sizedPod("small", "200m", "100Mi"), 5))
	w.api.create(priority(sizedPod("other", "100m", "100Mi"), 2_000_000_000))
	for _, name := range []string{"critical", "large", "small", "other"} {
		w.untilReady(name)
	}
	w.resize("critical", func(p *v1.Pod) { sized(&p.Spec.Containers[0], "400m", "400m", "100Mi", "100Mi") })
	w.untilResized("critical", "400m", "400m", "100Mi", "100Mi")
	preempted := func(name string) {
		w.until(name+" has given way", func() bool {
			st := w.api.pod(name).Status
			return st.Phase == v1.PodFailed && st.Reason == "Preempting" && st.Message == "Preempted in order to admit critical pod"
		})
	}
	preempted("small")
	if w.event("Warning ResizeDeferred") {
		t.Error("the resize was deferred")
	}
	w.until("the event of the preempted pod", func() bool { return w.event("Warning Preempting Preempted in order to admit critical pod") })

	// It does not fit beside pods that are as critical, even without large.
	w.resize("other", func(p *v1.Pod) { sized(&p.Spec.Containers[0], "400m", "400m", "100Mi", "100Mi") })
	w.untilResized("other", "400m", "400m", "100Mi", "100Mi")
	preempted("large")
	w.resize("critical", func(p *v1.Pod) { sized(&p.Spec.Containers[0], "800m", "800m", "100Mi", "100Mi") })
	w.until("critical waits", func() bool {
		c := condition(w.api.pod("critical"), v1.PodResizePending)
		return c != nil && c.Reason == v1.PodReasonDeferred && c.Message == "Unexpected error while attempting to recover from admission failure: "+
			"preemption: error finding a set of pods to preempt: no set of running pods found to reclaim resources: [(res: cpu, q: 200), ]"
	})
	for _, name := range []string{"critical", "other"} {
		if st := w.api.pod(name).Status; st.Phase != v1.PodRunning {
			t.Errorf("%s: %+v", name, st)
		}
	}
}

// TestResizeUnreachable: a call without a reply is not an error of the resize, and nothing is lost.
func TestResizeUnreachable(t *testing.T) {
	w := newWorld(t, fake.Config{})
	w.up()
	w.createReady(sizedPod("p", "100m", "200Mi"))
	cut := 0
	w.setHook(func(ctx context.Context, label string, call func(context.Context) error) error {
		if label == "cri/UpdateContainerResources" && cut < 2 {
			cut++
			if cut == 2 {
				_ = call(ctx)
			}
			return status.Error(codes.Unavailable, "the connection is lost")
		}
		return call(ctx)
	})
	w.resize("p", func(p *v1.Pod) { sized(&p.Spec.Containers[0], "200m", "200m", "200Mi", "200Mi") })
	w.untilResized("p", "200m", "200m", "200Mi", "200Mi")
	if cut != 2 || w.event("Warning ResizeError") {
		t.Errorf("cut %d times; %q", cut, w.warnings())
	}
	if n := w.count(fake.OpStart); n != 1 {
		t.Errorf("%d starts", n)
	}
}

func withPods(l v1.ResourceList, most string) v1.ResourceList {
	l[v1.ResourcePods] = resource.MustParse(most)
	return l
}
