package machine

import (
	"bytes"
	"path"
	"slices"
	"strconv"
	"strings"
)

// SELinux reads the file enforce of selinuxfs, which is empty on a host without SELinux, and the
// label of a process, which is "kernel" until a policy is loaded.
func SELinux(enforce, label string) (enabled, enforcing bool) {
	label = strings.TrimSpace(strings.TrimRight(label, "\x00\n"))
	enabled = enforce != "" && label != "kernel"
	return enabled, enabled && enforce == "1"
}

// maxSwaps is the most swap areas that are reported; a kernel has at most 32.
const maxSwaps = 64

// Swaps are the swap areas in /proc/swaps, after its header.
func Swaps(data []byte) []string {
	var areas []string
	header := true
	for line := range bytes.Lines(data) {
		for name := range bytes.FieldsSeq(line) {
			if !header && len(areas) < maxSwaps {
				areas = append(areas, string(name))
			}
			break
		}
		header = false
	}
	return areas
}

// SwapControlFiles are patterns. If one matches, the kernel accounts swap per cgroup. The root
// cgroup of version 2 has no such file, so the patterns match its children and grandchildren.
func SwapControlFiles(version int) []string {
	if version == 2 {
		return []string{"/sys/fs/cgroup/*/memory.swap.max", "/sys/fs/cgroup/*/*/memory.swap.max"}
	}
	return []string{"/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes"}
}

// ThermalThrottleDirs is the pattern of the directories that ThermalThrottle reads.
const ThermalThrottleDirs = "/sys/devices/system/cpu/cpu[0-9]*/thermal_throttle"

// ThermalThrottle returns the CPUs of these directories, ascending.
func ThermalThrottle(dirs []string) []int {
	var cpus []int
	for _, d := range dirs {
		name, ok := strings.CutPrefix(path.Base(path.Dir(d)), "cpu")
		if n, err := strconv.Atoi(name); ok && err == nil {
			cpus = append(cpus, n)
		}
	}
	slices.Sort(cpus)
	return cpus
}
