package main

import (
	"io/fs"
	"math"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
)

// keepWithin has the garbage collector work harder before the process reaches the memory
// limit of its cgroup, where the kernel would end it and all of its hosts' drivers. A
// tenth is left for what the Go runtime does not count. GOMEMLIMIT, where set, is respected.
func keepWithin(system fs.FS) (limit int64) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return 0
	}
	if limit = cgroupMemory(system); limit > 0 {
		debug.SetMemoryLimit(limit / 10 * 9)
	}
	return limit
}

// cgroupMemory is the lowest memory limit of this process's cgroup and of those above it,
// in bytes; 0 without one. system is the root of the file system. A container may see its
// own cgroup as the root of all, or not by the path that /proc has.
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

// lower of two limits, where 0 is none.
func lower(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// readLimit is 0 for no limit, as for one that cannot be read. Version 1 calls it the
// largest number of pages that there is.
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
