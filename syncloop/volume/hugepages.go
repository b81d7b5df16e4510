package volume

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/bowline-k8s/bowline/host"

	"github.com/bowline-k8s/bowline/pod"
)

func isHugePages(m v1.StorageMedium) bool {
	return m == v1.StorageMediumHugePages || strings.HasPrefix(string(m), string(v1.StorageMediumHugePagesPrefix))
}

// mountHugePages mounts a hugetlbfs on dir. As with the kubelet, it has no size limit of its own:
// the pod's cgroup limits how many pages its containers use.
func (m *Manager) mountHugePages(ctx context.Context, dir string, p *v1.Pod, medium v1.StorageMedium) error {
	size, err := hugePageSize(p, medium)
	if err != nil {
		return err
	}
	err = m.cfg.Host.Mount(ctx, host.Mount{Source: "nodev", Target: dir, Type: "hugetlbfs", Options: []string{"pagesize=" + size.String()}})
	if err == nil {
		return nil
	}
	pages := "/sys/kernel/mm/hugepages/hugepages-" + strconv.FormatInt(size.Value()/1024, 10) + "kB"
	if there, lookErr := m.exist(ctx, pages); lookErr == nil && !there {
		return fmt.Errorf("the host's kernel has no huge pages of %s: %w", size.String(), err)
	}
	return fmt.Errorf("mount hugetlbfs on %s: %w", dir, err)
}

// hugePageSize is the page size of the medium, which a container or the pod must request. For a
// medium without a size it is the only size that they request.
func hugePageSize(p *v1.Pod, medium v1.StorageMedium) (resource.Quantity, error) {
	var want, found resource.Quantity
	if text, sized := strings.CutPrefix(string(medium), string(v1.StorageMediumHugePagesPrefix)); sized {
		var err error
		if want, err = resource.ParseQuantity(text); err != nil {
			return want, fmt.Errorf("medium %s: %w", medium, err)
		}
	}
	var requests []v1.ResourceList
	if r := p.Spec.Resources; r != nil {
		requests = append(requests, r.Requests)
	}
	for c := range pod.Containers(&p.Spec) {
		requests = append(requests, c.Resources.Requests)
	}
	for _, list := range requests {
		for name := range list {
			text, is := strings.CutPrefix(string(name), v1.ResourceHugePagesPrefix)
			if !is {
				continue
			}
			size, err := resource.ParseQuantity(text)
			if err != nil {
				return want, fmt.Errorf("resource %s: %w", name, err)
			}
			switch {
			case !want.IsZero():
				if size.Cmp(want) == 0 {
					found = size
				}
			case !found.IsZero() && found.Cmp(size) != 0:
				return want, fmt.Errorf("medium: %s can't be used if container requests multiple huge page sizes", medium)
			default:
				found = size
			}
		}
	}
	if found.IsZero() {
		return found, fmt.Errorf("medium %s: hugePages storage requested, but there is no resource request for huge pages", medium)
	}
	return found, nil
}
