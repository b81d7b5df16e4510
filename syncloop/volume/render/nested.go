package render

import (
	"fmt"
	"path"
	"sort"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// Nested returns the directories that the volume needs as mount points of other volumes. The volume
// is mounted read-only, so the runtime could not create them. They are clean paths relative to the
// volume, parents before children.
func Nested(p *v1.Pod, volume string) ([]string, error) {
	found := map[string]bool{}
	visit := func(mounts []v1.VolumeMount) error {
		var all, mine []string
		for i := range mounts {
			at := path.Clean(mounts[i].MountPath)
			all = append(all, at)
			if mounts[i].Name == volume {
				mine = append(mine, at)
			}
		}
		for _, base := range mine {
			if strings.HasPrefix(base, "../") {
				return fmt.Errorf("invalid container mount point %v", base)
			}
			prefix := strings.TrimSuffix(base, "/") + "/"
			var below []string
			for _, at := range all {
				if rel, ok := strings.CutPrefix(at, prefix); ok && rel != "" {
					below = append(below, rel)
				}
			}
			// Sort by length, so that a path below another nested mount comes after it and is left
			// to that one.
			sort.Slice(below, func(i, j int) bool {
				if len(below[i]) != len(below[j]) {
					return len(below[i]) < len(below[j])
				}
				return below[i] < below[j]
			})
			var taken []string
			for _, rel := range below {
				if !coveredBy(rel, taken) {
					taken = append(taken, rel)
					found[rel] = true
				}
			}
		}
		return nil
	}
	for c := range pod.AllContainers(&p.Spec) {
		if err := visit(c.VolumeMounts); err != nil {
			return nil, err
		}
	}
	dirs := make([]string, 0, len(found))
	for d := range found {
		dirs = append(dirs, d)
	}
	sort.Strings(dirs)
	return dirs, nil
}

func coveredBy(rel string, dirs []string) bool {
	for _, d := range dirs {
		if rel == d || strings.HasPrefix(rel, d+"/") {
			return true
		}
	}
	return false
}
