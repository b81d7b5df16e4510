package machine

import (
	"strconv"
	"strings"
)

// WorkingSet is what a machine uses of its memory beyond what it could give up at once.
// usage and stat are the root memory cgroup's memory.usage_in_bytes and memory.stat;
// version 2 has no usage there, so that it comes from /proc/meminfo, as it does on a
// machine without a memory cgroup.
func WorkingSet(meminfo []byte, version int, usage, stat string) int64 {
	used, _ := strconv.ParseInt(strings.TrimSpace(usage), 10, 64)
	key := "total_inactive_file"
	if version != 1 {
		used, key = 0, "inactive_file"
	}
	inactive, known := statOf(stat, key)
	if used == 0 {
		used = Meminfo(meminfo, "MemTotal") - Meminfo(meminfo, "MemFree")
	}
	if !known {
		inactive = Meminfo(meminfo, "Inactive(file)")
	}
	return max(used-inactive, 0)
}

func statOf(stat, key string) (int64, bool) {
	for line := range strings.Lines(stat) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), " "); ok && k == key {
			n, err := strconv.ParseInt(v, 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// Threads reads how many there are from /proc/loadavg: "0.1 0.2 0.3 2/345 6789".
func Threads(loadavg string) int64 {
	fields := strings.Fields(loadavg)
	if len(fields) < 4 {
		return 0
	}
	_, all, _ := strings.Cut(fields[3], "/")
	n, _ := strconv.ParseInt(all, 10, 64)
	return n
}
