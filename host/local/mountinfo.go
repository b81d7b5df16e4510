package local

import (
	"os"
	"path/filepath"

	"github.com/bowline-k8s/bowline/host/internal/machine"
)

func readMountInfo() ([]machine.MountEntry, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return machine.ParseMountInfo(data)
}

// resolve follows the links in all of path that exists, as the kernel did when
// something was mounted there: mountinfo knows no links.
func resolve(path string) string {
	path = filepath.Clean(path)
	if r, err := filepath.EvalSymlinks(path); err == nil {
		return r
	}
	dir, base := filepath.Split(path)
	if dir == path || base == "" {
		return path
	}
	return filepath.Join(resolve(dir), base)
}
