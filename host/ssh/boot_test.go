package ssh

import (
	"reflect"
	"testing"

	"github.com/bowline-k8s/bowline/host/internal/machine"
	"github.com/bowline-k8s/bowline/host/ssh/internal/shtest"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// After a reboot the host is probed again: it may have another cgroup version and other tools.
func TestFactsAfterABoot(t *testing.T) {
	h, err := New(t.Context(), Config{Name: "far.example", Transport: &shtest.Transport{}})
	testutil.Must(t, err)
	defer h.Close()
	want, err := h.Facts(t.Context())
	testutil.Must(t, err)
	now := *h.machine()
	if now.boot != want.BootID || want.BootID == "" {
		t.Fatalf("what was found is of boot %q, and the machine is of %q", now.boot, want.BootID)
	}
	for what, boot := range map[string]string{"the same boot": now.boot, "an earlier boot": "11111111-2222-3333-4444-555555555555"} {
		former := found{boot: boot, hier: machine.Hierarchies{Version: 7}}
		h.found.Store(&former)
		got, err := h.Facts(t.Context())
		testutil.Must(t, err)
		if boot == now.boot {
			if !reflect.DeepEqual(*h.machine(), former) {
				t.Errorf("%s: it was looked at again: %+v", what, *h.machine())
			}
			continue
		}
		if !reflect.DeepEqual(*h.machine(), now) {
			t.Errorf("%s: %+v, want %+v", what, *h.machine(), now)
		}
		if got.CgroupVersion != want.CgroupVersion || got.SwapControl != want.SwapControl {
			t.Errorf("%s: control groups of version %d, want %d", what, got.CgroupVersion, want.CgroupVersion)
		}
	}
}
