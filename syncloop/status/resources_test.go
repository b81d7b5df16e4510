package status

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/bowline-k8s/bowline/pod"
)

func amounts(cpu, memory string) v1.ResourceList {
	l := v1.ResourceList{}
	for name, q := range map[v1.ResourceName]string{v1.ResourceCPU: cpu, v1.ResourceMemory: memory} {
		if q != "" {
			l[name] = resource.MustParse(q)
		}
	}
	return l
}

func sized(name string, requests, limits v1.ResourceList) v1.Container {
	return v1.Container{Name: name, Resources: v1.ResourceRequirements{Requests: requests, Limits: limits}}
}

// The resources reported for a pod as a whole, before it runs and while it runs.
func TestPodResources(t *testing.T) {
	always := v1.ContainerRestartPolicyAlways
	sidecar := sized("s", amounts("5m", ""), amounts("10m", "10Mi"))
	sidecar.RestartPolicy = &always
	for _, test := range []struct {
		what            string
		spec            v1.PodSpec
		pending, living v1.ResourceList // limits
		requests        v1.ResourceList
	}{
		{"nothing", v1.PodSpec{Containers: []v1.Container{sized("a", nil, nil)}}, nil, nil, nil},
		{"one", v1.PodSpec{Containers: []v1.Container{sized("a", amounts("10m", "1Mi"), amounts("20m", "2Mi"))}},
			amounts("20m", "2Mi"), amounts("20m", "2Mi"), amounts("10m", "1Mi")},
		{"one of two without a limit", v1.PodSpec{Containers: []v1.Container{sized("a", nil, amounts("20m", "2Mi")), sized("b", amounts("1m", ""), amounts("", "3Mi"))}},
			amounts("20m", "5Mi"), amounts("", "5Mi"), amounts("1m", "")},
		{"an init container that is larger", v1.PodSpec{
			InitContainers: []v1.Container{sidecar, sized("i", amounts("90m", ""), amounts("100m", "1Mi"))},
			Containers:     []v1.Container{sized("a", amounts("10m", "1Mi"), amounts("20m", "2Mi"))}},
			amounts("110m", "12Mi"), amounts("110m", "12Mi"), amounts("95m", "1Mi")},
		{"the pod's own", v1.PodSpec{Resources: &v1.ResourceRequirements{Requests: amounts("7m", ""), Limits: amounts("", "9Mi")},
			Containers: []v1.Container{sized("a", amounts("1m", ""), nil)}}, amounts("", "9Mi"), amounts("", "9Mi"), amounts("7m", "")},
		{"overhead", v1.PodSpec{Overhead: amounts("1m", "1Mi"), Containers: []v1.Container{sized("a", nil, amounts("20m", ""))}},
			amounts("21m", ""), amounts("21m", ""), amounts("1m", "1Mi")},
	} {
		for phase, limits := range map[v1.PodPhase]v1.ResourceList{v1.PodPending: test.pending, v1.PodRunning: test.living} {
			s := Generate(Input{Pod: &v1.Pod{Spec: test.spec}, Observed: pod.Observed{Seq: 1}, Old: v1.PodStatus{Phase: phase}})
			got := s.Resources
			if got == nil {
				got = &v1.ResourceRequirements{}
			}
			if !equal(got.Limits, limits) || !equal(got.Requests, test.requests) || !equal(s.AllocatedResources, test.requests) {
				t.Errorf("%s, %s: %v of %v, not limits %v and requests %v", test.what, phase, got, s.AllocatedResources, limits, test.requests)
			}
		}
	}
}

// Until a resize is applied, a running pod shows what its cgroup was sized for, except for the
// memory request, which a cgroup does not have.
func TestPodResourcesBeforeAResize(t *testing.T) {
	p := &v1.Pod{Spec: v1.PodSpec{Resources: &v1.ResourceRequirements{Requests: amounts("20m", "10Ki"), Limits: amounts("20m", "10Ki")},
		Containers: []v1.Container{{Name: "a"}}}}
	before := pod.Allocation{Pod: &v1.ResourceRequirements{Requests: amounts("10m", "35Mi"), Limits: amounts("10m", "35Mi")}}
	for _, test := range []struct {
		phase            v1.PodPhase
		actuated         *pod.Allocation
		limits, requests v1.ResourceList
	}{
		{v1.PodRunning, nil, amounts("20m", "10Ki"), amounts("20m", "10Ki")},
		{v1.PodRunning, &before, amounts("10m", "35Mi"), amounts("10m", "10Ki")},
		{v1.PodPending, &before, amounts("20m", "10Ki"), amounts("20m", "10Ki")},
	} {
		s := Generate(Input{Pod: p, Observed: pod.Observed{Seq: 1}, Old: v1.PodStatus{Phase: test.phase}, Actuated: test.actuated})
		if !equal(s.Resources.Limits, test.limits) || !equal(s.Resources.Requests, test.requests) {
			t.Errorf("%s, %v: %v", test.phase, test.actuated, s.Resources)
		}
		if !equal(s.AllocatedResources, amounts("20m", "10Ki")) {
			t.Errorf("%s: allocated %v", test.phase, s.AllocatedResources)
		}
	}
}

func equal(a, b v1.ResourceList) bool {
	if len(a) != len(b) {
		return false
	}
	for name, q := range a {
		if other, ok := b[name]; !ok || q.Cmp(other) != 0 {
			return false
		}
	}
	return true
}
