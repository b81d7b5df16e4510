package local

import (
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/moby/sys/mountinfo"

	"github.com/bowline-k8s/bowline/host/internal/machine"
)

// mountReaders read mountinfo, whose size stat does not show: with a buffer that grows from 512
// bytes, each read of a node's hundreds of mounts would be dozens of calls.
var mountReaders = sync.Pool{New: func() any { return &mountReader{piece: make([]byte, 64<<10)} }}

type mountReader struct {
	piece []byte
	lines machine.MountLines
}

// readMountInfo holds little more than the mounts in memory, however long a pod makes the lines.
func readMountInfo() ([]*mountinfo.Info, error) { return readMountsOf("") }

// readMountsOf reads at least the mounts that have this name in their path or type.
func readMountsOf(name string) ([]*mountinfo.Info, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := mountReaders.Get().(*mountReader)
	defer mountReaders.Put(r)
	r.lines.Reset()
	// A bare file would copy by itself, with another buffer.
	if _, err := io.CopyBuffer(&r.lines, struct{ io.Reader }{f}, r.piece); err != nil {
		return nil, err
	}
	return r.lines.Parse(name)
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
