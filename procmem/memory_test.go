package procmem

import (
	"fmt"
	"strings"
	"testing"

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

// TestReleaseInit: less of the program is resident afterwards, and it still runs.
func TestReleaseInit(t *testing.T) {
	before := residentFile(t)
	releaseInit()
	after := residentFile(t)
	if after >= before {
		t.Errorf("%d KiB of files are resident, %d KiB before", after, before)
	}
	t.Logf("resident: %d KiB of files before, %d KiB after", before, after)
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
