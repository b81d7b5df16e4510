package procmem

import (
	"context"
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

func TestReadOnlyMapping(t *testing.T) {
	const file = "/opt/my programs/bowline"
	for line, want := range map[string]uintptr{
		"00400000-01fc2000 r-xp 00000000 fe:01 1234 /opt/my programs/bowline": 0x1bc2000,
		"01fc2000-04227000 r--p 01bc2000 fe:01 1234 /opt/my programs/bowline": 0x2265000,
		"04227000-04292000 rw-p 03e27000 fe:01 1234 /opt/my programs/bowline": 0,
		"00400000-01fc2000 r-xp 00000000 fe:01 1234 /opt/other":               0,
		"c000000000-c000800000 rw-p 00000000 00:00 0":                         0,
		"x-y r--p 01bc2000 fe:01 1234 /opt/my programs/bowline":               0,
		"": 0,
	} {
		if _, length, ok := readOnlyMapping(line, file); length != want || ok != (want > 0) {
			t.Errorf("%q: length %#x, ok %t; want %#x", line, length, ok, want)
		}
	}
}

// TestRun: the pages of the program leave memory at the start, and the process still runs.
func TestRun(t *testing.T) {
	populate(t)
	before := residentFile(t)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := Run(ctx); err != nil {
		t.Errorf("Run returned %v when its context ended", err)
	}
	if after := residentFile(t); after >= before {
		t.Errorf("%d KiB of files are resident after the start, %d KiB before", after, before)
	}
}

// TestRelease: the pages are released at each interval at which more are resident than the limit.
func TestRelease(t *testing.T) {
	for limit, want := range map[int64]int{1: 4, 1 << 50: 0} {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithTimeout(t.Context(), 3*checkEvery+time.Second)
			defer stop()
			released := 0
			releaseAt(ctx, limit, func() { released++ })
			if released != want {
				t.Errorf("released %d times above %d bytes, want %d", released, limit, want)
			}
		})
	}
}

func TestResidentFiles(t *testing.T) {
	page := int64(os.Getpagesize())
	for statm, want := range map[string]int64{
		"30946 14523 9210 6200 0 12000 0\n": 9210 * page,
		"30946 14523":                       0,
		"30946 14523 x 6200 0 12000 0\n":    0,
		"":                                  0,
	} {
		if got := residentFiles(statm); got != want {
			t.Errorf("%q: %d, want %d", statm, got, want)
		}
	}
}

// populate makes the whole program resident.
func populate(t *testing.T) {
	t.Helper()
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(testutil.ReadFile(t, "/proc/self/maps"))) {
		if from, length, ok := readOnlyMapping(line, self); ok {
			if _, _, errno := unix.Syscall(unix.SYS_MADVISE, from, length, unix.MADV_POPULATE_READ); errno != 0 {
				t.Skipf("this kernel cannot populate a mapping: %v", errno)
			}
		}
	}
}

// TestShrinkAndHeapProfile: only a process that serves a heap profile takes samples for one.
func TestShrinkAndHeapProfile(t *testing.T) {
	rate, percent := runtime.MemProfileRate, debug.SetGCPercent(100)
	t.Cleanup(func() {
		runtime.MemProfileRate = rate
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(math.MaxInt64)
	})
	runtime.MemProfileRate = 4096
	if Shrink(true); runtime.MemProfileRate != 4096 {
		t.Errorf("with --profiling, the rate is %d; want 4096", runtime.MemProfileRate)
	}
	if Shrink(false); runtime.MemProfileRate != 0 {
		t.Errorf("without --profiling, the rate is %d; want 0", runtime.MemProfileRate)
	}
}

// residentFile returns RssFile of /proc/self/status, in KiB.
func residentFile(t *testing.T) (n int) {
	t.Helper()
	data := testutil.ReadFile(t, "/proc/self/status")
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "RssFile:"); ok {
			if _, err := fmt.Sscanf(rest, "%d kB", &n); err != nil {
				t.Fatal(err)
			}
		}
	}
	return n
}
