package ssh

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/bowline-k8s/bowline/host/ssh/internal/shtest"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// The machine of the tests may lack the directories, so here they are below another root.
func TestThrottleAndSwapControl(t *testing.T) {
	h, err := New(t.Context(), Config{Name: "remote.example", Transport: &shtest.Transport{}})
	testutil.Must(t, err)
	defer h.Close()
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
		thermal, swap := dir+"/cpu[0-9]*/thermal_throttle", []string{dir + "/*/memory.swap.max", dir + "/*/*/memory.swap.max"}
		f, err := h.factsBy(t.Context(), thermal, swap)
		testutil.Must(t, err)
		if !slices.Equal(f.ThermalThrottle, c.cpus) || f.SwapControl != c.swap {
			t.Errorf("%s: CPUs %v, swap control %v", name, f.ThermalThrottle, f.SwapControl)
		}
	}
}
