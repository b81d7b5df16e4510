package ssh

import (
	"testing"

	"github.com/bowline-k8s/bowline/host/hosttest"
	"github.com/bowline-k8s/bowline/host/ssh/internal/shtest"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

func TestThrottleAndSwapControl(t *testing.T) {
	h, err := New(t.Context(), Config{Name: "remote.example", Transport: &shtest.Transport{}})
	testutil.Must(t, err)
	defer h.Close()
	hosttest.ThrottleAndSwapControl(t, func(thermal string, swap []string) ([]int, bool) {
		f, err := h.factsBy(t.Context(), thermal, swap)
		testutil.Must(t, err)
		return f.ThermalThrottle, f.SwapControl
	})
}
