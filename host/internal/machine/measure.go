package machine

import (
	"strconv"
	"strings"
)

// WorkingSet is the used memory of a host without the file pages that it could free at once.
// usage and stat are memory.usage_in_bytes and memory.stat of the root memory cgroup. The root
// cgroup of version 2 has no usage, so there it comes from /proc/meminfo, as on a host without a
// memory cgroup.
func WorkingSet(meminfo []byte, version int, usage, stat string) int64 {
	used := Count(usage)
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

// unlimited is the bound above which a memory limit means none: version 1 reports the largest
// multiple of the page size.
const unlimited = 1 << 62

// CgroupMemory returns the memory limit of a cgroup and its working set, from version 1's
// memory.limit_in_bytes, memory.usage_in_bytes and memory.stat, or version 2's memory.max,
// memory.current and memory.stat. Both are 0 without a limit.
func CgroupMemory(version int, limit, usage, stat string) (may, has int64) {
	may, err := strconv.ParseInt(strings.TrimSpace(limit), 10, 64)
	used, usedErr := strconv.ParseInt(strings.TrimSpace(usage), 10, 64)
	if err != nil || usedErr != nil || may <= 0 || used < 0 || may > unlimited {
		return 0, 0
	}
	key := "total_inactive_file"
	if version != 1 {
		key = "inactive_file"
	}
	inactive, _ := statOf(stat, key)
	return may, max(used-inactive, 0)
}

// CgroupMemoryFiles are the names of the files with the limit and the usage.
func CgroupMemoryFiles(version int) (limit, usage string) {
	if version == 1 {
		return "memory.limit_in_bytes", "memory.usage_in_bytes"
	}
	return "memory.max", "memory.current"
}

// OOMKills reads the count from /proc/vmstat, or from that one line of it; -1 if there is none.
func OOMKills(vmstat string) int64 {
	n, ok := statOf(vmstat, "oom_kill")
	if !ok {
		return -1
	}
	return n
}

func statOf(stat, key string) (int64, bool) {
	for line := range strings.Lines(stat) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), " "); ok && k == key {
			n, err := strconv.ParseInt(v, 10, 64)
			return max(n, 0), err == nil
		}
	}
	return 0, false
}

// Threads reads the number of threads from /proc/loadavg: "0.1 0.2 0.3 2/345 6789".
func Threads(loadavg string) int64 {
	fields := strings.Fields(loadavg)
	if len(fields) < 4 {
		return 0
	}
	_, all, _ := strings.Cut(fields[3], "/")
	return Count(all)
}
