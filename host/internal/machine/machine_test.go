package machine

import (
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/sys/mountinfo"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/corpus"
)

func TestFindHierarchies(t *testing.T) {
	const (
		tmpfs   = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
		mixed   = tmpfs + "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n33 31 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n34 31 0:31 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n"
		beside  = "35 31 0:32 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
		unified = "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"
		another = "36 1 0:32 / /mnt/cgroup2 rw - cgroup2 none rw\n"
		again   = "37 1 0:30 / /mnt/memory rw - cgroup none rw,memory\n"
	)
	v1 := map[string]string{"cpu": "/sys/fs/cgroup/cpu,cpuacct", "cpuacct": "/sys/fs/cgroup/cpu,cpuacct", "memory": "/sys/fs/cgroup/memory"}
	v1all := []string{"/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/systemd"}
	for _, c := range []struct {
		name, mounts string
		version      int
		v1           map[string]string
		v2           string
		all          []string
	}{
		{"v1", mixed, 1, v1, "", v1all},
		{"v1 with cgroup2 beside", mixed + beside, 1, v1, "/sys/fs/cgroup/unified", append(v1all[:3:3], "/sys/fs/cgroup/unified")},
		{"cgroup2 beside comes first", tmpfs + beside + strings.TrimPrefix(mixed, tmpfs), 1, v1, "/sys/fs/cgroup/unified", append(v1all[:3:3], "/sys/fs/cgroup/unified")},
		{"v2", unified, 2, nil, "/sys/fs/cgroup", []string{"/sys/fs/cgroup"}},
		{"v2 mounted twice", another + unified, 2, nil, "/sys/fs/cgroup", []string{"/sys/fs/cgroup"}},
		{"v2 over v1", mixed + unified, 2, v1, "/sys/fs/cgroup", []string{"/sys/fs/cgroup"}},
		{"v2 elsewhere", another, 2, nil, "/mnt/cgroup2", []string{"/mnt/cgroup2"}},
		{"a v1 hierarchy mounted twice is used once for limits", mixed + again, 1, v1, "", append(v1all[:3:3], "/mnt/memory")},
		{"none", "1 1 0:1 / / rw - ext4 /dev/vda rw\n", 0, nil, "", nil},
	} {
		entries, err := ParseMountInfo([]byte(c.mounts))
		testutil.Must(t, err)
		h := FindHierarchies(entries)
		if c.v1 == nil {
			c.v1 = map[string]string{}
		}
		if h.Version != c.version || h.V2 != c.v2 || !cmp.Equal(h.V1, c.v1) || !cmp.Equal(h.All, c.all) {
			t.Errorf("%s: %+v", c.name, h)
		}
	}
}

func TestParseMountInfo(t *testing.T) {
	got, err := ParseMountInfo([]byte(`36 35 98:0 /mnt1 /mnt2/a\040b\134c rw,noatime master:1 shared:2 - ext3 /dev/root rw,errors=continue
37 35 0:5 / /x rw - tmpfs  rw
`))
	want := []*mountinfo.Info{
		{ID: 36, Parent: 35, Major: 98, Root: "/mnt1", Mountpoint: `/mnt2/a b\c`, Options: "rw,noatime", Optional: "master:1 shared:2", FSType: "ext3", Source: "/dev/root", VFSOptions: "rw,errors=continue"},
		{ID: 37, Parent: 35, Minor: 5, Root: "/", Mountpoint: "/x", Options: "rw", FSType: "tmpfs", VFSOptions: "rw"},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Fatalf("%v %s", err, diff)
	}
	if !Propagates(got[0]) || Propagates(got[1]) {
		t.Error("the first mount is shared, the second is not")
	}
	if _, err := ParseMountInfo([]byte("nonsense\n")); err == nil {
		t.Error("nonsense was read")
	}
}

// TestLongMountLine: an overlay may have hundreds of layers, whose names are options.
func TestLongMountLine(t *testing.T) {
	layers := strings.Repeat("lowerdir+=/a/layer,", 10_000)
	got, err := ParseMountInfo([]byte("36 35 0:9 / /long rw - overlay overlay ro," + layers + "x=y\n37 35 0:5 / /x rw - tmpfs tmpfs rw\n"))
	testutil.Must(t, err)
	if len(got) != 2 || got[0].Mountpoint != "/long" || !Detachable(got[0]) || got[1].Mountpoint != "/x" {
		t.Errorf("%+v", got)
	}
}

// TestLongFields: a pod decides how long the root of its mount is, and the lines come in pieces. No
// mount is lost, and none leaves its directory.
func TestLongFields(t *testing.T) {
	long := strings.Repeat(`/\040d`, 100_000)
	info := "36 35 0:9 " + long + " /pods/a rw shared:1 - ext4 /dev/root rw\n" +
		"37 35 0:9 / /pods/b" + long + " rw - tmpfs tmpfs ro," + strings.Repeat("o,", 50_000) + "x\n" +
		"38 35 0:5 / /pods/c rw - tmpfs tmpfs rw\n"
	for _, size := range []int{1, 7, 64 << 10, len(info)} {
		var l MountLines
		for range 2 {
			l.Reset()
			for rest := info; rest != ""; rest = rest[min(size, len(rest)):] {
				_, _ = l.Write([]byte(rest[:min(size, len(rest))]))
			}
			if most := 3 * maxField; len(l.kept) > most+1<<10 {
				t.Errorf("in pieces of %d: %d bytes are kept of %d, want at most %d", size, len(l.kept), len(info), most)
			}
			got, err := l.Parse("")
			testutil.Must(t, err)
			if len(got) != 3 || got[0].Mountpoint != "/pods/a" || !Propagates(got[0]) || !strings.HasPrefix(got[0].Root, "/ d/ d") ||
				!strings.HasPrefix(got[1].Mountpoint, "/pods/b/ d") || !Detachable(got[1]) || got[2].Mountpoint != "/pods/c" {
				t.Errorf("in pieces of %d: %.300v", size, got)
			}
		}
	}
}

// TestParseOfAName: to parse only the lines with the name of a directory loses no mount below it, and to
// parse those with SharedType loses no shared one.
func TestParseOfAName(t *testing.T) {
	const info = `36 35 0:9 / /pods/a rw shared:1 - ext4 /dev/root rw
37 36 0:5 / /pods/a/volumes/v rw - tmpfs tmpfs rw
38 36 0:6 /x /pods/b rw - nfs4 server:/x rw
39 36 0:6 /x /pods/c rw - nfs server:/x rw
40 36 0:7 / /pods/with\040space/v rw - tmpfs tmpfs rw
41 36 0:8 / /pods/with\134backslash/v rw - tmpfs tmpfs rw
42 36 0:8 / /pods/tab\011/v\043 rw - tmpfs tmpfs rw
`
	parse := func(name string) []*mountinfo.Info {
		var l MountLines
		_, _ = l.Write([]byte(info))
		entries, err := l.Parse(name)
		testutil.Must(t, err)
		return entries
	}
	all := parse("")
	if len(all) != 7 || all[4].Mountpoint != "/pods/with space/v" {
		t.Fatalf("%v", all)
	}
	for _, e := range all {
		for dir := e.Mountpoint; ; dir = path.Dir(dir) {
			some := parse(strings.TrimPrefix(path.Base(dir), "/"))
			if got, want := MountsBelow(dir, dir, some), MountsBelow(dir, dir, all); !reflect.DeepEqual(got, want) {
				t.Errorf("below %s: %v, want %v", dir, got, want)
			}
			if dir == "/" {
				break
			}
		}
	}
	shared := func(e *mountinfo.Info) bool { return !Shared(e.FSType) }
	if got := slices.DeleteFunc(parse(SharedType), shared); len(got) != 2 {
		t.Errorf("%d shared mounts, want 2", len(got))
	}
	if n := len(parse("a")); n == len(all) {
		t.Error("all lines are parsed")
	}
}

func FuzzParseMountInfo(f *testing.F) {
	f.Add([]byte("36 35 98:0 / /a\\040b rw - ext3 /dev/root rw\n"))
	f.Add([]byte("36 35 98:0 / /a\\04 rw - ext3 \\777 rw\n"))
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		entries, err := ParseMountInfo(data)
		if err == nil {
			FindHierarchies(entries)
		}
	})
}

func TestSettings(t *testing.T) {
	values := func(s []Setting) string {
		var parts []string
		for _, e := range s {
			parts = append(parts, e.File+"="+e.Value)
		}
		return strings.Join(parts, " ")
	}
	for _, c := range []struct {
		r      host.CgroupResources
		v1, v2 string
	}{
		{host.CgroupResources{}, "", ""},
		{host.CgroupResources{CPUShares: 2}, "cpu.shares=2", "cpu.weight=1"},
		{host.CgroupResources{CPUShares: 1 << 30}, "cpu.shares=262144", "cpu.weight=10000"},
		{host.CgroupResources{CPUPeriodUS: 50_000, CPUQuotaUS: 1_000}, "cpu.cfs_period_us=50000 cpu.cfs_quota_us=1000", "cpu.max=1000 50000"},
		{host.CgroupResources{CPUQuotaUS: -1, MemoryBytes: -1, PidsMax: -1},
			"cpu.cfs_quota_us=-1 memory.limit_in_bytes=-1 pids.max=max", "cpu.max=max 100000 memory.max=max pids.max=max"},
		{host.CgroupResources{HugePageBytes: map[string]int64{"2MB": 5, "1GB": 0}},
			"hugetlb.1GB.limit_in_bytes=0 hugetlb.2MB.limit_in_bytes=5", "hugetlb.1GB.max=0 hugetlb.2MB.max=5"},
	} {
		if got := values(SettingsV1(c.r)); got != c.v1 {
			t.Errorf("%+v on V1: %s, want %s", c.r, got, c.v1)
		}
		if got := values(SettingsV2(c.r)); got != c.v2 {
			t.Errorf("%+v on V2: %s, want %s", c.r, got, c.v2)
		}
	}
}

func TestFactParsers(t *testing.T) {
	for list, want := range map[string]int{"0": 1, "0-3": 4, "0-1,4,6-7": 5, "": 0, "x": 0, "3-1": 0} {
		if got := CountList(list); got != want {
			t.Errorf("%q has %d members, want %d", list, got, want)
		}
	}
	for data, want := range map[string]string{
		"NAME=Debian\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n": "Debian GNU/Linux 12 (bookworm)",
		"NAME='Alpine Linux'\n":            "Alpine Linux",
		"PRETTY_NAME=\"a \\\"b\\\" \\$c\"": `a "b" $c`,
		"# PRETTY_NAME=no\n":               "",
		"PRETTY_NAME=\"\n":                 `"`,
	} {
		if got := PrettyName([]byte(data)); got != want {
			t.Errorf("%q is named %q, want %q", data, got, want)
		}
	}
	mem := []byte("MemTotal:       16 kB\nMemFree: 1 kB\nSwapTotal: 0 kB\n")
	if got := Meminfo(mem, "MemTotal"); got != 16*1024 {
		t.Errorf("memory %d", got)
	}
	if got := Meminfo(mem, "Mem"); got != 0 {
		t.Errorf("a prefix was taken for a key: %d", got)
	}
	routes := "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\n" +
		"eth1\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\neth0\t00000000\t0100000A\t0003\t0\t0\t50\t00000000\n" +
		"eth2\t00000000\t0\t1\t0\t0\t0\t0000FFFF\neth3\t0000000A\t0\t1\t0\t0\t0\t00FFFFFF\n"
	if got := DefaultInterface([]byte(routes)); got != "eth0" {
		t.Errorf("default route through %q", got)
	}
	const sysResource = 24
	for status, want := range map[string]bool{
		"CapBnd:\t000001ffffffffff\n": true, "CapEff:\t000001ffffffffff\nCapBnd:\t000001fffeffffff\n": false,
		"CapBnd:\tzz\n": false, "CapBnd:\t00\n": false, "": false,
	} {
		if got := HasCapability([]byte(status), sysResource); got != want {
			t.Errorf("%q: %v", status, got)
		}
	}
	for kb, want := range map[int64]string{64: "64KB", 2048: "2MB", 1 << 20: "1GB"} {
		if got := PageSizeName(kb); got != want {
			t.Errorf("%d kB is named %s", kb, got)
		}
	}
	if a, b := Smaller(0, 5), Smaller(5, 0); a != 5 || b != 5 || Smaller(3, 4) != 3 {
		t.Errorf("%d %d", a, b)
	}
}

func TestCgroupMemory(t *testing.T) {
	for _, tc := range []struct {
		version                   int
		limit, usage, stat        string
		wantLimit, wantWorkingSet int64
	}{
		{1, "1048576\n", "4096\n", "inactive_file 1\ntotal_inactive_file 1024\n", 1 << 20, 3072},
		{1, "9223372036854771712", "4096", "", 0, 0}, // unlimited
		{2, "1048576", "4096", "inactive_file 96\n", 1 << 20, 4000},
		{2, "1048576", "4096", "inactive_file 9999\n", 1 << 20, 0},
		{2, "1048576", "4096", "", 1 << 20, 4096},
		{2, "max", "4096", "", 0, 0},
		{2, "", "", "", 0, 0}, // does not exist
		{2, "1048576", "", "", 0, 0},
		{2, "-1", "1", "", 0, 0},
	} {
		limit, has := CgroupMemory(tc.version, tc.limit, tc.usage, tc.stat)
		if limit != tc.wantLimit || has != tc.wantWorkingSet {
			t.Errorf("%+v: %d of %d", tc, has, limit)
		}
	}
}

func TestOOMKills(t *testing.T) {
	for text, want := range map[string]int64{"": -1, "drop_slab 0\noom_kill 12\n": 12, "oom_kill 3": 3, "oom_kill x": -1, "oom_kills 3\n": -1} {
		if got := OOMKills(text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}
