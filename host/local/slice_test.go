package local

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/internal/machine"
	"github.com/bowline-k8s/bowline/host/internal/systemdtest"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// Below a root where systemd cannot have slices there are none: looking for one is no error,
// making one is.
func TestNoSlicesBelowSuchARoot(t *testing.T) {
	ctx := context.Background()
	tree := t.TempDir()
	h := &Host{name: "test", cgroupRoot: "/system.slice/worker@1.service", hier: machine.Hierarchies{Version: 2, V2: tree, All: []string{tree}}}
	if got, err := h.ListCgroups(ctx, "/kubepods.slice"); err != nil || len(got) != 0 {
		t.Errorf("listed %q, %v", got, err)
	}
	testutil.Must(t, h.RemoveCgroup(ctx, "/kubepods.slice", true))
	if err := h.EnsureCgroup(ctx, "/kubepods.slice", host.CgroupResources{}); err == nil || !strings.Contains(err.Error(), `no '@'`) {
		t.Errorf("made: %v", err)
	}
}

// TestSlices: the calls to systemd.
func TestSlices(t *testing.T) {
	s := systemdtest.New(t)
	t.Setenv("PATH", s.Bin+":"+os.Getenv("PATH"))
	h := &Host{name: "test", cgroupRoot: "/", hier: machine.Hierarchies{Version: 2, V2: s.Tree, All: []string{s.Tree}}}
	systemdtest.Slices(t, s, h)
}
