package local

import (
	"testing"

	"github.com/bowline-k8s/bowline/host/hosttest"
)

func TestThrottleAndSwapControl(t *testing.T) {
	hosttest.ThrottleAndSwapControl(t, func(thermal string, swap []string) ([]int, bool) { return throttles(thermal), exists(swap) })
}
