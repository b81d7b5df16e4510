package hosttest

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// ThrottleAndSwapControl tests how a host finds thermal throttling and swap control. The machine of the
// tests may lack the files, so read finds them by patterns below another root.
func ThrottleAndSwapControl(t *testing.T, read func(thermal string, swap []string) (cpus []int, swapControl bool)) {
	for name, c := range map[string]struct {
		paths []string
		cpus  []int
		swap  bool
	}{
		"neither":  {nil, nil, false},
		"throttle": {[]string{"cpu10/thermal_throttle", "cpu2/thermal_throttle", "cpu3/cache"}, []int{2, 10}, false},
		"a child":  {[]string{"pods/memory.swap.max"}, nil, true},
		"below it": {[]string{"pods/burstable/memory.swap.max"}, nil, true},
		"the root": {[]string{"memory.swap.max"}, nil, false},
	} {
		dir := t.TempDir()
		for _, p := range c.paths {
			testutil.Must(t, os.MkdirAll(filepath.Join(dir, p), 0o755))
		}
		cpus, swap := read(dir+"/cpu[0-9]*/thermal_throttle", []string{dir + "/*/memory.swap.max", dir + "/*/*/memory.swap.max"})
		if !slices.Equal(cpus, c.cpus) || swap != c.swap {
			t.Errorf("%s: CPUs %v, swap control %v", name, cpus, swap)
		}
	}
}
