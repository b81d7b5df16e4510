package machine

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bowline-k8s/bowline/host"
)

// TestSlices: by systemd's rule the name of a slice repeats those of its parents.
func TestSlices(t *testing.T) {
	for _, c := range []struct{ root, path, want string }{
		{"/", "/kubepods.slice", "/kubepods.slice"},
		{"", "/kubepods.slice/kubepods-besteffort.slice", "/kubepods.slice/kubepods-besteffort.slice"},
		{"/", "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice",
			"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice"},
		{"/lab/a-b", "/kubepods.slice/kubepods-pod1.slice",
			"/lab.slice/lab-a_b.slice/lab-a_b-kubepods.slice/lab-a_b-kubepods-pod1.slice"},
		{"/", "/a.slice/b.slice", ""}, {"/", "/a.slice/a-b-c.slice", ""}, {"/", "/a/a-b.slice", ""}, {"/", "/a-b.slice", ""},
		{"/", "/.slice", ""}, {"/", "/a.slice/a-.slice", ""}, {"/", "/a b.slice", ""}, {"/x|y", "/a.slice", ""}, {"/", "/a\n.slice", ""},
	} {
		got, err := SliceBelow(c.root, c.path)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s below %s: %q, %v; want %q", c.path, c.root, got, err, c.want)
		}
	}
	if got := Slices("/a.slice/a-b.slice"); !slices.Equal(got, []string{"/a.slice", "/a.slice/a-b.slice"}) {
		t.Errorf("slices %q", got)
	}
	names := []string{"lab-a_b-kubepods-pod1.slice", "kubepods", "other.slice"}
	if got := SliceNames("/lab/a-b", names); !slices.Equal(got, []string{"kubepods-pod1.slice", "kubepods", "other.slice"}) {
		t.Errorf("names %q", got)
	}
	if !IsSlice("/a.slice") || IsSlice("/kubepods/pod1") {
		t.Error("what is a slice")
	}
}

// TestSliceProperties: the properties are those that libcontainer's manager sets.
func TestSliceProperties(t *testing.T) {
	words := func(p [][]string) string {
		var all []string
		for _, one := range p {
			all = append(all, one[0]+"="+one[2])
			if one[1] != "t" {
				t.Errorf("%q is no number", one)
			}
		}
		return strings.Join(all, " ")
	}
	const infinity = "18446744073709551615"
	for _, c := range []struct {
		r      host.CgroupResources
		v1, v2 string
	}{
		{host.CgroupResources{}, "", ""},
		{host.CgroupResources{CPUShares: 2}, "CPUShares=2", "CPUWeight=1"},
		{host.CgroupResources{CPUShares: 1024}, "CPUShares=1024", "CPUWeight=39"},
		{host.CgroupResources{CPUShares: 1 << 30}, "CPUShares=262144", "CPUWeight=10000"},
		{host.CgroupResources{CPUQuotaUS: 20_000, CPUPeriodUS: 100_000}, "CPUQuotaPerSecUSec=200000", "CPUQuotaPerSecUSec=200000"},
		{host.CgroupResources{CPUQuotaUS: 12_300, CPUPeriodUS: 100_000}, "CPUQuotaPerSecUSec=130000", "CPUQuotaPerSecUSec=130000"},
		{host.CgroupResources{CPUQuotaUS: 1_000, CPUPeriodUS: 50_000}, "CPUQuotaPeriodUSec=50000 CPUQuotaPerSecUSec=20000", "CPUQuotaPeriodUSec=50000 CPUQuotaPerSecUSec=20000"},
		{host.CgroupResources{CPUPeriodUS: 100_000}, "CPUQuotaPerSecUSec=" + infinity, "CPUQuotaPerSecUSec=" + infinity},
		{host.CgroupResources{MemoryBytes: 5, PidsMax: 6}, "MemoryLimit=5 TasksMax=6", "MemoryMax=5 TasksMax=6"},
		{host.CgroupResources{CPUQuotaUS: -1, MemoryBytes: -1, PidsMax: -1},
			"CPUQuotaPerSecUSec=" + infinity + " MemoryLimit=" + infinity + " TasksMax=" + infinity,
			"CPUQuotaPerSecUSec=" + infinity + " MemoryMax=" + infinity + " TasksMax=" + infinity},
		{host.CgroupResources{HugePageBytes: map[string]int64{"2MB": 5}}, "", ""},
	} {
		for version, want := range map[int]string{1: c.v1, 2: c.v2} {
			if got := words(SliceProperties(version, c.r)); got != want {
				t.Errorf("%+v on %d: %s, want %s", c.r, version, got, want)
			}
		}
	}
	// The files get the values that systemd has.
	for quota, want := range map[int64]int64{0: 0, -1: -1, 20_000: 20_000, 12_300: 13_000, 1_000: 1_000, 999: 1_000} {
		if got := ForSystemd(host.CgroupResources{CPUQuotaUS: quota, CPUPeriodUS: 100_000}).CPUQuotaUS; got != want {
			t.Errorf("a quota of %d becomes %d, not %d", quota, got, want)
		}
	}
}

// TestSliceCalls: the calls in the syntax of busctl.
func TestSliceCalls(t *testing.T) {
	const head = "--system -- call org.freedesktop.systemd1 /org/freedesktop/systemd1 org.freedesktop.systemd1.Manager "
	r := host.CgroupResources{MemoryBytes: 7}
	full := "/kubepods.slice/kubepods-pod1.slice"
	for name, c := range map[string]struct {
		got  []string
		want string
	}{
		"start": {StartSlice(2, full, r), head + "StartTransientUnit ssa(sv)a(sa(sv)) kubepods-pod1.slice replace 7 Wants as 1 kubepods.slice " +
			"MemoryAccounting b true CPUAccounting b true IOAccounting b true TasksAccounting b true DefaultDependencies b false MemoryMax t 7 0"},
		"the highest, on version 1": {StartSlice(1, "/kubepods.slice", host.CgroupResources{}), head + "StartTransientUnit ssa(sv)a(sa(sv)) kubepods.slice replace 6 " +
			"Wants as 1 -.slice MemoryAccounting b true CPUAccounting b true BlockIOAccounting b true TasksAccounting b true DefaultDependencies b false 0"},
		"set":         {SetSlice(2, full, r), head + "SetUnitProperties sba(sv) kubepods-pod1.slice true 1 MemoryMax t 7"},
		"set nothing": {SetSlice(2, full, host.CgroupResources{}), ""},
		"stop":        {StopSlice(full), head + "StopUnit ss kubepods-pod1.slice replace"},
	} {
		if diff := cmp.Diff(c.want, strings.Join(c.got, " ")); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		for _, arg := range c.got {
			if arg == "" || strings.ContainsAny(arg, " \t\n*?[") {
				t.Errorf("%s: the shell would not take %q as it is", name, arg)
			}
		}
	}
	// Messages of systemd itself.
	if !SliceExists("Call failed: Unit kubepods.slice was already loaded or has a fragment file.") || SliceExists("Call failed: Connection refused") {
		t.Error("what tells that a slice is there")
	}
	if !SliceMissing("Call failed: Unit kubepods.slice not loaded.") || SliceMissing("Call failed: Access denied") {
		t.Error("what tells that a slice is not there")
	}
}
