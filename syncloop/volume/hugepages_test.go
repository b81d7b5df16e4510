package volume

import (
	"errors"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func requesting(p *v1.Pod, sizes ...string) *v1.Pod {
	for i, size := range sizes {
		c := v1.Container{Name: "c-" + strings.ToLower(size), Resources: v1.ResourceRequirements{Requests: v1.ResourceList{
			v1.ResourceName(v1.ResourceHugePagesPrefix + size): resource.MustParse("4Mi")}}}
		if i == 0 {
			p.Spec.Containers = append(p.Spec.Containers, c)
		} else { // some cases use init containers, too
			p.Spec.InitContainers = append(p.Spec.InitContainers, c)
		}
	}
	return p
}

func TestHugePages(t *testing.T) {
	for _, c := range []struct {
		medium   v1.StorageMedium
		requests []string
		want     string // the option, or the error
	}{
		{"HugePages", []string{"2Mi"}, "pagesize=2Mi"},
		{"HugePages-1Gi", []string{"2Mi", "1Gi"}, "pagesize=1Gi"},
		{"HugePages", []string{"2Mi", "1Gi"}, "medium: HugePages can't be used if container requests multiple huge page sizes"},
		{"HugePages", nil, "medium HugePages: hugePages storage requested, but there is no resource request for huge pages"},
		{"HugePages-1Gi", []string{"2Mi"}, "medium HugePages-1Gi: hugePages storage requested, but there is no resource request for huge pages"},
		{"HugePages-x", []string{"2Mi"}, "medium HugePages-x: quantities must match"},
	} {
		h := newMemHost()
		m := newManager(t, h, newCluster())
		p := requesting(testPod(emptyDir(c.medium, "")), c.requests...)
		mounts, err := m.Prepare(t.Context(), p)
		if err != nil {
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s, %v: %v", c.medium, c.requests, err)
			}
			continue
		}
		dir := mounts[p.Spec.Volumes[0].Name].HostPath
		if got := h.mounts[dir]; got == nil || got.Type != "hugetlbfs" || !slices.Equal(got.Options, []string{c.want}) {
			t.Errorf("%s, %v: mounted is %+v", c.medium, c.requests, got)
		}
		// Prepare again, here and in a new process, mounts nothing. After a reboot of the host it
		// mounts again.
		for range 2 {
			prepare(t, m, p)
			m = newManager(t, h, newCluster())
		}
		if n := h.count("Mount"); n != 1 {
			t.Errorf("%s: mounted %d times", c.medium, n)
		}
		h.reboot()
		prepare(t, m, p)
		if h.mounts[dir] == nil {
			t.Errorf("%s: not mounted after a restart of the machine", c.medium)
		}
	}
}

func TestHugePagesThatTheMachineHasNot(t *testing.T) {
	h := newMemHost()
	m := newManager(t, h, newCluster())
	p := requesting(testPod(emptyDir("HugePages-1Gi", "")), "1Gi")
	h.fail["Mount"] = errors.New("invalid argument")
	_, err := m.Prepare(t.Context(), p)
	if err == nil || !strings.Contains(err.Error(), "the host's kernel has no huge pages of 1Gi: invalid argument") {
		t.Errorf("err = %v", err)
	}
	h.put("/sys/kernel/mm/hugepages/hugepages-1048576kB", node{})
	if _, err := m.Prepare(t.Context(), p); err == nil || strings.Contains(err.Error(), "has no huge pages") {
		t.Errorf("err = %v", err)
	}
}
