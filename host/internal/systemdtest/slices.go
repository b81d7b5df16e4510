package systemdtest

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// Slices checks the calls that h makes to s, whose tree is the host's only hierarchy.
func Slices(t *testing.T, s *Systemd, h host.Cgroups) {
	ctx := context.Background()
	const above = " 6 Wants as 1 "
	const born = " MemoryAccounting b true CPUAccounting b true IOAccounting b true TasksAccounting b true DefaultDependencies b false "
	const full = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice"
	const start = "StartTransientUnit ssa(sv)a(sa(sv)) "
	check := func(what string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, s.Calls()); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
	limits := host.CgroupResources{CPUShares: 1024, CPUQuotaUS: 12_300, CPUPeriodUS: 100_000, MemoryBytes: 1 << 20, PidsMax: 7}
	properties := "CPUWeight t 39 CPUQuotaPerSecUSec t 130000 MemoryMax t 1048576 TasksMax t 7"
	testutil.Must(t, h.EnsureCgroup(ctx, full, limits))
	first := start + "kubepods-burstable-pod1.slice replace 10 Wants as 1 kubepods-burstable.slice" + born + properties + " 0"
	check("a new one, and what is above", start+"kubepods.slice replace"+above+"-.slice"+born+"0",
		start+"kubepods-burstable.slice replace"+above+"kubepods.slice"+born+"0", first)
	testutil.Must(t, h.EnsureCgroup(ctx, full, limits))
	check("one that is there", first, "SetUnitProperties sba(sv) kubepods-burstable-pod1.slice true 4 "+properties)
	for file, want := range map[string]string{"cpu.weight": "39", "cpu.max": "13000 100000", "memory.max": "1048576", "pids.max": "7"} {
		// A plain file keeps the tail of longer content; cgroupfs does not.
		if got := s.File(full, file); !strings.HasPrefix(got, want) {
			t.Errorf("%s holds %q, not %q", file, got, want)
		}
	}
	if got, err := h.ListCgroups(ctx, "/kubepods.slice/kubepods-burstable.slice"); err != nil || len(got) != 1 || got[0] != "kubepods-burstable-pod1.slice" {
		t.Errorf("listed %q, %v", got, err)
	}
	// Stopping a slice ends its processes, so systemd is not asked while there are any.
	s.Put(full, "cgroup.procs", "4194304\n") // above the highest possible PID
	if err := h.RemoveCgroup(ctx, full, false); err == nil || !strings.Contains(err.Error(), "4194304") {
		t.Errorf("one with a process: %v", err)
	}
	check("one with a process")
	s.Put(full, "cgroup.procs", "")
	testutil.Must(t, h.RemoveCgroup(ctx, full, false))
	testutil.Must(t, h.RemoveCgroup(ctx, full, false))
	check("the removal", "StopUnit ss kubepods-burstable-pod1.slice replace")
	s.Break()
	if err := h.EnsureCgroup(ctx, full, limits); err == nil || !strings.Contains(err.Error(), "Connection refused") {
		t.Errorf("without systemd: %v", err)
	}
	if err := h.RemoveCgroup(ctx, "/kubepods.slice/kubepods-burstable.slice", false); err == nil || !strings.Contains(err.Error(), "Connection refused") {
		t.Errorf("without systemd: %v", err)
	}
}
