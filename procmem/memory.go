// Package procmem keeps this process small: it returns pages of the program that are no longer needed,
// and sets the memory limit of the garbage collector below that of the cgroup.
package procmem

import (
	"bufio"
	"context"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
)

// gcPercent trades CPU, of which this process uses little, for memory, which the host's pods need.
const gcPercent = 50

// Shrink sets how the runtime collects garbage: often, and within the memory limit. A GOGC that is set is
// respected. Unless profiled is true, the runtime stops taking samples for the heap profile: their table
// grows to more than a MiB, and without --profiling the process serves no profile.
func Shrink(profiled bool) {
	if !profiled {
		runtime.MemProfileRate = 0
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	keepWithin(os.DirFS("/"))
}

const (
	// checkEvery is the interval at which Run reads how much of the program file is resident.
	checkEvery = 5 * time.Second
	// releaseAbove is the number of resident bytes of files above which Run releases the program's. A
	// node with 50 pods keeps less when nothing changes, with and without probes. A release and the page
	// faults after it take about 3 ms.
	releaseAbove = 30 << 20
	// soonAgain is the time in which the pages come back if the process needs them all the time.
	soonAgain = time.Minute
	// longestPause is the longest time between two releases of pages that come back.
	longestPause = 10 * time.Minute
)

// Run keeps the process small until ctx ends. At once, and later whenever too much is resident, it
// releases the pages of the program file: those that only startup has used, and those of a wave of new or
// deleted pods.
func Run(ctx context.Context) error {
	releaseProgram()
	releaseAt(ctx, resident, releaseProgram)
	return nil
}

// releaseAt calls release when more bytes of files are resident than releaseAbove. A process that manages
// many hosts may need so many pages all the time: each time they come back soon, the pause before the next
// release is twice as long.
func releaseAt(ctx context.Context, resident func() int64, release func()) {
	pause, last := checkEvery, time.Time{}
	wait.UntilWithContext(ctx, func(context.Context) {
		since := time.Since(last)
		switch {
		case resident() <= releaseAbove || since < pause:
			return
		case since < max(soonAgain, 2*pause):
			pause = min(2*pause, longestPause)
		default:
			pause = checkEvery
		}
		last = time.Now()
		release()
	}, checkEvery)
}

// resident returns the resident bytes of files of this process, 0 if they cannot be read.
func resident() int64 {
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	return residentFiles(string(data))
}

// residentFiles returns the resident bytes of files from the content of /proc/PID/statm: the third
// number, in pages. It returns 0 if the content has another form.
func residentFiles(statm string) int64 {
	fields := strings.Fields(statm)
	if len(fields) < 3 {
		return 0
	}
	pages, err := strconv.ParseInt(fields[2], 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}

// releaseProgram drops the resident pages of the program file. Every API group registers its types before
// main, and the kernel maps 64 KiB around each page that is touched. Pages that are used again come back
// from the page cache. An error only means that the memory stays resident.
func releaseProgram() {
	if self, err := os.Readlink("/proc/self/exe"); err == nil {
		releaseFile(self)
	}
}

// releaseFile drops the resident pages of a file that this process has mapped.
func releaseFile(file string) {
	smaps, err := os.Open("/proc/self/smaps")
	if err != nil {
		return
	}
	defer smaps.Close()
	for _, m := range unchanged(smaps, file) {
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, m.from, m.length, unix.MADV_DONTNEED)
	}
}

type mapping struct{ from, length uintptr }

// unchanged returns the mappings of file whose pages are all in the file, from the content of
// /proc/PID/smaps. They are not writable, and have never been: a program that cgo links has a mapping
// which the dynamic linker fills with addresses and then makes read-only.
func unchanged(smaps io.Reader, file string) (found []mapping) {
	var m mapping
	ours := false
	for lines := bufio.NewScanner(smaps); lines.Scan(); {
		key, value, _ := strings.Cut(lines.Text(), ":")
		switch {
		case strings.Contains(key, " "):
			m, ours = readOnlyMapping(lines.Text(), file)
		case ours && key == "Anonymous" && strings.TrimSpace(value) == "0 kB":
			found = append(found, m)
		}
	}
	return found
}

// readOnlyMapping parses the first line of a mapping: "from-to perms offset dev inode path". ok is false
// if the mapping is writable or not of file.
func readOnlyMapping(line, file string) (m mapping, ok bool) {
	fields := strings.Fields(line)
	if len(fields) < 6 || strings.Join(fields[5:], " ") != file || strings.Contains(fields[1], "w") {
		return m, false
	}
	low, high, _ := strings.Cut(fields[0], "-")
	from, err := strconv.ParseUint(low, 16, 64)
	if err != nil {
		return m, false
	}
	to, err := strconv.ParseUint(high, 16, 64)
	if err != nil || to <= from {
		return m, false
	}
	return mapping{uintptr(from), uintptr(to - from)}, true
}
