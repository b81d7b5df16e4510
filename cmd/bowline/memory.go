package main

import (
	"bufio"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// gcPercent trades CPU, of which an agent uses next to none, for memory, which
// its machine's pods want.
const gcPercent = 50

// saveMemory keeps the process small, and below its limit. GOGC, where set, is respected.
func saveMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	keepWithin(os.DirFS("/"))
	releaseInit()
}

// releaseInit unmaps the pages of the program file that only its start has used:
// every API group's types are registered before main, and the kernel maps 64 KiB
// around each page that is touched. What is used again is mapped again from the
// page cache. Only mappings that cannot be written to are given back, so nothing
// can be lost; an error means that the memory stays, which is no fault.
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

// readOnlyMapping reads a line of /proc/PID/maps: "from-to perms offset dev inode
// path". ok is false for what is not of the file, or can be written to.
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
