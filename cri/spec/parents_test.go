package spec

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestParentCgroups(t *testing.T) {
	with := func(phase v1.PodPhase, requests, limits map[v1.ResourceName]string, change ...func(*v1.Pod)) *v1.Pod {
		list := func(m map[v1.ResourceName]string) v1.ResourceList {
			out := v1.ResourceList{}
			for name, q := range m {
				out[name] = resource.MustParse(q)
			}
			return out
		}
		p := &v1.Pod{Status: v1.PodStatus{Phase: phase}, Spec: v1.PodSpec{Containers: []v1.Container{
			{Name: "c", Resources: v1.ResourceRequirements{Requests: list(requests), Limits: list(limits)}}}}}
		for _, f := range change {
			f(p)
		}
		return p
	}
	cpu := func(q string) map[v1.ResourceName]string { return map[v1.ResourceName]string{v1.ResourceCPU: q} }
	both := map[v1.ResourceName]string{v1.ResourceCPU: "2", v1.ResourceMemory: "1Gi"}
	all := PodsShare{MilliCPU: 3500, MemoryBytes: 7 << 30, Pids: 9999, HugePageBytes: map[string]int64{"2MB": 4 << 20, "1GB": 0}}
	top := CgroupLimits{CPUShares: 3584, MemoryBytes: 7 << 30, PidsMax: 9999, HugePageBytes: map[string]int64{"2MB": 4 << 20, "1GB": 0}}
	for name, c := range map[string]struct {
		pods      []*v1.Pod
		burstable uint64
	}{
		"no pods":               {nil, 2},
		"one":                   {[]*v1.Pod{with(v1.PodRunning, cpu("100m"), nil)}, 102},
		"the sum, then shares":  {[]*v1.Pod{with(v1.PodRunning, cpu("1m"), nil), with(v1.PodPending, cpu("1m"), nil), with("", cpu("998m"), nil)}, 1024},
		"memory alone":          {[]*v1.Pod{with(v1.PodRunning, map[v1.ResourceName]string{v1.ResourceMemory: "1Gi"}, nil)}, 2},
		"guaranteed are beside": {[]*v1.Pod{with(v1.PodRunning, both, both), with(v1.PodRunning, cpu("500m"), nil)}, 512},
		"best effort":           {[]*v1.Pod{with(v1.PodRunning, nil, nil)}, 2},
		"ended":                 {[]*v1.Pod{with(v1.PodSucceeded, cpu("1"), nil), with(v1.PodFailed, cpu("1"), nil), with(v1.PodRunning, cpu("250m"), nil)}, 256},
		"beyond what there is":  {[]*v1.Pod{with(v1.PodRunning, cpu("1000"), nil)}, 262144},
		"the pod's own requests, and its overhead": {[]*v1.Pod{with(v1.PodRunning, cpu("100m"), nil, func(p *v1.Pod) {
			p.Spec.Resources = &v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("400m")}}
			p.Spec.Overhead = v1.ResourceList{v1.ResourceCPU: resource.MustParse("100m")}
		})}, 512},
	} {
		t.Run(name, func(t *testing.T) {
			want := []ParentCgroup{{"/kubepods", top}, {"/kubepods/burstable", CgroupLimits{CPUShares: c.burstable}},
				{"/kubepods/besteffort", CgroupLimits{CPUShares: 2}}}
			if d := cmp.Diff(want, ParentCgroups(c.pods, all, "cgroupfs")); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestCgroupNames: the kubelet's names, in the form of each cgroup driver.
func TestCgroupNames(t *testing.T) {
	p := &v1.Pod{}
	p.UID = "1234-abcd"
	for driver, want := range map[string][4]string{
		"cgroupfs": {"/kubepods", "/kubepods/burstable", "/kubepods/besteffort", "/kubepods/besteffort/pod1234-abcd"},
		"systemd": {"/kubepods.slice", "/kubepods.slice/kubepods-burstable.slice", "/kubepods.slice/kubepods-besteffort.slice",
			"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1234_abcd.slice"},
	} {
		got := [4]string{3: CgroupPath(p, Machine{CgroupDriver: driver, CgroupRoot: "/elsewhere"})}
		for i, c := range ParentCgroups(nil, PodsShare{}, driver) {
			got[i] = c.Path
		}
		if got != want {
			t.Errorf("%s: %q, want %q", driver, got, want)
		}
	}
}
