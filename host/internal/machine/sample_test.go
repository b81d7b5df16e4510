package machine

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/test/corpus"
)

func TestDigests(t *testing.T) {
	for what, c := range map[string]struct {
		file    SampleFile
		content string
		want    string
		none    bool
	}{
		"the first line":              {SampleFile{Digest: FirstLine}, "max 100000\nx\n", "max 100000", false},
		"values in the order of keys": {SampleFile{Digest: Values, Keys: []string{"b", "none", "a"}}, "a 1\nb 2 kB\nc 3\n", "2 - 1", false},
		"lines":                       {SampleFile{Digest: Lines}, "8:0 Read 1\nTotal 1\n", "8:0 Read 1;Total 1", false},
		"bare lines":                  {SampleFile{Digest: Bare}, "some avg10=0.50 total=7\n8:0 cost.vrate=1\n", "some 0.50 7;8:0 1", false},
		"a number of lines":           {SampleFile{Digest: LineCount}, "1\n22\n", "2", false},
		"no lines":                    {SampleFile{Digest: LineCount}, "", "0", false},
		"nothing":                     {SampleFile{Digest: FirstLine}, "", "", true},
	} {
		got, ok := c.file.Of(c.content)
		if got != c.want || ok == c.none {
			t.Errorf("%s: %q, %v", what, got, ok)
		}
	}
}

var (
	v1 = Hierarchies{Version: 1, V1: map[string]string{"cpu": "/c/cpu", "cpuacct": "/c/cpu", "memory": "/c/memory", "blkio": "/c/blkio", "pids": "/c/pids"}}
	v2 = Hierarchies{Version: 2, V2: "/c"}
)

// read adds whole files to a sample, as an implementation does.
func read(h Hierarchies, files map[string]string) (host.Sampled, error) {
	r := host.SampleRequest{Trees: []string{"/kubepods"}, Detail: true, OpenFiles: true}
	s := NewSample(h, r, []string{"/lab/kubepods"})
	ofHost, ofCgroups := SampleFiles(h, r)
	for _, f := range ofHost {
		if digest, ok := f.Of(files[f.File]); ok && files[f.File] != "" {
			s.Host(f.Code, digest)
		}
	}
	for _, cgroup := range []string{"", "/lab/kubepods", "/elsewhere"} {
		for _, f := range ofCgroups {
			if content, ok := files[f.Dir+cgroup+"/"+f.File]; ok {
				if digest, ok := f.Of(content); ok {
					s.Cgroup(cgroup, f.Code, digest)
				}
			}
		}
	}
	return s.Result()
}

var proc = map[string]string{
	"/proc/uptime": "100.25 7.00\n", "/proc/meminfo": "MemTotal: 1000 kB\nMemFree: 400 kB\nSwapTotal: 50 kB\nSwapFree: 30 kB\n",
	"/proc/loadavg": "0.1 0.2 0.3 2/345 6789\n", "/proc/sys/kernel/pid_max": "4000\n", "/proc/sys/kernel/threads-max": "3000\n",
	"/proc/diskstats":    "   8       0 sda 1 2 3 4 5 6 7 8 9 10 11 0 0 0 0\n",
	"/proc/pressure/cpu": "some avg10=1.00 avg60=2.00 avg300=3.00 total=4000000\n",
}

func TestSampleV1(t *testing.T) {
	files := maps.Clone(proc)
	for file, content := range map[string]string{
		"/c/memory/memory.usage_in_bytes": "700000\n", "/c/memory/memory.stat": "cache 5\npgfault 8\npgmajfault 1\ntotal_cache 500\ntotal_rss 200\ntotal_inactive_file 100000\ntotal_active_file 3\ntotal_mapped_file 2\ntotal_swap 6\n",
		"/c/cpu/lab/kubepods/cpuacct.usage":                               "5000000000\n",
		"/c/cpu/lab/kubepods/cpuacct.stat":                                "user 300\nsystem 150\n",
		"/c/cpu/lab/kubepods/cpu.stat":                                    "nr_periods 10\nnr_throttled 3\nthrottled_time 2000000000\n",
		"/c/cpu/lab/kubepods/cpu.shares":                                  "1024\n",
		"/c/cpu/lab/kubepods/cpu.cfs_quota_us":                            "-1\n",
		"/c/cpu/lab/kubepods/cpu.cfs_period_us":                           "100000\n",
		"/c/memory/lab/kubepods/memory.usage_in_bytes":                    "4096\n",
		"/c/memory/lab/kubepods/memory.limit_in_bytes":                    "9223372036854771712\n",
		"/c/memory/lab/kubepods/memory.memsw.limit_in_bytes":              "8192\n",
		"/c/memory/lab/kubepods/memory.oom_control":                       "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
		"/c/memory/lab/kubepods/cgroup.procs":                             "1\n2\n",
		"/c/pids/lab/kubepods/pids.current":                               "7\n",
		"/c/pids/lab/kubepods/pids.max":                                   "max\n",
		"/c/blkio/lab/kubepods/blkio.throttle.io_service_bytes_recursive": "8:0 Read 10\n8:0 Write 20\n8:0 Sync 30\n8:0 Total 30\nTotal 30\n",
		"/c/blkio/lab/kubepods/blkio.throttle.io_serviced_recursive":      "8:0 Read 1\n8:0 Write 2\n9:1 Write 4\nTotal 3\n",
		"/c/memory/elsewhere/memory.usage_in_bytes":                       "1\n",
	} {
		files[file] = content
	}
	got, err := read(v1, files)
	if err != nil {
		t.Fatal(err)
	}
	c, ok := got.Cgroups["/kubepods"]
	if !ok || len(got.Cgroups) != 1 {
		t.Fatalf("cgroups %v", got.Cgroups)
	}
	wantNode(t, got)
	if n := got.Node.Memory; n.Usage != 700000 || n.WorkingSet() != 600000 || n.Swap != 6 || n.Anon != 200 || n.File != 500 {
		t.Errorf("the node's memory: %+v", n)
	}
	if want := (host.CPUSample{Usage: 5 * time.Second, User: 3 * time.Second, System: 1500 * time.Millisecond, Periods: 10, ThrottledPeriods: 3,
		Throttled: 2 * time.Second, BurstPeriods: host.Unknown, Burst: host.Unknown, Shares: 1024, QuotaUS: host.Unlimited, PeriodUS: 100000}); c.CPU != want {
		t.Errorf("CPU %+v", c.CPU)
	}
	if m := c.Memory; m.Usage != 4096 || m.Limit != host.Unlimited || m.SwapLimit != 8192 || m.OOMKill != 2 || m.InactiveFile != host.Unknown {
		t.Errorf("memory %+v", m)
	}
	if c.Pids != 7 || c.PidsMax != host.Unlimited || c.Processes != 2 {
		t.Errorf("%d of %d threads, %d processes", c.Pids, c.PidsMax, c.Processes)
	}
	if want := []host.IOSample{{Major: 8, Device: "sda", ReadBytes: 10, WriteBytes: 20, ReadOps: 1, WriteOps: 2}, {Major: 9, Minor: 1, WriteOps: 4}}; !slices.Equal(c.IO, want) {
		t.Errorf("IO %+v", c.IO)
	}
}

func TestSampleV2(t *testing.T) {
	files := maps.Clone(proc)
	for file, content := range map[string]string{
		"/c/cpu.stat": "usage_usec 9000000\nuser_usec 1\nsystem_usec 2\n", "/c/memory.stat": "anon 2000\nfile 3000\ninactive_file 1000\n",
		"/c/lab/kubepods/cpu.stat":            "usage_usec 5000000\nuser_usec 3000000\nsystem_usec 2000000\nnr_periods 1\nnr_throttled 2\nthrottled_usec 3\nnr_bursts 4\nburst_usec 5\n",
		"/c/lab/kubepods/cpu.max":             "max 100000\n",
		"/c/lab/kubepods/cpu.weight":          "39\n",
		"/c/lab/kubepods/memory.current":      "5000\n",
		"/c/lab/kubepods/memory.max":          "max\n",
		"/c/lab/kubepods/memory.swap.current": "10\n",
		"/c/lab/kubepods/memory.swap.max":     "0\n",
		"/c/lab/kubepods/memory.events":       "low 0\nhigh 1\nmax 2\noom 3\noom_kill 4\n",
		"/c/lab/kubepods/memory.stat":         "anon 1000\nfile 4000\nfile_mapped 3\ninactive_file 6000\nactive_file 7\npgfault 8\npgmajfault 9\nworkingset_refault_file 11\n",
		"/c/lab/kubepods/io.stat":             "8:0 rbytes=10 wbytes=20 rios=1 wios=2 dbytes=3 dios=4\n9:1 \n",
		"/c/lab/kubepods/cpu.pressure":        "some avg10=0.10 avg60=0.20 avg300=0.30 total=1000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=2000\n",
		"/c/lab/kubepods/cgroup.procs":        "",
	} {
		files[file] = content
	}
	got, err := read(v2, files)
	if err != nil {
		t.Fatal(err)
	}
	wantNode(t, got)
	if n := got.Node; n.CPU.Usage != 9*time.Second || n.Memory.Usage != 5000 || n.Memory.WorkingSet() != 4000 || n.Memory.Swap != 20<<10 {
		t.Errorf("the node: %+v", n)
	}
	c := got.Cgroups["/kubepods"]
	if want := (host.CPUSample{Usage: 5 * time.Second, User: 3 * time.Second, System: 2 * time.Second, Periods: 1, ThrottledPeriods: 2,
		Throttled: 3 * time.Microsecond, BurstPeriods: 4, Burst: 5 * time.Microsecond, Shares: 998, QuotaUS: host.Unlimited, PeriodUS: 100000}); c.CPU != want {
		t.Errorf("CPU %+v", c.CPU)
	}
	if m := c.Memory; m.Usage != 5000 || m.WorkingSet() != 0 || m.Limit != host.Unlimited || m.Swap != 10 || m.SwapLimit != 0 || m.HighEvents != 1 || m.MaxEvents != 2 ||
		m.OOMKill != 4 || m.Mapped != 3 || m.RefaultsFile != 11 || m.RefaultsAnon != host.Unknown || m.PageFaults != 8 {
		t.Errorf("memory %+v", m)
	}
	if want := []host.IOSample{{Major: 8, Device: "sda", ReadBytes: 10, WriteBytes: 20, ReadOps: 1, WriteOps: 2, DiscardBytes: 3, DiscardOps: 4}}; !slices.Equal(c.IO, want) {
		t.Errorf("IO %+v", c.IO)
	}
	if p := c.Pressure.CPU; p == nil || p.Some.Total != time.Millisecond || p.Full.Total != 2*time.Millisecond || p.Some.Avg300 != 0.3 || c.Pressure.IO != nil || c.Processes != 0 {
		t.Errorf("pressure %+v, %d processes", c.Pressure, c.Processes)
	}
}

func wantNode(t *testing.T, got host.Sampled) {
	t.Helper()
	if got.Uptime != 100250*time.Millisecond || got.MemoryBytes != 1000<<10 || got.SwapBytes != 50<<10 || got.PidsMax != 3000 || got.Pids != 345 || got.Node.Memory.Limit != 1000<<10 {
		t.Errorf("the host: %+v", got)
	}
	if want := []host.Disk{{Major: 8, Name: "sda", Reads: 1, ReadsMerged: 2, SectorsRead: 3, ReadTime: 4 * time.Millisecond, Writes: 5, WritesMerged: 6,
		SectorsWritten: 7, WriteTime: 8 * time.Millisecond, InProgress: 9, IOTime: 10 * time.Millisecond, WeightedIOTime: 11 * time.Millisecond}}; !slices.Equal(got.Disks, want) {
		t.Errorf("disks %+v", got.Disks)
	}
	if p := got.Node.Pressure.CPU; p == nil || p.Some.Total != 4*time.Second || p.Some.Avg60 != 2 {
		t.Errorf("pressure of the host: %+v", p)
	}
}

func TestSampleOfNothing(t *testing.T) {
	for what, files := range map[string]map[string]string{"nothing": {}, "no uptime": {"/proc/meminfo": proc["/proc/meminfo"]}, "no memory": {"/proc/uptime": "5 5\n"}} {
		if got, err := read(v2, files); err == nil {
			t.Errorf("%s: %+v", what, got)
		}
	}
}

// TestUnknownSample: every counter that is not read says so.
func TestUnknownSample(t *testing.T) {
	var unset func(v reflect.Value, name string)
	unset = func(v reflect.Value, name string) {
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				unset(v.Field(i), name+"."+v.Type().Field(i).Name)
			}
		case reflect.Int64:
			if v.Int() != host.Unknown {
				t.Errorf("%s is %d", name, v.Int())
			}
		}
	}
	unset(reflect.ValueOf(host.UnknownSample()), "sample")
}

func TestPodOfCgroup(t *testing.T) {
	const uid = "11111111-2222-3333-4444-555555555555"
	for p, want := range map[string]string{
		"/kubepods/burstable/pod" + uid: uid, "/kubepods/pod" + uid: uid,
		"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice": uid,
		"/kubepods": "", "/kubepods/burstable": "", "/kubepods/pod" + uid + "/abc": "", "/tripod1": "", "/kubepods/podx": "",
		"/kubepods/pod0123456789abcdef0123456789abcdef": "0123456789abcdef0123456789abcdef", // of a static pod
	} {
		if got, ok := PodOfCgroup(p); got != want || ok != (want != "") {
			t.Errorf("%s: %q, %v", p, got, ok)
		}
	}
	if !SampledCgroup("/kubepods/burstable/pod"+uid+"/abc") || SampledCgroup("/kubepods/pod"+uid+"/abc/nested") {
		t.Error("which cgroups are sampled")
	}
}

func TestSeconds(t *testing.T) {
	for text, want := range map[string]time.Duration{"1.5": 1500 * time.Millisecond, "7": 7 * time.Second, "0.000000001": 1, "": 0, "-1": 0, "x": 0, "2.x": 2 * time.Second, "99999999999999999999": 0} {
		if got := seconds(text); got != want && text != "99999999999999999999" || got < 0 {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

// FuzzSample: whatever a host prints, counters are natural or Unknown, and the result is bounded.
func FuzzSample(f *testing.F) {
	f.Add("U", "100.25 7", "c", "1 2 3 4 5 6 7 8", "eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16")
	f.Add("M", "1 2 3 4", "i", "8:0 1 2 3 4 5 6;9:1 1;x", "lo: 1")
	f.Add("X", "some 1 2 3 4;full x 2 NaN -4", "z", "full 0 0 0 18446744073709551615", ":")
	f.Add("U", "5", "o", "12 3 unlimited", "eth0: 1")
	f.Add("B", "8 0 sda 1 2 3 4 5 6 7 8 9 10 11", "q", "max max", "eth0:")
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, hostCode, hostDigest, code, digest, line string) {
		for _, h := range []Hierarchies{v1, v2} {
			s := NewSample(h, host.SampleRequest{Trees: []string{"/kubepods"}, Detail: true, OpenFiles: true}, []string{"/kubepods"})
			s.Host("U", "5")
			s.Host("M", "1 1 1 1")
			s.Host(hostCode, hostDigest)
			s.Cgroup("", code, digest)
			s.Cgroup("/kubepods/x", code, digest)
			s.Interface("", line)
			s.Interface("/kubepods/x", line)
			got, err := s.Result()
			if err != nil {
				continue
			}
			checkNatural(t, reflect.ValueOf(got), "sampled")
		}
	})
}

func checkNatural(t *testing.T, v reflect.Value, name string) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			checkNatural(t, v.Field(i), name+"."+v.Type().Field(i).Name)
		}
	case reflect.Int64:
		if v.Int() < host.Unknown {
			t.Errorf("%s is %d", name, v.Int())
		}
	case reflect.Float64:
		if !(v.Float() >= 0 && v.Float() <= 100) {
			t.Errorf("%s is %v", name, v.Float())
		}
	case reflect.Slice:
		for i := range v.Len() {
			checkNatural(t, v.Index(i), name)
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			checkNatural(t, v.MapIndex(k), name)
		}
	case reflect.Pointer:
		if !v.IsNil() {
			checkNatural(t, v.Elem(), name)
		}
	}
}
