package procmem

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
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
		if m, ok := readOnlyMapping(line, file); m.length != want || ok != (want > 0) {
			t.Errorf("%q: length %#x, ok %t; want %#x", line, m.length, ok, want)
		}
	}
}

func TestUnchanged(t *testing.T) {
	const file = "/opt/my programs/bowline"
	part := func(from, perms, path, anonymous string) string {
		return from + "000-" + from + "800 " + perms + " 00000000 fe:01 1234 " + path + "\nSize:  8 kB\nRss:   4 kB\nAnonymous:  " + anonymous + " kB\nVmFlags: rd ex mr mw me\n"
	}
	smaps := part("1", "r-xp", file, "0") + part("2", "r--p", file, "0") + part("3", "r--p", file, "4") + part("4", "rw-p", file, "0") + part("5", "r-xp", "/opt/other", "0")
	if got, want := unchanged(strings.NewReader(smaps), file), []mapping{{0x1000, 0x800}, {0x2000, 0x800}}; !slices.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
}

// TestReleaseKeepsChangedPages: a mapping that was written before it became read-only keeps its pages,
// as that of the addresses in a program that cgo links.
func TestReleaseKeepsChangedPages(t *testing.T) {
	name := filepath.Join(t.TempDir(), "program")
	testutil.Must(t, os.WriteFile(name, bytes.Repeat([]byte("a"), os.Getpagesize()), 0o600))
	f, err := os.Open(name)
	testutil.Must(t, err)
	defer f.Close()
	page, err := unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	testutil.Must(t, err)
	defer func() { testutil.Must(t, unix.Munmap(page)) }()
	page[0] = 'b'
	testutil.Must(t, unix.Mprotect(page, unix.PROT_READ))
	releaseFile(name)
	if page[0] != 'b' {
		t.Error("the page has lost what was written to it")
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

// TestRelease: the pages of a wave are released within seconds. Those that come back because the process
// needs them are released ever more rarely, until they stay away for a while.
func TestRelease(t *testing.T) {
	for name, c := range map[string]struct {
		backIn         time.Duration // from a release until too much is resident again
		atLeast, below int           // releases in an hour
	}{
		"a wave each nine minutes": {9 * time.Minute, 6, 8},
		"needed all the time":      {0, 6, 16},
		"back within half minutes": {25 * time.Second, 6, 16},
		"never too much":           {24 * time.Hour, 0, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithTimeout(t.Context(), time.Hour)
				defer stop()
				released, back := 0, time.Now().Add(c.backIn)
				var late time.Duration
				releaseAt(ctx, func() int64 {
					if time.Now().Before(back) {
						return releaseAbove
					}
					return releaseAbove + 1
				}, func() {
					late = max(late, time.Since(back))
					released, back = released+1, time.Now().Add(c.backIn)
				})
				if released < c.atLeast || released >= c.below {
					t.Errorf("released %d times in an hour", released)
				}
				if c.backIn > soonAgain && late > checkEvery {
					t.Errorf("a release came %s late", late)
				}
			})
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
		if m, ok := readOnlyMapping(line, self); ok {
			if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.from, m.length, unix.MADV_POPULATE_READ); errno != 0 {
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
