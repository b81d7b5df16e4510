package pod

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func sized(name, cpu string) v1.Container {
	return v1.Container{Name: name, Resources: v1.ResourceRequirements{
		Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}, Limits: v1.ResourceList{v1.ResourceCPU: resource.MustParse("2")}}}
}

func TestAllocation(t *testing.T) {
	p := &v1.Pod{}
	p.Spec.InitContainers, p.Spec.Containers = []v1.Container{sized("init", "100m")}, []v1.Container{sized("main", "1")}
	a, ok := ParseAllocation(AllocationOf(p).String())
	if !ok {
		t.Fatal("what was written down is not read")
	}
	if a.Apply(p) != p {
		t.Error("a pod with what it wants is copied")
	}
	// The same amounts in another notation are no resize.
	same := p.DeepCopy()
	same.Spec.Containers[0] = sized("main", "1000m")
	if a.Apply(same) != same {
		t.Error("1000m is taken for something else than 1")
	}
	other := p.DeepCopy()
	other.Spec.InitContainers[0], other.Spec.Containers[0] = sized("init", "200m"), sized("main", "3")
	other.Spec.Resources = &v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("4")}}
	got := a.Apply(other)
	if got == other || got.Spec.Resources != nil || got.Spec.InitContainers[0].Resources.Requests.Cpu().MilliValue() != 100 ||
		got.Spec.Containers[0].Resources.Requests.Cpu().MilliValue() != 1000 {
		t.Errorf("with what was given: %+v", got.Spec)
	}
	if other.Spec.Containers[0].Resources.Requests.Cpu().MilliValue() != 3000 || other.Spec.Resources == nil {
		t.Error("the pod itself was changed")
	}
	for _, s := range []string{"", "nonsense"} {
		if _, ok := ParseAllocation(s); ok {
			t.Errorf("%q is an allocation", s)
		}
	}
}

func TestSize(t *testing.T) {
	c := sized("main", "250m")
	s := &v1.PodSpec{Resources: &v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceCPU: resource.MustParse("4"), v1.ResourceMemory: resource.MustParse("1Mi")}}}
	if got, want := SizeOf(s, &c), (Size{CPURequest: 250, CPULimit: 2000, MemoryLimit: 1 << 20}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if ParseSize("") != nil || ParseSize("nonsense") != nil || *ParseSize(`{"cpuRequest":5}`) != (Size{CPURequest: 5}) {
		t.Error("sizes are read wrongly")
	}
}
