package admit

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/cri/spec"
)

// with returns a pod of n containers.
func with(n int) *v1.Pod {
	p := &v1.Pod{}
	for i := range n {
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: fmt.Sprint("c", i)})
	}
	return p
}

// mounting returns a pod with one container that has these mounts.
func mounting(n int, m v1.VolumeMount) *v1.Pod {
	p := with(1)
	for range n {
		p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, m)
	}
	return p
}

func pods(n int, of *v1.Pod) (all []*v1.Pod) {
	for i := range n {
		p := of.DeepCopy()
		p.UID = types.UID(fmt.Sprint("other-", i))
		all = append(all, p)
	}
	return all
}

func TestSize(t *testing.T) {
	volumes := with(1)
	volumes.Spec.Volumes = make([]v1.Volume, spec.MaxHostMounts+1)
	inits := with(spec.MaxContainers)
	inits.Spec.InitContainers = []v1.Container{{Name: "i"}}
	for name, tc := range map[string]struct {
		pod     *v1.Pod
		others  []*v1.Pod
		message string
	}{
		"plain":                          {pod: with(1)},
		"all containers":                 {pod: with(spec.MaxContainers)},
		"too many":                       {pod: with(spec.MaxContainers + 1), message: "the pod has 129 containers; this node allows 128"},
		"too many with an init one":      {pod: inits, message: "129 containers"},
		"all mounts":                     {pod: mounting(spec.MaxMounts, v1.VolumeMount{})},
		"too many mounts":                {pod: mounting(spec.MaxMounts+1, v1.VolumeMount{}), message: "the container c0 has 513 volume mounts; this node allows 512"},
		"long paths":                     {pod: mounting(2, v1.VolumeMount{MountPath: strings.Repeat("/", 20<<10), SubPath: strings.Repeat("s", 20<<10)}), message: "81920 bytes; this node allows 65536"},
		"too many volumes":               {pod: volumes, message: "the pod has 1025 volumes and mounts with a subPath; this node allows 1024"},
		"the pool is taken":              {pod: with(6), others: pods(5, with(49)), message: "of those beyond 5 in a pod, this node has room for 220, and 220 are taken"},
		"the pool has room for one":      {pod: with(6), others: append(pods(4, with(49)), pods(1, with(48))...)},
		"a share needs no pool":          {pod: with(5), others: pods(9, with(128))},
		"the pool of mounts is taken":    {pod: mounting(49, v1.VolumeMount{SubPathExpr: "s"}), others: pods(10, mounting(224, v1.VolumeMount{SubPath: "s"})), message: "room for 1760, and 1760 are taken"},
		"mounts without a subPath":       {pod: mounting(49, v1.VolumeMount{}), others: pods(10, mounting(224, v1.VolumeMount{SubPath: "s"}))},
		"other pods within their shares": {pod: with(128), others: pods(109, with(5))},
	} {
		r := Size(tc.pod, tc.others, 110)
		switch {
		case tc.message == "" && r != nil, tc.message != "" && (r == nil || r.Reason != "PodTooLarge" || !strings.Contains(r.Message, tc.message)):
			t.Errorf("%s: %+v", name, r)
		}
	}
	if r := Size(with(6), pods(5, with(49)), 1000); r != nil {
		t.Errorf("a larger node: %+v", r)
	}
}

// TestAddition: an ephemeral container is refused by itself, and changes nothing for the pod and for
// those before it.
func TestAddition(t *testing.T) {
	p := with(spec.MaxContainers - 1)
	add := func(name string, mounts int) {
		p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, v1.EphemeralContainer{EphemeralContainerCommon: v1.EphemeralContainerCommon{
			Name: name, VolumeMounts: make([]v1.VolumeMount, mounts)}})
	}
	add("one", 1)
	add("two", 1)
	add("mounts", spec.MaxMounts+1)
	for name, refused := range map[string]bool{"one": false, "two": true, "mounts": true, "none": false} {
		if r := Addition(p, name, nil, 110); (r != nil) != refused {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if r := Size(p, nil, 110); r != nil {
		t.Errorf("the pod: %+v", r)
	}
	p = with(5)
	add("one", 1)
	if r := Addition(p, "one", pods(5, with(49)), 110); r == nil {
		t.Error("the pool is taken")
	}
	p.UID = "p"
	if r := Addition(p, "one", append(pods(4, with(49)), p), 110); r != nil {
		t.Errorf("the pod counts beside itself: %+v", r)
	}
}
