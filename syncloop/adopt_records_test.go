package syncloop

import (
	"testing"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/hosttest/recordtest"
)

// TestEveryVersionsResizes: a resized pod keeps the allocation that any earlier Bowline version
// recorded.
func TestEveryVersionsResizes(t *testing.T) {
	recordtest.Each(t, func(t *testing.T, version string, h host.Host, root string) {
		r, err := (&recordKeeper{files: h, path: ResizeRecord(root)}).read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		p := r.Pods["3f2a"]
		limits := p.Allocation.Containers["app"].Limits
		if limit := limits.Cpu(); p.Sandbox != "box-1" || limit.String() != "200m" || p.Sized["con-1"].CPULimit != 200 {
			t.Errorf("%+v", p)
		}
	})
}
