package ssh

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/internal/machine"
	"github.com/bowline-k8s/bowline/host/ssh/internal/shtest"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/corpus"
)

func TestParseInfos(t *testing.T) {
	got, err := parseInfos([]byte("l 777 3 5 2049 8 1700000000.0000000010\x00z\nq\x00a b\x00" +
		"x41ed 4096 6 2049 7 1700000001 2026-11-21 05:37:04.815060987 +0000\x00a\x00\x00" +
		"f 6755 12 7 2049 0 -5\x00m\x00\x00"))
	want := []host.FileInfo{
		{Name: "a", Mode: fs.ModeDir | 0o755, Size: 4096, Inode: 6, Device: 2049, GID: 7, Time: time.Unix(1700000001, 815060987)},
		{Name: "m", Mode: fs.ModeSetuid | fs.ModeSetgid | 0o755, Size: 12, Inode: 7, Device: 2049, Time: time.Unix(-5, 0)},
		{Name: "z\nq", Mode: fs.ModeSymlink | 0o777, Size: 3, Inode: 5, Device: 2049, GID: 8, Target: "a b", Time: time.Unix(1700000000, 1)},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	for _, bad := range []string{"f", "f 644 1 2 3 0 4\x00n\x00", "f 644 1 2 3 4\x00n\x00\x00", "f 944 1 2 3 0 4\x00n\x00\x00", "xzz 1 2 3 0 4\x00n\x00\x00", "x81a4\x00n\x00\x00"} {
		if _, err := parseInfos([]byte(bad)); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

func FuzzParseInfos(f *testing.F) {
	f.Add("f 644 1 2 3 0 4.5\x00n\x00\x00")
	f.Add("x41ed 4096 6 2049 0 1700000001 d 05:37:04.8 +0000\x00a\x00\x00")
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, s string) { _, _ = parseInfos([]byte(s)) })
}

func FuzzParseProbe(f *testing.F) {
	f.Add("missing flock\ncan find-printf\nuid 0\nmounts\n36 35 98:0 / /a rw - ext3 /dev/root rw\n")
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, s string) { _, _ = parseProbe([]byte(s)) })
}

func FuzzParseFacts(f *testing.F) {
	f.Add("hostname\x00a\x00meminfo\x00MemTotal: 5 kB\x00cpus\x000-3\x00boot-id\x00x\x00disk\x001 2 3\x00hugepages-2048kB\x004\x00")
	f.Add("addresses\x002: eth0    inet 10.0.0.2/24 scope global eth0\x00fib-trie\x00 |-- 10.0.0.1\n /32 host LOCAL\n\x00if-inet6\x0000 1\x00")
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, s string) { _, _ = parseFacts([]byte(s)) })
}

func TestParseFactsOfTheKernel(t *testing.T) {
	f, err := parseFacts([]byte("meminfo\x00MemTotal: 5 kB\x00cpus\x000-3\x00boot-id\x00x\x00disk\x001 2 3\x00" +
		"selinux\x001\x00label\x00system_u:system_r:sshd_t:s0\n\x00swaps\x00Filename Type\n/swapfile file 1 0 -2\n\x00" +
		"swap-control\x00yes\x00thermal-throttle\x00/sys/devices/system/cpu/cpu1/thermal_throttle\n/sys/devices/system/cpu/cpu0/thermal_throttle\x00"))
	if err != nil || !f.SELinux || !f.SELinuxEnforcing || !f.SwapControl ||
		!cmp.Equal(f.Swaps, []string{"/swapfile"}) || !cmp.Equal(f.ThermalThrottle, []int{0, 1}) {
		t.Errorf("%+v, %v", f, err)
	}
}

func FuzzParseMounts(f *testing.F) {
	f.Add("/a/b\x0036 35 98:0 / /a/b/c rw - ext3 /dev/root rw\n\x00")
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, s string) {
		mounts, err := parseMounts("/x", []byte(s))
		for _, m := range mounts {
			if err != nil || m.Target == "" {
				t.Errorf("%+v, %v", m, err)
			}
		}
	})
}

func FuzzParseClock(f *testing.F) {
	f.Add("1700000000.123456789\n")
	f.Add("1700000000.%N")
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, s string) { _, _, _ = parseClock(s) })
}

func FuzzNextWord(f *testing.F) {
	f.Add("motd\nnonce held\nmore")
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, s string) {
		w, err := newReply(strings.NewReader(s), "nonce", nil, "fuzz").next()
		if err == nil && !strings.Contains(s, "nonce "+w+"\n") {
			t.Errorf("%q gave %q", s, w)
		}
	})
}

// FuzzEscape: a shell's printf converts the output of escape back into the same bytes.
func FuzzEscape(f *testing.F) {
	f.Add([]byte("-n %s \\ ' \x00\x81\xff\n\n"))
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 10_000 {
			return
		}
		var b strings.Builder
		b.WriteString("printf '")
		escape(&b, data)
		b.WriteString("'")
		cmd := exec.Command("/bin/sh", "-c", b.String())
		cmd.Env = []string{"LC_ALL=C"}
		out, err := cmd.Output()
		if err != nil || string(out) != string(data) {
			t.Errorf("%q became %q, %v", data, out, err)
		}
	})
}

func TestParseClock(t *testing.T) {
	for s, want := range map[string]struct {
		t      time.Time
		coarse time.Duration
	}{
		"1700000000.123456789\n": {time.Unix(1700000000, 123456789), 0},
		"1700000000.%N\n":        {time.Unix(1700000000, 500_000_000), 500 * time.Millisecond},
		"1700000000.\n":          {time.Unix(1700000000, 500_000_000), 500 * time.Millisecond},
	} {
		got, coarse, err := parseClock(s)
		if err != nil || !got.Equal(want.t) || coarse != want.coarse {
			t.Errorf("%q: %s ± %s, %v", s, got, coarse, err)
		}
	}
	if _, _, err := parseClock("date: not found"); err == nil {
		t.Error("nonsense was read")
	}
}

func TestErrnoOf(t *testing.T) {
	for said, want := range map[string]error{
		"rm: cannot remove 'x': No such file or directory":    syscall.ENOENT,
		"sh: 3: cannot create /x/y: Directory nonexistent":    syscall.ENOENT,
		"sh: 1: cannot open /x: No such file":                 syscall.ENOENT,
		"a: No such file or directory; b: Permission denied.": syscall.EACCES,
		"something else": nil, "": nil,
	} {
		if got := errnoOf(said); !errors.Is(got, want) {
			t.Errorf("%q is %v, want %v", said, got, want)
		}
	}
}

func TestMountArgs(t *testing.T) {
	for _, c := range []struct {
		m    host.Mount
		want [4]string
	}{
		{host.Mount{Type: "tmpfs", Options: []string{"size=1k", "noexec", "rw", "defaults"}}, [4]string{"tmpfs", "size=1k,noexec", "", ""}},
		{host.Mount{Type: "bind", Options: []string{"ro", "rshared"}}, [4]string{"bind", "", "ro", "rshared"}},
		{host.Mount{Options: []string{"rbind", "nosuid", "ro", "private"}}, [4]string{"rbind", "", "nosuid,ro", "private"}},
	} {
		a, b, again, p := mountArgs(c.m)
		if got := [4]string{a, b, again, p}; got != c.want {
			t.Errorf("%+v: %q, want %q", c.m, got, c.want)
		}
	}
}

// TestEnsureArgs: the arguments of the scripts for hierarchies of either version.
func TestEnsureArgs(t *testing.T) {
	v1 := machine.Hierarchies{Version: 1, V1: map[string]string{"cpu": "/c/cpu", "cpuset": "/c/set"},
		By: map[string][]string{"/c/cpu": {"cpu"}, "/c/set": {"cpuset"}}}
	got, err := ensureV1Args(v1, "/k/p", host.CgroupResources{CPUShares: 5, PidsMax: 3})
	want := []string{"/k/p", "/c/set", "cpu cpuset", "cpu|no|5|/c/cpu/k/p/cpu.shares", "/c/cpu/k/p", "/c/set/k/p"}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	if _, err := ensureV1Args(v1, "/k", host.CgroupResources{MemoryBytes: 1}); err == nil || !strings.Contains(err.Error(), "memory controller") {
		t.Errorf("error %v", err)
	}
	got = ensureV2Args(machine.Hierarchies{Version: 2, V2: "/c"}, "/k/p", host.CgroupResources{CPUQuotaUS: 5, PidsMax: 3})
	want = []string{"/k/p", "/c", "cpu cpuset hugetlb io memory pids", "cpu|no|5 100000|/c/k/p/cpu.max\npids|yes|3|/c/k/p/pids.max"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestEnsureV2 runs on a directory with the files of a cgroup2 mount.
func TestEnsureV2(t *testing.T) {
	ctx := context.Background()
	h, err := New(ctx, Config{Name: "far.example", Transport: &shtest.Transport{}})
	testutil.Must(t, err)
	defer h.Close()
	root := t.TempDir()
	for _, d := range []string{"", "/kubepods", "/kubepods/pod1"} {
		testutil.Must(t, os.MkdirAll(root+d, 0o755))
		for file, content := range map[string]string{"cgroup.controllers": "cpu io memory pids misc\n", "cgroup.subtree_control": "",
			"cpu.weight": "100\n", "cpu.max": "max 100000\n", "memory.max": "max\n", "pids.max": "7\n"} {
			testutil.Must(t, os.WriteFile(root+d+"/"+file, []byte(content), 0o644))
		}
	}
	has := *h.machine()
	has.hier = machine.Hierarchies{Version: 2, V2: root, All: []string{root}}
	h.found.Store(&has)
	before, err := os.Stat(root + "/kubepods/pod1/pids.max")
	testutil.Must(t, err)
	r := host.CgroupResources{CPUShares: 1024, CPUQuotaUS: 20_000, MemoryBytes: 1 << 20, PidsMax: 7, HugePageBytes: map[string]int64{"2MB": 1}}
	testutil.Must(t, h.EnsureCgroup(ctx, "/kubepods/pod1", r))
	for file, want := range map[string]string{
		"cgroup.subtree_control": "+cpu +io +memory +pids\n", "kubepods/cgroup.subtree_control": "+cpu +io +memory +pids\n",
		"kubepods/pod1/cgroup.subtree_control": "", "kubepods/pod1/cpu.weight": "39\n", "kubepods/pod1/cpu.max": "20000 100000\n",
		"kubepods/pod1/memory.max": "1048576\n", "kubepods/pod1/pids.max": "7\n", "kubepods/memory.max": "max\n",
	} {
		if got, err := os.ReadFile(root + "/" + file); err != nil || string(got) != want {
			t.Errorf("%s holds %q, %v; want %q", file, got, err, want)
		}
	}
	if after, err := os.Stat(root + "/kubepods/pod1/pids.max"); err != nil || !after.ModTime().Equal(before.ModTime()) {
		t.Error("a file that held the value was written")
	}
	if got, err := h.ListCgroups(ctx, "/kubepods"); err != nil || len(got) != 1 || got[0] != "pod1" {
		t.Errorf("listed %v, %v", got, err)
	}
	testutil.Must(t, os.WriteFile(root+"/kubepods/pod1/cgroup.controllers", []byte("pids"), 0o644))
	if err := h.EnsureCgroup(ctx, "/kubepods/pod1", r); err == nil || !strings.Contains(err.Error(), "cpu controller") {
		t.Errorf("without the cpu controller: %v", err)
	}
}

func TestExports(t *testing.T) {
	got, err := exports([]string{"A=b'c", "_x1="})
	if want := "export A='b'\\''c'\nexport _x1=''\n"; err != nil || got != want {
		t.Errorf("%q, %v", got, err)
	}
	for _, bad := range []string{"A", "=x", "1A=x", "a b=c", "A=\x00", "A;rm=x"} {
		if _, err := exports([]string{bad}); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

// TestFactsHaveTheBoundingSet runs the script itself: what it filters and what parseFacts reads must
// be the same lines. The machine of the tests may lack the capability, so the file is not its own.
func TestFactsHaveTheBoundingSet(t *testing.T) {
	status := filepath.Join(t.TempDir(), "status")
	for set, want := range map[string]bool{"000001ffffffffff": true, "000001fffeffffff": false} {
		testutil.Must(t, os.WriteFile(status, []byte("Name:\tsh\nCapEff:\t0000000000000000\nCapBnd:\t"+set+"\nCapAmb:\t0000000000000000\n"), 0o644))
		script := strings.ReplaceAll(scriptFacts, "/proc/self/status", status)
		out, err := exec.Command("/bin/sh", "-c", script, "facts", "/", "/nothing").Output()
		testutil.Must(t, err)
		f, err := parseFacts(out)
		testutil.Must(t, err)
		if f.CanLowerOOMScore != want {
			t.Errorf("with the bounding set %s, CanLowerOOMScore is %v", set, f.CanLowerOOMScore)
		}
	}
}
