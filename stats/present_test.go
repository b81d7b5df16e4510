package stats

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var machine = Machine{KernelVersion: "6.12.1", OSImage: "Debian GNU/Linux 13", MachineID: "m-1", SystemUUID: "u-1", BootID: "b-1",
	CPUs: 8, PhysicalCores: 4, CPUSockets: 1, MaxPods: 110}

// snapshot is what a collection finds on a host with a pod of two containers and one on the host's
// network.
func snapshot() *Snapshot {
	at := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	stall := &host.Pressure{Some: host.Stall{Total: 3 * time.Second, Avg10: 0.5, Avg60: 0.25, Avg300: 0.1}, Full: host.Stall{Total: time.Second}}
	cgroup := func(scale int64) host.CgroupSample {
		c := host.UnknownSample()
		c.CPU = host.CPUSample{Usage: time.Duration(scale) * time.Second, User: time.Duration(scale) * 600 * time.Millisecond, System: time.Duration(scale) * 400 * time.Millisecond,
			Periods: 100 * scale, ThrottledPeriods: scale, Throttled: time.Duration(scale) * time.Millisecond, BurstPeriods: host.Unknown, Burst: host.Unknown,
			Shares: 102 * scale, QuotaUS: host.Unlimited, PeriodUS: 100_000}
		c.Memory.Usage, c.Memory.InactiveFile, c.Memory.Anon, c.Memory.File = scale<<20, scale<<18, scale<<19, scale<<18
		c.Memory.PageFaults, c.Memory.MajorPageFaults, c.Memory.Swap, c.Memory.OOMKill = 1000*scale, scale, 0, 0
		c.Memory.Limit, c.Memory.SwapLimit, c.Memory.Reservation = host.Unlimited, 0, 0
		c.IO = []host.IOSample{{Major: 8, Device: "sda", ReadBytes: 4096 * scale, WriteBytes: 512 * scale, ReadOps: scale, WriteOps: 2 * scale}}
		c.Pids, c.PidsMax, c.Processes = 2*scale, host.Unlimited, scale
		c.Files, c.Sockets, c.FilesMax = 10*scale, scale, 1024*scale
		c.Pressure.CPU, c.Pressure.Memory, c.Pressure.IO = stall, stall, stall
		return c
	}
	limited := cgroup(4)
	limited.Memory.Limit, limited.CPU.QuotaUS, limited.PidsMax = 64<<20, 50_000, 1000
	many := cgroup(3)
	many.Files, many.Sockets, many.FilesMax = host.Unknown, host.Unknown, host.Unlimited // too many to count
	node := cgroup(100)
	node.Memory.Limit = 8 << 30
	main, side, pause, agent := strings.Repeat("aa", 32), strings.Repeat("bb", 32), strings.Repeat("cc", 32), strings.Repeat("dd", 32)
	web, ds := "/kubepods/burstable/pod11111111-2222-3333-4444-555555555555", "/kubepods/besteffort/pod11111111-2222-3333-4444-666666666666"
	eth0 := []host.Interface{{Name: "eth0", RxBytes: 1000, RxPackets: 10, RxErrors: 1, RxDropped: 2, TxBytes: 2000, TxPackets: 20, TxErrors: 3, TxDropped: 4}}
	s := &Snapshot{
		Time: at, BootTime: at.Add(-48 * time.Hour), Detail: true, PodsTree: "/kubepods",
		Sampled: host.Sampled{
			Uptime: 48 * time.Hour, Node: node, MemoryBytes: 8 << 30, SwapBytes: 1 << 30, PidsMax: 32768, Pids: 345, Interfaces: eth0,
			Disks: []host.Disk{{Major: 8, Name: "sda", Reads: 7, SectorsRead: 70, ReadTime: time.Second, Writes: 9, SectorsWritten: 90, WriteTime: 2 * time.Second, IOTime: 3 * time.Second}},
			Cgroups: map[string]host.CgroupSample{
				"/kubepods": cgroup(20), "/kubepods/burstable": cgroup(10), web: cgroup(9), web + "/" + main: limited, web + "/" + side: many, web + "/" + pause: cgroup(1),
				"/kubepods/besteffort": cgroup(2), ds: cgroup(2), ds + "/" + agent: cgroup(1),
			},
			Networks: map[string][]host.Interface{web: eth0},
		},
		RootFs:  host.FileSystem{Device: 8 << 8, Bytes: 100 << 30, FreeBytes: 60 << 30, Inodes: 6_000_000, InodesFree: 5_000_000},
		ImageFs: host.FileSystem{Device: 8 << 8, Bytes: 100 << 30, FreeBytes: 60 << 30, Inodes: 6_000_000, InodesFree: 5_000_000},
		Storage: &Storage{Time: at.Add(-30 * time.Second), VolumesAt: at.Add(-30 * time.Second), Layers: map[string]host.Usage{main: {Bytes: 5000, Inodes: 5}, side: {Bytes: 6000, Inodes: 6}},
			Dirs:   map[string]host.Usage{"/logs/web/main": {Bytes: 700, Inodes: 2}, "/logs/web/side": {Bytes: 800, Inodes: 2}, "/v/tmp": {Bytes: 9000, Inodes: 9}, "/v/token": {Bytes: 100, Inodes: 3}},
			Claims: map[string]host.FileSystem{"/v/data": {Bytes: 1 << 30, FreeBytes: 1 << 29}}, Images: host.Usage{Bytes: 3 << 30, Inodes: 900}},
		Pods: []Pod{
			{Namespace: "shop", Name: "web", UID: "11111111-2222-3333-4444-555555555555", CreatedAt: at.Add(-time.Hour), Cgroup: web, SandboxID: pause, SandboxImage: "registry.k8s.io/pause:3.10", LogDir: "/logs/web",
				Containers: []Container{{ID: main, Name: "main", Image: "example.com/web:v1", CreatedAt: at.Add(-time.Hour), StartedAt: at.Add(-time.Hour)}, {ID: side, Name: "side", Image: "example.com/side:v1", CreatedAt: at.Add(-time.Minute)}},
				Volumes:    []Volume{{Name: "data", Path: "/v/data", Claim: "data"}, {Name: "tmp", Path: "/v/tmp"}, {Name: "token", Path: "/v/token", Memory: true}, {Name: "new", Path: "/v/new"}}},
			// The runtime keeps no process for this sandbox.
			{Namespace: "kube-system", Name: "agent", UID: "11111111-2222-3333-4444-666666666666", CreatedAt: at.Add(-time.Hour), Cgroup: ds, SandboxID: "none", HostNetwork: true, LogDir: "/logs/agent",
				Containers: []Container{{ID: agent, Name: "agent", Image: "example.com/agent:v1", CreatedAt: at.Add(-time.Hour)}}},
			{Namespace: "shop", Name: "starting", UID: "11111111-2222-3333-4444-777777777777", SandboxID: strings.Repeat("ee", 32)},
		},
		containers: map[string]string{main: web + "/" + main, side: web + "/" + side, pause: web + "/" + pause, agent: ds + "/" + agent},
		usage:      map[string]uint64{"": 1_500_000_000, web: 200_000_000, web + "/" + main: 150_000_000},
	}
	return s
}

func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	p := filepath.Join("testdata", file)
	if *update {
		testutil.Must(t, os.WriteFile(p, got, 0o644))
	}
	if diff := cmp.Diff(strings.Split(string(testutil.ReadFile(t, p)), "\n"), strings.Split(string(got), "\n")); diff != "" {
		t.Errorf("%s (-want +got):\n%s", p, diff)
	}
}

func TestSummary(t *testing.T) {
	for file, change := range map[string]func(*Snapshot){
		"summary.json": func(*Snapshot) {},
		"summary-cpu-memory.json": func(s *Snapshot) {
			s.Detail, s.Storage, s.usage = false, nil, nil
		},
		"summary-without-storage.json": func(s *Snapshot) { s.Storage = nil },
	} {
		s := snapshot()
		change(s)
		data, err := json.MarshalIndent(Summary("n1", s), "", "  ")
		testutil.Must(t, err)
		golden(t, file, append(data, '\n'))
	}
}

func answer(f func(w http.ResponseWriter, r *http.Request)) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	f(w, httptest.NewRequest("GET", "/", nil))
	return w
}

func TestResourceMetrics(t *testing.T) {
	s := snapshot()
	s.Detail, s.Storage = false, nil
	w := answer(func(w http.ResponseWriter, r *http.Request) { WriteResource(w, r, Summary("n1", s), nil) })
	golden(t, "resource.txt", w.Body.Bytes())
	w = answer(func(w http.ResponseWriter, r *http.Request) { WriteResource(w, r, nil, errors.New("the link is down")) })
	if w.Code != 200 {
		t.Errorf("a failure is a %d", w.Code)
	}
	golden(t, "resource-failed.txt", w.Body.Bytes())
}

func TestCadvisorMetrics(t *testing.T) {
	w := answer(func(w http.ResponseWriter, r *http.Request) { WriteCadvisor(w, r, snapshot(), machine, nil) })
	golden(t, "cadvisor.txt", sorted(w.Body.String()))
	w = answer(func(w http.ResponseWriter, r *http.Request) {
		WriteCadvisor(w, r, nil, machine, errors.New("the link is down"))
	})
	if w.Code != 200 {
		t.Errorf("a failure is a %d", w.Code)
	}
	golden(t, "cadvisor-failed.txt", w.Body.Bytes())
}

// TestCadvisorIsBounded: the host of a full node has its metrics; one that reports more control
// groups, devices or interfaces than its pods can have gets a failed scrape, and costs little.
func TestCadvisorIsBounded(t *testing.T) {
	scrape := func(s *Snapshot) string {
		return answer(func(w http.ResponseWriter, r *http.Request) { WriteCadvisor(w, r, s, machine, nil) }).Body.String()
	}
	base := snapshot()
	if n, most := strings.Count(scrape(base), "\ncontainer_"), base.series(); n > most {
		t.Errorf("%d series, want at most %d", n, most)
	}
	with := func(pods, each, devices, interfaces int) *Snapshot {
		s := snapshot()
		s.Pods = make([]Pod, pods)
		s.Cgroups = map[string]host.CgroupSample{}
		for i := range pods {
			s.Pods[i].Cgroup = fmt.Sprintf("/kubepods/pod%d", i)
			for j := range each {
				c := s.Node
				c.IO = make([]host.IOSample, devices)
				for k := range c.IO {
					c.IO[k] = host.IOSample{Major: 8, Minor: int64(k), Device: fmt.Sprint("sd", k)}
				}
				s.Cgroups[fmt.Sprintf("%s/%d", s.Pods[i].Cgroup, j)] = c
			}
			for k := range interfaces {
				s.Networks[s.Pods[i].Cgroup] = append(s.Networks[s.Pods[i].Cgroup], host.Interface{Name: fmt.Sprint("eth", k)})
			}
		}
		return s
	}
	if got := scrape(with(20, 9, 3, 2)); strings.Contains(got, "\ncontainer_scrape_error 1\n") || strings.Count(got, "\ncontainer_") > with(20, 9, 3, 2).series() {
		t.Errorf("a full node: %d series of at most %d; %.300q", strings.Count(got, "\ncontainer_"), with(20, 9, 3, 2).series(), got)
	}
	for what, s := range map[string]*Snapshot{"control groups": with(10, 600, 0, 0), "devices": with(10, 9, 256, 0), "interfaces": with(64, 1, 0, 400),
		"control groups and pods": with(1000, 15, 0, 0)} {
		if got := scrape(s); !strings.Contains(got, "\ncontainer_scrape_error 1\n") || strings.Contains(got, "container_cpu") {
			t.Errorf("too many %s: %.300q", what, got)
		}
	}
}

// TestSlowReadersOfCadvisor: callers who do not read their answer do not delay others. An answer is compressed
// if its caller accepts that.
func TestSlowReadersOfCadvisor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		read := make(chan struct{})
		var slow sync.WaitGroup
		for range 3 {
			slow.Go(func() {
				WriteCadvisor(unread{httptest.NewRecorder(), read}, httptest.NewRequest("GET", "/", nil), snapshot(), machine, nil)
			})
		}
		synctest.Wait()
		plain := answer(func(w http.ResponseWriter, r *http.Request) { WriteCadvisor(w, r, snapshot(), machine, nil) })
		packed := answer(func(w http.ResponseWriter, r *http.Request) {
			r.Header.Set("Accept-Encoding", "gzip")
			WriteCadvisor(w, r, snapshot(), machine, nil)
		})
		unpacked, err := gzip.NewReader(packed.Body)
		testutil.Must(t, err)
		text, err := io.ReadAll(unpacked)
		if err != nil || packed.Header().Get("Content-Encoding") != "gzip" || plain.Header().Get("Content-Encoding") != "" ||
			!bytes.Equal(sorted(string(text)), sorted(plain.Body.String())) || !strings.Contains(string(text), "container_cpu") {
			t.Errorf("%v; compressed %v %.200q, plain %v %.200q", err, packed.Header(), text, plain.Header(), plain.Body.String())
		}
		close(read)
		slow.Wait()
	})
}

// TestPanicKeepsNoToken: after a panic while a page is made, which the API server recovers from, other
// requests are answered.
func TestPanicKeepsNoToken(t *testing.T) {
	func() {
		defer func() {
			if recover() == nil {
				t.Error("a request without a header did not panic")
			}
		}()
		r := httptest.NewRequest("GET", "/", nil)
		r.Header = nil
		WriteCadvisor(httptest.NewRecorder(), r, snapshot(), machine, nil)
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	w := httptest.NewRecorder()
	WriteCadvisor(w, httptest.NewRequest("GET", "/", nil).WithContext(ctx), snapshot(), machine, nil)
	if !strings.Contains(w.Body.String(), "container_cpu") {
		t.Error("the next request was not answered")
	}
}

// TestPagesOfANodeAreBounded: callers who do not read do not pile up pages of a node, and end.
func TestPagesOfANodeAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &box{}
		s := &Server{Collector: b.collector(t), Node: "n1", Machine: func() Machine { return machine }}
		read := make(chan struct{})
		var slow sync.WaitGroup
		for range maxPages {
			slow.Go(func() {
				defer func() { _ = recover() }() // as net/http does
				s.Cadvisor(unread{httptest.NewRecorder(), read}, httptest.NewRequest("GET", "/", nil))
			})
		}
		synctest.Wait()
		if w := answer(s.Cadvisor); w.Code != http.StatusServiceUnavailable {
			t.Errorf("one more is answered with %d", w.Code)
		}
		time.Sleep(2 * sendTimeout)
		close(read)
		slow.Wait()
		if w := answer(s.Cadvisor); w.Code != http.StatusOK {
			t.Errorf("afterwards it is %d", w.Code)
		}
	})
}

// unread is a caller who does not read until read is closed.
type unread struct {
	http.ResponseWriter
	read chan struct{}
}

func (u unread) Write(p []byte) (int, error) {
	<-u.read
	return u.ResponseWriter.Write(p)
}

// sorted sorts the series of each family: the library's order of labels varies.
func sorted(text string) []byte {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	begin := 0
	for i := range lines {
		if strings.HasPrefix(lines[i], "# HELP") {
			slices.Sort(lines[begin:i])
			begin = i + 2
		}
	}
	slices.Sort(lines[begin:])
	return []byte(strings.Join(lines, "\n") + "\n")
}

// TestCadvisorFamilies: the families are those that a kubelet has by default.
func TestCadvisorFamilies(t *testing.T) {
	w := answer(func(w http.ResponseWriter, r *http.Request) { WriteCadvisor(w, r, snapshot(), machine, nil) })
	for _, family := range []string{
		"container_cpu_usage_seconds_total", "container_cpu_cfs_periods_total", "container_cpu_cfs_throttled_periods_total", "container_memory_working_set_bytes",
		"container_memory_rss", "container_memory_cache", "container_memory_swap", "container_memory_usage_bytes", "container_fs_reads_total", "container_fs_writes_total",
		"container_fs_reads_bytes_total", "container_fs_writes_bytes_total", "container_network_receive_bytes_total", "container_network_receive_packets_total",
		"container_network_receive_packets_dropped_total", "container_network_transmit_bytes_total", "container_network_transmit_packets_total",
		"container_network_transmit_packets_dropped_total", "container_oom_events_total", "container_pressure_cpu_waiting_seconds_total", "container_spec_memory_limit_bytes",
		"machine_cpu_cores", "machine_memory_bytes", "cadvisor_version_info", "container_processes", "container_threads", "container_threads_max", "container_file_descriptors", "container_sockets", "container_ulimits_soft",
	} {
		if !strings.Contains(w.Body.String(), "\n# TYPE "+family+" ") {
			t.Errorf("no %s", family)
		}
	}
}
