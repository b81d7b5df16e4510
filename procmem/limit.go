package procmem

import (
	"io/fs"
	"math"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
)

// keepWithin sets the Go memory limit to 90 % of the cgroup's, so that the garbage collector works
// harder before the kernel kills the process and with it the drivers of all hosts. The rest is for
// what the Go runtime does not count. A GOMEMLIMIT that is set is respected.
func keepWithin(system fs.FS) (limit int64) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return 0
	}
	if limit = cgroupMemory(system); limit > 0 {
		debug.SetMemoryLimit(limit / 10 * 9)
	}
	return limit
}

// cgroupMemory returns the lowest memory limit of this process's cgroup and its ancestors, in
// bytes; 0 if there is none. system is the root of the file system. A container may see its own
// cgroup as the root, or not see it under the path in /proc.
func cgroupMemory(system fs.FS) (limit int64) {
	data, err := fs.ReadFile(system, "proc/self/cgroup")
	if err != nil {
		return 0
	}
	for _, line := range strings.Split(string(data), "\n") {
		// hierarchy:controllers:path
		fields := strings.SplitN(line, ":", 3)
		if len(fields) != 3 {
			continue
		}
		mount, file := "sys/fs/cgroup", "memory.max"
		switch {
		case fields[0] == "0" && fields[1] == "": // version 2
		case strings.Contains(","+fields[1]+",", ",memory,"):
			mount, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		default:
			continue
		}
		for at := path.Clean("/" + fields[2]); ; at = path.Dir(at) {
			limit = lower(limit, readLimit(system, path.Join(mount, at, file)))
			if at == "/" {
				break
			}
		}
	}
	return limit
}

// lower returns the lower of two limits; 0 means no limit.
func lower(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// readLimit returns 0 if there is no limit, or it cannot be read. In version 1, no limit is the
// largest page-aligned number.
func readLimit(system fs.FS, name string) int64 {
	data, err := fs.ReadFile(system, name)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	if err != nil || n <= 0 || n > math.MaxInt64/2 {
		return 0
	}
	return n
}
