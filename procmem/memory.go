// Package procmem keeps this process small: it returns pages that only startup needs, and sets the
// memory limit of the garbage collector below that of the cgroup.
package procmem

import (
	"bufio"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// gcPercent trades CPU, of which this process uses little, for memory, which the host's pods need.
const gcPercent = 50

// Shrink keeps the process small, and below its memory limit. A GOGC that is set is respected.
func Shrink() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	keepWithin(os.DirFS("/"))
	releaseInit()
}

// releaseInit drops resident pages of the program file that only startup has used: every API group
// registers its types before main, and the kernel maps 64 KiB around each touched page. Pages that
// are used again come back from the page cache. It drops only mappings that are not writable, so
// nothing can be lost. An error only means that the memory stays resident.
func releaseInit() {
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return
	}
	defer maps.Close()
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		if from, length, ok := readOnlyMapping(lines.Text(), self); ok {
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, from, length, unix.MADV_DONTNEED)
		}
	}
}

// ReleaseStart does the same once more, when the first node of the process has seen its pods: what
// reads the configuration and makes certificates, clients and informers has run by then, and is
// 3 MiB of program.
var ReleaseStart = sync.OnceFunc(releaseInit)

// readOnlyMapping parses a line of /proc/PID/maps: "from-to perms offset dev inode path". ok is
// false if the mapping is writable or not of file.
func readOnlyMapping(line, file string) (from, length uintptr, ok bool) {
	fields := strings.Fields(line)
	if len(fields) < 6 || strings.Join(fields[5:], " ") != file || strings.Contains(fields[1], "w") {
		return 0, 0, false
	}
	low, high, _ := strings.Cut(fields[0], "-")
	a, err := strconv.ParseUint(low, 16, 64)
	if err != nil {
		return 0, 0, false
	}
	b, err := strconv.ParseUint(high, 16, 64)
	if err != nil || b <= a {
		return 0, 0, false
	}
	return uintptr(a), uintptr(b - a), true
}
