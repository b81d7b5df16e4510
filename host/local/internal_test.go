package local

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/bowline-k8s/bowline/host"
)

// TestDeadlineGivesUp: the caller is let go when its time is over, though the
// system call hangs; what the call opens afterwards is closed.
func TestDeadlineGivesUp(t *testing.T) {
	h := &Host{name: "test"}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	hang, closed := make(chan struct{}), make(chan struct{})
	_, err := call(h, ctx, "Hang", time.Hour, func(context.Context) (closer, error) {
		<-hang
		return func() error { close(closed); return nil }, nil
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	close(hang)
	select {
	case <-closed:
	case <-time.After(10 * time.Second):
		t.Error("what came too late stays open")
	}
}

// TestDefaultDeadline: a context without a deadline gets the operation's.
func TestDefaultDeadline(t *testing.T) {
	err := run(&Host{name: "test"}, context.Background(), "Hang", 10*time.Millisecond, func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
}

type closer func() error

func (c closer) Close() error { return c() }

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
		entries, err := parseMountInfo([]byte(c.mounts))
		if err != nil {
			t.Fatal(err)
		}
		h := findHierarchies(entries)
		if c.v1 == nil {
			c.v1 = map[string]string{}
		}
		if h.version != c.version || h.v2 != c.v2 || !cmp.Equal(h.v1, c.v1) || !cmp.Equal(h.all, c.all) {
			t.Errorf("%s: %+v", c.name, h)
		}
	}
}

func TestParseMountInfo(t *testing.T) {
	got, err := parseMountInfo([]byte(`36 35 98:0 /mnt1 /mnt2/a\040b\134c rw,noatime master:1 shared:2 - ext3 /dev/root rw,errors=continue
37 35 0:5 / /x rw - tmpfs tmpfs
`))
	want := []mountEntry{
		{device: "98:0", root: "/mnt1", point: `/mnt2/a b\c`, options: []string{"rw", "noatime"}, fsType: "ext3", source: "/dev/root", superOpt: []string{"rw", "errors=continue"}},
		{device: "0:5", root: "/", point: "/x", options: []string{"rw"}, fsType: "tmpfs", source: "tmpfs"},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(mountEntry{})); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	if _, err := parseMountInfo([]byte("nonsense\n")); err == nil {
		t.Error("nonsense was read")
	}
}

func FuzzParseMountInfo(f *testing.F) {
	f.Add([]byte("36 35 98:0 / /a\\040b rw - ext3 /dev/root rw\n"))
	f.Add([]byte("36 35 98:0 / /a\\04 rw - ext3 \\777 rw\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		entries, err := parseMountInfo(data)
		if err == nil {
			findHierarchies(entries)
		}
	})
}

// fakeV2 makes a directory that looks like a cgroup2 mount as far as files go.
func fakeV2(t *testing.T, dirs ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, d := range append([]string{""}, dirs...) {
		p := filepath.Join(root, d)
		if err := os.MkdirAll(p, 0o755); err != nil {
			t.Fatal(err)
		}
		for file, content := range map[string]string{"cgroup.controllers": "cpu io memory pids misc\n", "cgroup.subtree_control": "",
			"cpu.weight": "100\n", "cpu.max": "max 100000\n", "memory.max": "max\n", "pids.max": "max\n"} {
			if err := os.WriteFile(filepath.Join(p, file), []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	return root
}

func TestEnsureV2(t *testing.T) {
	root := fakeV2(t, "kubepods", "kubepods/pod1")
	r := host.CgroupResources{CPUShares: 1024, CPUQuotaUS: 20_000, MemoryBytes: 1 << 20, PidsMax: 7, HugePageBytes: map[string]int64{"2MB": 1}}
	if err := ensureV2(root, "/kubepods/pod1", r); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		"cgroup.subtree_control": "+cpu +io +memory +pids", "kubepods/cgroup.subtree_control": "+cpu +io +memory +pids",
		"kubepods/pod1/cgroup.subtree_control": "", "kubepods/pod1/cpu.weight": "39", "kubepods/pod1/cpu.max": "20000 100000",
		"kubepods/pod1/memory.max": "1048576", "kubepods/pod1/pids.max": "7", "kubepods/memory.max": "max\n",
	} {
		got, err := os.ReadFile(filepath.Join(root, file))
		// A plain file keeps the tail of longer content, which cgroupfs does not.
		if err != nil || !strings.HasPrefix(string(got), want) || want == "" && len(got) > 0 {
			t.Errorf("%s holds %q, %v; want %q", file, got, err, want)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "kubepods/pod1/cgroup.controllers"), []byte("pids"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := ensureV2(root, "/kubepods/pod1", r); err == nil || !strings.Contains(err.Error(), "cpu controller") {
		t.Errorf("without the cpu controller: %v", err)
	}
}

func TestSettings(t *testing.T) {
	values := func(s []setting) string {
		var parts []string
		for _, e := range s {
			parts = append(parts, e.file+"="+e.value)
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
		if got := values(settingsV1(c.r)); got != c.v1 {
			t.Errorf("%+v on v1: %s, want %s", c.r, got, c.v1)
		}
		if got := values(settingsV2(c.r)); got != c.v2 {
			t.Errorf("%+v on v2: %s, want %s", c.r, got, c.v2)
		}
	}
}

func TestFactParsers(t *testing.T) {
	for list, want := range map[string]int{"0": 1, "0-3": 4, "0-1,4,6-7": 5, "": 0, "x": 0, "3-1": 0} {
		if got := countList(list); got != want {
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
		if got := prettyName([]byte(data)); got != want {
			t.Errorf("%q is named %q, want %q", data, got, want)
		}
	}
	mem := []byte("MemTotal:       16 kB\nMemFree: 1 kB\nSwapTotal: 0 kB\n")
	if got := meminfo(mem, "MemTotal"); got != 16*1024 {
		t.Errorf("memory %d", got)
	}
	if got := meminfo(mem, "Mem"); got != 0 {
		t.Errorf("a prefix was taken for a key: %d", got)
	}
	routes := "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\n" +
		"eth1\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\neth0\t00000000\t0100000A\t0003\t0\t0\t50\t00000000\n" +
		"eth2\t00000000\t0\t1\t0\t0\t0\t0000FFFF\neth3\t0000000A\t0\t1\t0\t0\t0\t00FFFFFF\n"
	if got := defaultInterface([]byte(routes)); got != "eth0" {
		t.Errorf("default route through %q", got)
	}
	const sysResource = 24
	for status, want := range map[string]bool{
		"CapBnd:\t000001ffffffffff\n": true, "CapEff:\t000001ffffffffff\nCapBnd:\t000001fffeffffff\n": false,
		"CapBnd:\tzz\n": false, "CapBnd:\t00\n": false, "": false,
	} {
		if got := hasCapability([]byte(status), sysResource); got != want {
			t.Errorf("%q: %v", status, got)
		}
	}
	for kb, want := range map[int64]string{64: "64KB", 2048: "2MB", 1 << 20: "1GB"} {
		if got := pageSizeName(kb); got != want {
			t.Errorf("%d kB is named %s", kb, got)
		}
	}
	if a, b := smaller(0, 5), smaller(5, 0); a != 5 || b != 5 || smaller(3, 4) != 3 {
		t.Errorf("%d %d", a, b)
	}
}

// TestOpenDirAt: by openat2 and without it, the walk refuses links and leaves
// what is missing missing.
func TestOpenDirAt(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(dir+"/d", 0o755), os.Symlink("d", dir+"/l"), os.Symlink("/etc", dir+"/out")); err != nil {
		t.Fatal(err)
	}
	parent, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer parent.Close()
	for how, open := range map[string]func(name string) (*os.File, error){
		"new": func(name string) (*os.File, error) { return openDirAt(int(parent.Fd()), name, name) },
		"old": func(name string) (*os.File, error) {
			fd, err := openDirAtOld(int(parent.Fd()), name, openDirFlags)
			return os.NewFile(uintptr(fd), name), err
		},
	} {
		f, err := open("d")
		if err != nil {
			t.Fatalf("%s: %v", how, err)
		}
		f.Close()
		for _, link := range []string{"l", "out"} {
			if _, err := open(link); err == nil {
				t.Errorf("%s: the link %s was followed", how, link)
			}
		}
		if _, err := open("none"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: missing: %v", how, err)
		}
	}
	proc, err := os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer proc.Close()
	if _, err := openDirAt(int(proc.Fd()), "proc", "/proc"); !errors.Is(err, host.ErrMountInside) {
		t.Errorf("a mount was entered: %v", err)
	}
	if _, err := openDirAtOld(int(proc.Fd()), "proc", openDirFlags); !errors.Is(err, unix.EXDEV) {
		t.Errorf("a mount was entered: %v", err)
	}
}

// TestLockOfRemovedFile: a lock on a file that its path does not name any more
// would exclude nobody, so it is not taken.
func TestLockOfRemovedFile(t *testing.T) {
	h := &Host{name: "test", lockCheck: time.Hour}
	p := filepath.Join(t.TempDir(), "lock")
	f, err := os.Create(p)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := os.Rename(p, p+".moved"); err != nil {
		t.Fatal(err)
	}
	for _, replaced := range []bool{false, true} {
		if replaced {
			if err := os.WriteFile(p, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		l, again, err := h.take(context.Background(), f, p, nil)
		if l != nil || !again || err != nil {
			t.Errorf("replaced %v: %v, %v, %v", replaced, l, again, err)
		}
	}
}
