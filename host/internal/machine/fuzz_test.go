package machine

import (
	"math"
	"testing"

	"github.com/bowline-k8s/bowline/test/corpus"
)

// FuzzFacts parses arbitrary data as the numbers in /proc and in cgroup files.
func FuzzFacts(f *testing.F) {
	f.Add([]byte("MemTotal:       16318480 kB\nMemAvailable: 12 kB\n"))
	f.Add([]byte("0-3,8,10-11\n"))
	f.Add([]byte("0-9223372036854775807"))
	f.Add([]byte("PRETTY_NAME=\"Debian GNU/Linux 13 (trixie)\"\n"))
	f.Add([]byte("CapEff:\t000001ffffffffff\n"))
	f.Add([]byte("Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\neth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\n"))
	f.Add([]byte("0.21 0.31 0.20 2/412 9231\n"))
	f.Add([]byte("oom_kill 3\n"))
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		s := string(data)
		for name, n := range map[string]int64{
			"CountList": int64(CountList(s)), "MemTotal": Meminfo(data, "MemTotal"), "MemAvailable": Meminfo(data, "MemAvailable"),
			"Threads":      Threads(s),
			"WorkingSet 1": WorkingSet(data, 1, s, s), "WorkingSet 2": WorkingSet(data, 2, s, s), "WorkingSet": WorkingSet(data, 0, s, s),
		} {
			if n < 0 {
				t.Errorf("%s of %q is %d", name, s, n)
			}
		}
		if n := OOMKills(s); n < -1 {
			t.Errorf("OOMKills of %q is %d", s, n)
		}
		if n := CountList(s); n > math.MaxInt32 {
			t.Errorf("%q counts %d CPUs", s, n)
		}
		for version := range 3 {
			if limit, used := CgroupMemory(version, s, s, s); limit < 0 || used < 0 {
				t.Errorf("memory of a group of version %d by %q: %d, %d", version, s, limit, used)
			}
		}
		_, _, _ = PrettyName(data), DefaultInterface(data), HasCapability(data, 21)
	})
}

// FuzzHierarchies searches for cgroup mounts in an arbitrary mountinfo.
func FuzzHierarchies(f *testing.F) {
	f.Add([]byte("30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n31 24 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"))
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		entries, err := ParseMountInfo(data)
		if err != nil {
			return
		}
		h := FindHierarchies(entries)
		_, _ = h.MemoryRoot()
		for _, e := range entries {
			if top := TopMount(entries, e.Mountpoint); top == nil || top.Mountpoint != e.Mountpoint {
				t.Errorf("what is mounted on %q is %+v", e.Mountpoint, top)
			}
		}
	})
}
