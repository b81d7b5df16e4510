package hosttest

import (
	"context"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// testSlices tests cgroups that systemd creates and removes, on hosts that run systemd.
func testSlices(t *testing.T, m *machine) {
	ctx := context.Background()
	stem := "bowlinehosttest" + path.Base(m.dir(t))
	top := "/" + stem + ".slice"
	mid := top + "/" + stem + "-burstable.slice"
	pod := func(uid string) string { return mid + "/" + stem + "-burstable-pod" + uid + ".slice" }
	for _, bad := range []string{"/x.slice/y.slice", "/x.slice/x-.slice", "/x-y.slice", "/x/x-y.slice", "/a b.slice"} {
		if err := m.h.EnsureCgroup(ctx, bad, host.CgroupResources{}); err == nil {
			t.Errorf("slice %q was made", bad)
		}
		if err := m.h.RemoveCgroup(ctx, bad, true); err == nil {
			t.Errorf("slice %q was removed", bad)
		}
	}
	// systemd is not asked about slices that do not exist, so it need not run either.
	testutil.Must(t, m.h.RemoveCgroup(ctx, mid, true))
	if list, err := m.h.ListCgroups(ctx, mid); err != nil || len(list) != 0 {
		t.Errorf("children of a slice that is not there: %v, %v", list, err)
	}
	if !m.isRoot || !m.exists(t, "/run/systemd/system") {
		t.Skip("systemd does not manage this machine, or not for us")
	}
	t.Cleanup(func() {
		if err := m.h.RemoveCgroup(ctx, top, true); err != nil {
			t.Error(err)
		}
	})
	unit := func(p, property string) string {
		return m.output(t, "systemctl", "show", "--value", "-p", property, path.Base(p))
	}
	facts, err := m.h.Facts(ctx)
	testutil.Must(t, err)
	properties, files := "MemoryLimit CPUShares", "memory.limit_in_bytes pids.max cpu.cfs_quota_us cpu.shares"
	if facts.CgroupVersion == 2 {
		properties, files = "MemoryMax CPUWeight", "memory.max pids.max cpu.max cpu.weight"
	}
	limits := host.CgroupResources{CPUShares: 512, CPUQuotaUS: 50_000, CPUPeriodUS: 100_000, MemoryBytes: 64 << 20, PidsMax: 100}
	p := pod("1_a")
	testutil.Must(t, m.h.EnsureCgroup(ctx, p, limits))
	testutil.Must(t, m.h.EnsureCgroup(ctx, p, limits))
	testutil.Must(t, m.h.EnsureCgroup(ctx, mid, host.CgroupResources{CPUShares: 1024})) // created by the first, without limits
	testutil.Must(t, m.h.EnsureCgroup(ctx, mid, host.CgroupResources{}))
	// A quota is rounded up to a hundredth of a CPU.
	limits.CPUQuotaUS, limits.MemoryBytes = 12_345, 96<<20
	testutil.Must(t, m.h.EnsureCgroup(ctx, p, limits))
	testutil.Must(t, m.h.EnsureCgroup(ctx, pod("2_b"), host.CgroupResources{MemoryBytes: -1, CPUQuotaUS: -1, PidsMax: -1}))
	for where, want := range map[string][]string{top: {path.Base(mid)}, mid: {path.Base(p), path.Base(pod("2_b"))}, p: {}} {
		got, err := m.h.ListCgroups(ctx, where)
		testutil.Must(t, err)
		if !slices.Equal(got, want) && len(got)+len(want) > 0 {
			t.Errorf("children of %s are %q, want %q", where, got, want)
		}
	}
	// One command, because each takes seconds on an emulated host.
	state := func() string {
		return m.output(t, "sh", "-c", `show() { echo "$1: $(systemctl show --value -p "$2" "${1##*/}" | tr '\n' ' ')"; }
			for s in "$1" "$2" "$3" "$4"; do show "$s" ActiveState,Transient; done
			for p in $5 TasksMax CPUQuotaPerSecUSec; do show "$3" $p; done
			show "$2" ${5#* }
			show "$4" ${5% *}
			for f in $6; do find /sys/fs/cgroup -path "*$3/$f" -exec cat {} + 2>/dev/null; done
			find /sys/fs/cgroup -path "*$2/${6##* }" -exec cat {} + 2>/dev/null
			exit 0`, "sh", top, mid, p, pod("2_b"), properties, files)
	}
	want := []string{"active yes", "active yes", "active yes", "active yes",
		strconv.Itoa(96 << 20), "", "100", "130ms", "", "infinity", strconv.Itoa(96 << 20), "100", "13000", "512", "1024"}
	want[5], want[8] = "512", "1024"
	if facts.CgroupVersion == 2 {
		want[5], want[8], want[12], want[13], want[14] = "20", "39", "13000 100000", "20", "39"
	}
	check := func() {
		t.Helper()
		var got []string
		testutil.Eventually(t, "the slices are active", func() bool { // jobs create them
			got = nil
			for line := range strings.Lines(state()) {
				_, value, named := strings.Cut(line, ": ")
				if !named {
					value = line
				}
				got = append(got, strings.TrimSpace(value))
			}
			return slices.Equal(got[:4], want[:4])
		})
		if !slices.Equal(got, want) {
			t.Errorf("the slices have %q, want %q", got, want)
		}
	}
	check()
	measured, err := m.h.Measure(ctx, p)
	testutil.Must(t, err)
	if measured.CgroupBytes != 96<<20 {
		t.Errorf("of the slice's memory %+v is measured", measured)
	}
	// systemd knows the slices: they stay when it reloads its files.
	m.run(t, "systemctl", "daemon-reload")
	check()

	// A process inside keeps the slice, unless it may be killed.
	begin := func(name, slice string) {
		m.run(t, "systemd-run", "--quiet", "--collect", "--unit", name, "--slice", path.Base(slice), "--service-type=exec", "sleep", "1000")
	}
	begin(stem+"-a", p)
	if err := m.h.RemoveCgroup(ctx, p, false); err == nil {
		t.Error("a slice with a process was removed")
	}
	if unit(p, "ActiveState") != "active" || unit(stem+"-a", "ActiveState") != "active" {
		t.Error("an attempt to remove a slice ended what is in it")
	}
	testutil.Must(t, m.h.RemoveCgroup(ctx, p, true))
	testutil.Must(t, m.h.RemoveCgroup(ctx, p, true))
	testutil.Eventually(t, "the slice has stopped", func() bool { return unit(p, "LoadState") == "not-found" })
	// A slice that systemd created itself, because a unit was placed in it: its limits are kept
	// elsewhere, and are removed with it.
	other := pod("3_c")
	begin(stem+"-b", other)
	testutil.Must(t, m.h.EnsureCgroup(ctx, other, host.CgroupResources{MemoryBytes: 96 << 20}))
	if got := unit(other, strings.Fields(properties)[0]); got != strconv.Itoa(96<<20) {
		t.Errorf("a slice that was there has %s", got)
	}
	for _, s := range []string{other, pod("2_b"), mid, top} {
		testutil.Must(t, m.h.RemoveCgroup(ctx, s, true))
	}
	testutil.Eventually(t, "nothing is left", func() bool {
		return m.output(t, "sh", "-c", `find /sys/fs/cgroup /run/systemd/system.control /run/systemd/transient -name "$1*" 2>/dev/null; systemctl list-units --all --no-legend "$1*"`, "sh", stem) == ""
	})
}
