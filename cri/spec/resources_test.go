package spec_test

import (
	"math"
	"reflect"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/pod"
)

func requires(requests, limits v1.ResourceList) v1.Container {
	return v1.Container{Name: "c", Resources: v1.ResourceRequirements{Requests: requests, Limits: limits}}
}

func TestQOSClass(t *testing.T) {
	full := list("cpu", "1", "memory", "1Gi")
	guaranteed, burstable, nothing := requires(full, full), requires(list("cpu", "1"), nil), requires(nil, nil)
	for _, c := range []struct {
		name string
		pod  v1.PodSpec
		want v1.PodQOSClass
	}{
		{"nothing set", v1.PodSpec{Containers: []v1.Container{nothing}}, v1.PodQOSBestEffort},
		{"all equal", v1.PodSpec{Containers: []v1.Container{guaranteed, guaranteed}}, v1.PodQOSGuaranteed},
		{"equal in other words", v1.PodSpec{Containers: []v1.Container{requires(list("cpu", "1000m", "memory", "1024Mi"), full)}}, v1.PodQOSGuaranteed},
		{"CPU alone", v1.PodSpec{Containers: []v1.Container{requires(list("cpu", "1"), list("cpu", "1"))}}, v1.PodQOSBurstable},
		{"a request alone", v1.PodSpec{Containers: []v1.Container{burstable}}, v1.PodQOSBurstable},
		{"one of two", v1.PodSpec{Containers: []v1.Container{guaranteed, nothing}}, v1.PodQOSBurstable},
		{"the init container differs", v1.PodSpec{InitContainers: []v1.Container{nothing}, Containers: []v1.Container{guaranteed}}, v1.PodQOSBurstable},
		{"zeroes", v1.PodSpec{Containers: []v1.Container{requires(list("cpu", "0"), list("memory", "0"))}}, v1.PodQOSBestEffort},
		{"other resources", v1.PodSpec{Containers: []v1.Container{requires(list("ephemeral-storage", "1Gi"), list("example.com/gpu", "1"))}}, v1.PodQOSBestEffort},
		{"the pod's own", v1.PodSpec{Containers: []v1.Container{burstable}, Resources: &v1.ResourceRequirements{Requests: full, Limits: full}}, v1.PodQOSGuaranteed},
		{"the pod's own is empty", v1.PodSpec{Containers: []v1.Container{burstable}, Resources: &v1.ResourceRequirements{}}, v1.PodQOSBurstable},
		{"no containers", v1.PodSpec{}, v1.PodQOSBestEffort},
	} {
		if got := pod.QOSClass(&v1.Pod{Spec: c.pod}); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	recorded := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{nothing}}, Status: v1.PodStatus{QOSClass: v1.PodQOSGuaranteed}}
	if got := pod.QOSClass(recorded); got != v1.PodQOSGuaranteed {
		t.Errorf("the recorded class does not hold: %s", got)
	}
}

func TestOOMScoreAdj(t *testing.T) {
	m := spec.Machine{MemoryBytes: 10 << 30, CanLowerOOMScore: true}
	always := v1.ContainerRestartPolicyAlways
	priority := int32(2000001000)
	burst := func(memory string) v1.Container { return requires(list("memory", memory), nil) }
	sidecar := burst("1Gi")
	sidecar.Name, sidecar.RestartPolicy = "side", &always
	full := list("cpu", "1", "memory", "1Gi")
	for _, c := range []struct {
		name string
		pod  v1.PodSpec
		c    v1.Container
		want int64
	}{
		{"best effort", v1.PodSpec{Containers: []v1.Container{requires(nil, nil)}}, requires(nil, nil), 1000},
		{"guaranteed", v1.PodSpec{Containers: []v1.Container{requires(full, full)}}, requires(full, full), -997},
		{"a tenth of the machine", v1.PodSpec{Containers: []v1.Container{burst("1Gi")}}, burst("1Gi"), 900},
		{"next to nothing", v1.PodSpec{Containers: []v1.Container{burst("1")}}, burst("1"), 999},
		{"more than the machine", v1.PodSpec{Containers: []v1.Container{burst("20Gi")}}, burst("20Gi"), 3},
		{"a sidecar goes with the least of those it serves", v1.PodSpec{InitContainers: []v1.Container{sidecar}, Containers: []v1.Container{burst("5Gi"), burst("2Gi")}}, sidecar, 800},
		{"the pod's own request is shared out", v1.PodSpec{Containers: []v1.Container{burst("1Gi"), burst("1Gi")}, Resources: &v1.ResourceRequirements{Requests: list("memory", "4Gi")}}, burst("1Gi"), 800},
		{"critical for the node", v1.PodSpec{PriorityClassName: "system-node-critical", Priority: &priority, Containers: []v1.Container{requires(nil, nil)}}, requires(nil, nil), -997},
		{"critical by name alone", v1.PodSpec{PriorityClassName: "system-node-critical", Containers: []v1.Container{requires(nil, nil)}}, requires(nil, nil), 1000},
	} {
		if got := spec.OOMScoreAdj(&v1.Pod{Spec: c.pod}, &c.c, m); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
	c := requires(full, full)
	p := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{c}}}
	m.CanLowerOOMScore = false
	if got := spec.OOMScoreAdj(p, &c, m); got != 0 {
		t.Errorf("a runtime that cannot lower the score got %d", got)
	}
	m.MemoryBytes = 0
	b := burst("1Gi")
	if got := spec.OOMScoreAdj(&v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{b}}}, &b, m); got != 999 {
		t.Errorf("with unknown memory: %d", got)
	}
}

// TestCPUProperties: the kernel's limits hold, and more CPU never gives less.
func TestCPUProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.Int64Range(0, math.MaxInt32).Draw(t, "a")
		b := rapid.Int64Range(a, math.MaxInt32).Draw(t, "b")
		if s := spec.CPUShares(a); s < 2 || s > 262144 || s > spec.CPUShares(b) {
			t.Fatalf("CPUShares(%d) = %d, CPUShares(%d) = %d", a, s, b, spec.CPUShares(b))
		}
		q := spec.CPUQuota(a, 100000)
		if (q == 0) != (a == 0) || q != 0 && q < 1000 || q > spec.CPUQuota(b, 100000) && b > 0 {
			t.Fatalf("CPUQuota(%d) = %d", a, q)
		}
	})
	for milli, want := range map[int64]int64{0: 2, 1: 2, 250: 256, 1000: 1024, 1e6: 262144} {
		if got := spec.CPUShares(milli); got != want {
			t.Errorf("CPUShares(%d) = %d, want %d", milli, got, want)
		}
	}
}

func TestPodCgroup(t *testing.T) {
	m := spec.Machine{CPUCFSQuota: true, PodPidsLimit: 100}
	full := list("cpu", "1", "memory", "1Gi")
	for _, c := range []struct {
		name   string
		spec   v1.PodSpec
		shares uint64
		quota  int64
		memory int64
	}{
		{"best effort", v1.PodSpec{Containers: []v1.Container{requires(nil, nil)}}, 2, 0, 0},
		{"guaranteed with overhead", v1.PodSpec{Containers: []v1.Container{requires(full, full)}, Overhead: list("cpu", "500m", "memory", "1Gi")}, 1536, 150000, 2 << 30},
		{"all limited", v1.PodSpec{Containers: []v1.Container{requires(list("cpu", "100m"), full), requires(list("cpu", "100m"), full)}}, 204, 200000, 2 << 30},
		{"one unlimited", v1.PodSpec{Containers: []v1.Container{requires(list("cpu", "100m"), full), requires(nil, list("cpu", "1"))}}, 102, 200000, 0},
		{"the pod's own limit", v1.PodSpec{Containers: []v1.Container{requires(nil, nil)}, Resources: &v1.ResourceRequirements{Requests: list("cpu", "1"), Limits: list("cpu", "2")}}, 1024, 200000, 0},
	} {
		got := spec.PodCgroup(&v1.Pod{Spec: c.spec}, m)
		if got.CPUShares != c.shares || got.CPUQuotaUS != c.quota || got.MemoryBytes != c.memory || got.PidsMax != 100 || (got.CPUPeriodUS != 0) != (c.quota != 0) {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
	// The sync loop passes these to the host unchanged.
	if r := host.CgroupResources(spec.CgroupLimits{MemoryBytes: 7}); r.MemoryBytes != 7 {
		t.Errorf("%+v", r)
	}
}

func TestHugepages(t *testing.T) {
	m := spec.Machine{HugePageSizes: []string{"2MB", "1GB", "64KB"}}
	c := requires(nil, v1.ResourceList{"hugepages-2Mi": resource.MustParse("6Mi"), "hugepages-64Ki": resource.MustParse("128Ki"), "hugepages-x": resource.MustParse("1")})
	p := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{c}}}
	got := map[string]uint64{}
	for _, l := range spec.ContainerResources(p, &c, m).HugepageLimits {
		got[l.PageSize] = l.Limit
	}
	if len(got) != 3 || got["2MB"] != 6<<20 || got["1GB"] != 0 || got["64KB"] != 128<<10 {
		t.Errorf("got %v", got)
	}
}

// Growth applies before the containers are resized, shrinking after. A new limit counts as
// shrinking, and a limit that is no longer wanted stays.
func TestResizeCgroup(t *testing.T) {
	have := spec.CgroupLimits{CPUShares: 100, CPUQuotaUS: 1000, CPUPeriodUS: 7, MemoryBytes: 50}
	for _, c := range []struct {
		name               string
		want, grow, shrink spec.CgroupLimits
	}{
		{"equal", have, spec.CgroupLimits{}, spec.CgroupLimits{}},
		{"up", spec.CgroupLimits{CPUShares: 200, CPUQuotaUS: 2000, CPUPeriodUS: 7, MemoryBytes: 60}, spec.CgroupLimits{CPUShares: 200, CPUQuotaUS: 2000, CPUPeriodUS: 7, MemoryBytes: 60}, spec.CgroupLimits{}},
		{"CPU up, memory down", spec.CgroupLimits{CPUShares: 100, CPUQuotaUS: 2000, CPUPeriodUS: 7, MemoryBytes: 40}, spec.CgroupLimits{CPUQuotaUS: 2000, CPUPeriodUS: 7}, spec.CgroupLimits{MemoryBytes: 40}},
		{"no limits any more", spec.CgroupLimits{CPUShares: 50}, spec.CgroupLimits{}, spec.CgroupLimits{CPUShares: 50}},
	} {
		if grow, shrink := spec.ResizeCgroup(have, c.want); !reflect.DeepEqual(grow, c.grow) || !reflect.DeepEqual(shrink, c.shrink) {
			t.Errorf("%s: %+v, then %+v", c.name, grow, shrink)
		}
	}
	if grow, shrink := spec.ResizeCgroup(spec.CgroupLimits{}, have); !reflect.DeepEqual(grow, spec.CgroupLimits{}) || !reflect.DeepEqual(shrink, have) {
		t.Errorf("limits that are new: %+v, then %+v", grow, shrink)
	}
}
