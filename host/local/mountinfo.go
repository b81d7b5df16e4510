package local

import (
	"bytes"
	"os"
	"path/filepath"
	"sync"

	"github.com/moby/sys/mountinfo"

	"github.com/bowline-k8s/bowline/host/internal/machine"
)

// mountInfos are buffers for mountinfo, whose size stat does not show: with a buffer that grows
// from 512 bytes, each read of a node's hundreds of mounts would be dozens of calls.
var mountInfos = sync.Pool{New: func() any { return bytes.NewBuffer(make([]byte, 0, 64<<10)) }}

func readMountInfo() ([]*mountinfo.Info, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	buffer := mountInfos.Get().(*bytes.Buffer)
	defer mountInfos.Put(buffer)
	buffer.Reset()
	if _, err := buffer.ReadFrom(f); err != nil {
		return nil, err
	}
	return machine.ParseMountInfo(buffer.Bytes())
}

// resolve follows the links in the part of path that exists, as the kernel did at the mount:
// mountinfo has no links.
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
