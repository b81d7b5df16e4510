package stats

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/google/cadvisor/lib/container"
	cadvisor "github.com/google/cadvisor/lib/metrics"
	info "github.com/google/cadvisor/lib/model"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/pod"
)

// Machine is what cAdvisor's metrics say about the host itself.
type Machine struct {
	KernelVersion, OSImage          string
	MachineID, SystemUUID, BootID   string
	CPUs, PhysicalCores, CPUSockets int
	// MaxPods is how many pods the node admits.
	MaxPods int
}

// WriteCadvisor answers a request for what a kubelet serves at /metrics/cadvisor. cAdvisor's own
// library writes it, so that names, labels and help texts are those of a kubelet. s has detail; if there
// is an error instead, the answer says that it failed and has no series of containers.
func WriteCadvisor(w http.ResponseWriter, r *http.Request, s *Snapshot, m Machine, err error) {
	log := klog.FromContext(r.Context())
	if err != nil {
		log.Error(err, "Failed to collect cAdvisor's metrics")
		s = nil
	}
	if s != nil && s.series() > seriesEach+seriesOfPod*min(len(s.Pods), m.MaxPods) {
		log.Error(nil, "Refused the counters of a host: too many groups, devices or interfaces", "series", s.series(), "pods", len(s.Pods))
		s = nil
	}
	if p := newPage(r, s, m); p != nil {
		p.send(w, r)
	}
}

// writing holds a token while an answer is made, but not while it is sent. One for a full node takes
// tens of MiB for a moment, and a Prometheus asks all nodes of a process at about the same time.
var writing = make(chan struct{}, 1)

// What a host may have: each series of cAdvisor takes up to a KiB while an answer is made.
const (
	seriesEach  = 10_000 // besides its pods
	seriesOfPod = 700    // of each pod; a node admits seven containers of each pod on average

	// What counts for a control group, and for a device or an interface of one.
	seriesOfCgroup, seriesOfDevice, seriesOfInterface = 48, 8, 8
)

// series is about how many series cAdvisor writes for a snapshot, at most.
func (s *Snapshot) series() int {
	n := seriesOfCgroup + seriesOfDevice*(len(s.Node.IO)+len(s.Disks)+len(s.FileSystems)) + seriesOfInterface*len(s.Interfaces)
	for _, c := range s.Cgroups {
		n += seriesOfCgroup + seriesOfDevice*len(c.IO)
	}
	for _, of := range s.Networks {
		n += seriesOfInterface * len(of)
	}
	return n
}

// page is a response, compressed by gzip.
type page struct {
	header http.Header
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (p *page) Header() http.Header { return p.header }

// WriteHeader implements http.ResponseWriter. The status stays 200: what could be read is shown.
func (p *page) WriteHeader(int) {}

func (p *page) Write(data []byte) (int, error) { return p.body.Write(data) }

// newPage makes the answer to r in its turn; nil if the caller does not wait for it.
func newPage(r *http.Request, s *Snapshot, m Machine) *page {
	select {
	case writing <- struct{}{}:
		defer func() { <-writing }()
	case <-r.Context().Done():
		return nil
	}
	of := cadvisorProvider{s, m}
	set := included(s)
	registry := prometheus.NewRegistry()
	registry.MustRegister(cadvisor.NewPrometheusMachineCollector(of, set),
		cadvisor.NewPrometheusCollector(of, cadvisorLabels, set, snapshotClock{at: of.seen()}, info.RequestOptions{}))
	r = r.Clone(r.Context())
	r.Header.Set("Accept-Encoding", "gzip")
	p := &page{header: http.Header{}}
	promhttp.HandlerFor(onlyRead{registry, s}, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}).ServeHTTP(p, r)
	return p
}

// send sends the page to a caller, who may read slowly.
func (p *page) send(w http.ResponseWriter, r *http.Request) {
	maps.Copy(w.Header(), p.header)
	var body io.Reader = &p.body
	if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") && p.header.Get("Content-Encoding") == "gzip" {
		w.Header().Del("Content-Encoding")
		plain, err := gzip.NewReader(body)
		if err != nil {
			klog.FromContext(r.Context()).Error(err, "Failed to unpack cAdvisor's metrics")
			return
		}
		body = plain
	}
	piece, end := make([]byte, 32<<10), time.Now().Add(sendTimeout)
	for time.Now().Before(end) {
		n, err := body.Read(piece)
		if _, failed := w.Write(piece[:n]); err != nil || failed != nil {
			return
		}
	}
	panic(http.ErrAbortHandler) // a page that ends early must not look whole
}

// sendTimeout bounds how long a caller may take to read a page. The longest timeout of a scrape in use
// is a minute.
const sendTimeout = time.Minute

// included are the metrics that a kubelet includes.
func included(s *Snapshot) container.MetricSet {
	set := container.MetricSet{
		container.CpuUsageMetrics: {}, container.MemoryUsageMetrics: {}, container.DiskIOMetrics: {}, container.DiskUsageMetrics: {},
		container.NetworkUsageMetrics: {}, container.AppMetrics: {}, container.ProcessMetrics: {}, container.OOMMetrics: {},
	}
	if s != nil && s.Node.Pressure.CPU != nil {
		set[container.PressureMetrics] = struct{}{}
	}
	return set
}

// cadvisorProvider shows a snapshot as cAdvisor's manager would.
type cadvisorProvider struct {
	*Snapshot
	machine Machine
}

// snapshotClock is the time of a snapshot: containers were seen then, not at the time of the answer.
type snapshotClock struct {
	clock.RealClock
	at time.Time
}

func (c snapshotClock) Now() time.Time { return c.at }

func (p cadvisorProvider) seen() time.Time {
	if p.Snapshot == nil {
		return time.Time{}
	}
	return p.Time
}

var errNotCollected = errors.New("the host does not answer")

func (p cadvisorProvider) GetVersionInfo() (*info.VersionInfo, error) {
	return &info.VersionInfo{KernelVersion: p.machine.KernelVersion, ContainerOsVersion: p.machine.OSImage}, nil
}

func (p cadvisorProvider) GetMachineInfo() (*info.MachineInfo, error) {
	if p.Snapshot == nil {
		return nil, errNotCollected
	}
	return &info.MachineInfo{
		Timestamp: p.Time, MachineID: p.machine.MachineID, SystemUUID: p.machine.SystemUUID, BootID: p.machine.BootID, NumCores: p.machine.CPUs, NumPhysicalCores: p.machine.PhysicalCores, NumSockets: p.machine.CPUSockets,
		MemoryCapacity: natural(p.MemoryBytes), SwapCapacity: natural(p.SwapBytes),
	}, nil
}

func (p cadvisorProvider) GetRequestedContainersInfo(string, info.RequestOptions) (map[string]*info.ContainerInfo, error) {
	if p.Snapshot == nil {
		return nil, errNotCollected
	}
	out := map[string]*info.ContainerInfo{"/": p.entry("/", p.Node, p.BootTime)}
	root := out["/"]
	root.Stats[0].Filesystem = p.fileSystems()
	root.Stats[0].Processes.Ulimits = ulimits(p.Node)
	setNetwork(root, p.Interfaces)
	for at, c := range p.Cgroups {
		out[at] = p.entry(at, c, p.BootTime)
	}
	for i := range p.Pods {
		p.describe(&p.Pods[i], out)
	}
	return out, nil
}

// describe adds what is known about the cgroups of a pod besides their counters.
func (p cadvisorProvider) describe(d *Pod, out map[string]*info.ContainerInfo) {
	of := func(at, id, name, image string, created, started time.Time) *info.ContainerInfo {
		c := out[at]
		if c == nil {
			return nil
		}
		c.Spec.CreationTime, c.Spec.StartTime, c.Spec.Image = created, started, image
		c.Spec.Labels = map[string]string{pod.LabelPodName: d.Name, pod.LabelPodNamespace: d.Namespace, pod.LabelContainerName: name}
		if id != "" {
			c.Id, c.Aliases = id, []string{id}
			c.Stats[0].Processes.Ulimits = ulimits(p.Cgroups[at])
		}
		return c
	}
	// The interfaces are those of the sandbox. A runtime may keep no process for it, and then it has no
	// cgroup.
	network := of(d.Cgroup, "", "", "", d.CreatedAt, time.Time{})
	if at, ok := p.containers[d.SandboxID]; ok {
		network = of(at, d.SandboxID, "", d.SandboxImage, d.CreatedAt, time.Time{})
	}
	if network != nil {
		setNetwork(network, p.Networks[d.Cgroup])
	}
	for _, k := range d.Containers {
		if at, ok := p.containers[k.ID]; ok {
			of(at, k.ID, k.Name, k.Image, k.CreatedAt, k.StartedAt)
		}
	}
}

// cadvisorLabels are the labels of a kubelet's series.
func cadvisorLabels(c *info.ContainerInfo) map[string]string {
	name := ""
	if len(c.Aliases) > 0 {
		name = c.Aliases[0]
	}
	return map[string]string{
		cadvisor.LabelID: c.Name, cadvisor.LabelName: name, cadvisor.LabelImage: c.Spec.Image,
		"pod": c.Spec.Labels[pod.LabelPodName], "namespace": c.Spec.Labels[pod.LabelPodNamespace],
		"container": c.Spec.Labels[pod.LabelContainerName],
	}
}

// entry shows the counters and limits of a cgroup.
func (p cadvisorProvider) entry(at string, c host.CgroupSample, created time.Time) *info.ContainerInfo {
	cpu, m := c.CPU, c.Memory
	return &info.ContainerInfo{
		ContainerReference: info.ContainerReference{Name: at},
		Spec: info.ContainerSpec{
			CreationTime: created, HasCpu: cpu.PeriodUS >= 0 || cpu.Shares >= 0,
			Cpu:       info.CpuSpec{Limit: natural(cpu.Shares), Quota: limited(cpu.QuotaUS), Period: natural(cpu.PeriodUS)},
			HasMemory: m.Limit >= 0, Memory: info.MemorySpec{Limit: natural(m.Limit), SwapLimit: natural(m.SwapLimit), Reservation: natural(m.Reservation)},
			HasProcesses: c.PidsMax >= 0, Processes: info.ProcessSpec{Limit: limited(c.PidsMax)}, HasDiskIo: true,
		},
		Stats: []*info.ContainerStats{{
			Timestamp: p.Time, OOMEvents: natural(m.OOMKill),
			Cpu: &info.CpuStats{
				Usage: info.CpuUsage{Total: natural(int64(cpu.Usage)), User: natural(int64(cpu.User)), System: natural(int64(cpu.System))},
				CFS: info.CpuCFS{Periods: natural(cpu.Periods), ThrottledPeriods: natural(cpu.ThrottledPeriods), ThrottledTime: natural(int64(cpu.Throttled)),
					BurstsPeriods: natural(cpu.BurstPeriods), BurstTime: natural(int64(cpu.Burst))},
				PSI: stalls(c.Pressure.CPU),
			},
			Memory: memoryStats(c),
			DiskIo: &info.DiskIoStats{
				IoServiceBytes: perDisk(c.IO, func(d host.IOSample) (read, write int64) { return d.ReadBytes, d.WriteBytes }),
				IoServiced:     perDisk(c.IO, func(d host.IOSample) (read, write int64) { return d.ReadOps, d.WriteOps }),
				PSI:            stalls(c.Pressure.IO),
			},
			Processes: &info.ProcessStats{ProcessCount: natural(c.Processes), ThreadsCurrent: natural(c.Pids), ThreadsMax: limited(c.PidsMax),
				FdCount: natural(c.Files), SocketCount: natural(c.Sockets)},
		}},
	}
}

func memoryStats(c host.CgroupSample) *info.MemoryStats {
	m := c.Memory
	faults := info.MemoryStatsMemoryData{Pgfault: natural(m.PageFaults), Pgmajfault: natural(m.MajorPageFaults)}
	return &info.MemoryStats{
		Usage: natural(m.Usage), MaxUsage: natural(m.MaxUsage), Cache: natural(m.File), RSS: natural(m.Anon), Swap: natural(m.Swap),
		MappedFile: natural(m.Mapped), WorkingSet: natural(m.WorkingSet()), TotalActiveFile: natural(m.ActiveFile),
		TotalInactiveFile: natural(m.InactiveFile), FileDirty: natural(m.Dirty), FileWriteback: natural(m.Writeback),
		Pgscan: natural(m.PagesScanned), Pgsteal: natural(m.PagesReclaimed), WorkingsetRefaultFile: natural(m.RefaultsFile),
		WorkingsetRefaultAnon: natural(m.RefaultsAnon), Failcnt: natural(m.LimitFailures), KernelUsage: natural(m.Kernel),
		ContainerData: faults, HierarchicalData: faults, PSI: stalls(c.Pressure.Memory),
		Events: info.MemoryEvents{High: natural(m.HighEvents), Max: natural(m.MaxEvents)},
	}
}

// ulimits is the limit of the first process's open files, as far as it is known. cAdvisor shows it for
// containers and for init.
func ulimits(c host.CgroupSample) []info.UlimitSpec {
	switch c.FilesMax {
	case host.Unknown:
		return nil
	case host.Unlimited:
		return []info.UlimitSpec{{Name: "max_open_files", SoftLimit: -1}}
	}
	return []info.UlimitSpec{{Name: "max_open_files", SoftLimit: c.FilesMax}}
}

func perDisk(devices []host.IOSample, of func(host.IOSample) (read, write int64)) []info.PerDiskStats {
	var out []info.PerDiskStats
	for _, d := range devices {
		read, write := of(d)
		out = append(out, info.PerDiskStats{Device: devicePath(d.Device), Major: natural(d.Major), Minor: natural(d.Minor),
			Stats: map[string]uint64{"Read": natural(read), "Write": natural(write)}})
	}
	return out
}

func devicePath(name string) string {
	if name == "" {
		return ""
	}
	return path.Join("/dev", name)
}

func setNetwork(c *info.ContainerInfo, interfaces []host.Interface) {
	c.Spec.HasNetwork = true
	n := &info.NetworkStats{}
	for _, i := range interfaces {
		n.Interfaces = append(n.Interfaces, info.InterfaceStats{
			Name: i.Name, RxBytes: natural(i.RxBytes), RxPackets: natural(i.RxPackets), RxErrors: natural(i.RxErrors), RxDropped: natural(i.RxDropped),
			TxBytes: natural(i.TxBytes), TxPackets: natural(i.TxPackets), TxErrors: natural(i.TxErrors), TxDropped: natural(i.TxDropped),
		})
	}
	c.Stats[0].Network = n
}

// fileSystems are those of the root directory and of the runtime's images.
func (p cadvisorProvider) fileSystems() []info.FsStats {
	var out []info.FsStats
	for _, fs := range []host.FileSystem{p.RootFs, p.ImageFs} {
		if slices.ContainsFunc(out, func(o info.FsStats) bool { return o.Limit == natural(fs.Bytes) && o.Available == natural(fs.FreeBytes) }) || fs.Bytes == 0 {
			continue
		}
		s := info.FsStats{
			Type: "vfs", Limit: natural(fs.Bytes), Usage: natural(fs.Bytes - fs.FreeBytes), Available: natural(fs.FreeBytes),
			HasInodes: fs.Inodes > 0, Inodes: natural(fs.Inodes), InodesFree: natural(fs.InodesFree),
		}
		major, minor := deviceNumbers(fs.Device)
		for _, d := range p.Disks {
			if d.Major != major || d.Minor != minor {
				continue
			}
			s.Device = devicePath(d.Name)
			s.ReadsCompleted, s.ReadsMerged, s.SectorsRead, s.ReadTime = natural(d.Reads), natural(d.ReadsMerged), natural(d.SectorsRead), natural(d.ReadTime.Milliseconds())
			s.WritesCompleted, s.WritesMerged, s.SectorsWritten, s.WriteTime = natural(d.Writes), natural(d.WritesMerged), natural(d.SectorsWritten), natural(d.WriteTime.Milliseconds())
			s.IoInProgress, s.IoTime, s.WeightedIoTime = natural(d.InProgress), natural(d.IOTime.Milliseconds()), natural(d.WeightedIOTime.Milliseconds())
		}
		out = append(out, s)
	}
	return out
}

// deviceNumbers splits a device number of Linux (makedev(3)).
func deviceNumbers(dev uint64) (major, minor int64) {
	return int64(dev>>8&0xfff | dev>>32&^0xfff), int64(dev&0xff | dev>>12&^0xff)
}

// stalls are in microseconds, which the library converts to seconds.
func stalls(p *host.Pressure) info.PSIStats {
	if p == nil {
		return info.PSIStats{}
	}
	data := func(s host.Stall) info.PSIData {
		return info.PSIData{Total: natural(s.Total.Microseconds()), Avg10: s.Avg10, Avg60: s.Avg60, Avg300: s.Avg300}
	}
	return info.PSIStats{Full: data(p.Full), Some: data(p.Some)}
}

// limited is 0 for a limit that does not exist.
func limited(n int64) uint64 {
	if n == host.Unlimited {
		return 0
	}
	return natural(n)
}

// natural is 0 for a counter that the host does not have.
func natural(n int64) uint64 { return uint64(max(n, 0)) }

// onlyRead leaves out the open files of the control groups where they were not counted: the library
// writes zeros for them.
type onlyRead struct {
	prometheus.Gatherer
	s *Snapshot
}

var ofFiles = []string{"container_file_descriptors", "container_sockets"}

func (r onlyRead) Gather() ([]*dto.MetricFamily, error) {
	all, err := r.Gatherer.Gather()
	for _, f := range all {
		if slices.Contains(ofFiles, f.GetName()) {
			f.Metric = slices.DeleteFunc(f.Metric, func(m *dto.Metric) bool { return !r.counted(m) })
		}
	}
	return slices.DeleteFunc(all, func(f *dto.MetricFamily) bool { return len(f.Metric) == 0 }), err
}

// counted reports whether the open files of a metric's control group were counted.
func (r onlyRead) counted(m *dto.Metric) bool {
	i := slices.IndexFunc(m.Label, func(l *dto.LabelPair) bool { return l.GetName() == cadvisor.LabelID })
	switch {
	case i < 0 || r.s == nil:
		return false
	case m.Label[i].GetValue() == "/":
		return r.s.Node.Files != host.Unknown
	}
	return r.s.Cgroups[m.Label[i].GetValue()].Files != host.Unknown
}
