package ssh

import (
	"context"
	"testing"

	"github.com/bowline-k8s/bowline/host/internal/machine"
	"github.com/bowline-k8s/bowline/host/internal/systemdtest"
	"github.com/bowline-k8s/bowline/host/ssh/internal/shtest"
	"github.com/bowline-k8s/bowline/host/ssh/shell"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestSlices: the calls that the scripts make to systemd.
func TestSlices(t *testing.T) {
	ctx := context.Background()
	s := systemdtest.New(t)
	h, err := New(ctx, Config{Name: "far.example", Transport: &shtest.Transport{}, Path: s.Bin + ":" + shell.DefaultPath})
	testutil.Must(t, err)
	defer h.Close()
	has := *h.machine()
	has.hier = machine.Hierarchies{Version: 2, V2: s.Tree, All: []string{s.Tree}}
	h.found.Store(&has)
	systemdtest.Slices(t, s, h)
}
