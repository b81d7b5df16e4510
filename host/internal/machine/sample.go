package machine

import (
	"errors"
	"math"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bowline-k8s/bowline/host"
)

// Digest says which part of a file host.Meters.Sample needs. The part is one line, so that a
// remote host sends little.
type Digest byte

const (
	FirstLine Digest = '1' // the first line
	Values    Digest = 'k' // of lines "KEY VALUE" the values of the keys, with "-" for a key that is missing
	Lines     Digest = 'a' // all lines, joined by semicolons
	Bare      Digest = 'p' // all lines without "NAME=", joined by semicolons
	LineCount Digest = 'n' // the number of lines
	OpenFiles Digest = 'o' // of the processes with these PIDs: see Walk
)

// SampleFile is a file that Sample reads.
type SampleFile struct {
	Code string // distinguishes the file in the output
	// Dir is the directory of the hierarchy, for a file of cgroups.
	Dir string
	// File is the name of the cgroup's file, or the path of a file of the host.
	File string
	Digest
	Keys []string

	fill func(s *sampling, c *host.CgroupSample, v []string)
}

// Of returns the digest of the file's content, and false if it has none.
func (f SampleFile) Of(content string) (string, bool) {
	content = strings.TrimSuffix(content, "\n")
	if content == "" && f.Digest != LineCount && f.Digest != OpenFiles {
		return "", false
	}
	switch f.Digest {
	case FirstLine:
		line, _, _ := strings.Cut(content, "\n")
		return line, true
	case Values:
		out := slices.Repeat([]string{"-"}, len(f.Keys))
		for line := range strings.SplitSeq(content, "\n") {
			if v := strings.Fields(line); len(v) > 1 {
				if at := slices.Index(f.Keys, v[0]); at >= 0 {
					out[at] = v[1]
				}
			}
		}
		return strings.Join(out, " "), true
	case OpenFiles:
		return content, true
	case Bare:
		return joined(names.ReplaceAllString(content, "")), true
	case LineCount:
		if content == "" {
			return "0", true
		}
		return strconv.Itoa(strings.Count(content, "\n") + 1), true
	}
	return joined(content), true
}

// joined has the first lines of content in one line of at most maxDigest bytes.
func joined(content string) string {
	if len(content) > maxDigest {
		content = content[:max(strings.LastIndexByte(content[:maxDigest+1], '\n'), 0)]
	}
	return strings.ReplaceAll(content, "\n", ";")
}

var names = regexp.MustCompile(`[a-z0-9.]+=`)

type sampling struct {
	host.Sampled
	free    struct{ memory, swap int64 }
	entries int // of IO
}

func fileOfHost(code, file string, d Digest, fill func(s *sampling, v []string), keys ...string) SampleFile {
	return SampleFile{Code: code, File: file, Digest: d, Keys: keys,
		fill: func(s *sampling, _ *host.CgroupSample, v []string) { fill(s, v) }}
}

// SampleFiles are the files of the host, and those of each cgroup. Hosts of either version may
// lack any of them.
func SampleFiles(h Hierarchies, r host.SampleRequest) (ofHost, ofCgroups []SampleFile) {
	ofHost = filesOfHost(r.Detail)
	if h.Version == 2 {
		ofCgroups = filesV2(h, r.Detail)
	} else {
		ofCgroups = filesV1(h, r.Detail)
	}
	if r.Detail && r.OpenFiles {
		ofCgroups = append(ofCgroups, openFiles(h))
	}
	return ofHost, ofCgroups
}

func filesOfHost(detail bool) []SampleFile {
	files := []SampleFile{
		fileOfHost("U", "/proc/uptime", FirstLine, func(s *sampling, v []string) { s.Uptime = seconds(v[0]) }),
		fileOfHost("M", "/proc/meminfo", Values, func(s *sampling, v []string) {
			kb := func(i int) int64 { return Times(max(counter(v[i]), 0), 1024) }
			s.MemoryBytes, s.free.memory, s.SwapBytes, s.free.swap = kb(0), kb(1), kb(2), kb(3)
		}, "MemTotal:", "MemFree:", "SwapTotal:", "SwapFree:"),
	}
	if detail {
		files = append(files,
			fileOfHost("L", "/proc/loadavg", FirstLine, func(s *sampling, v []string) { s.Pids = Threads(strings.Join(v, " ")) }),
			fileOfHost("D", "/proc/sys/kernel/pid_max", FirstLine, func(s *sampling, v []string) { s.PidsMax = Smaller(s.PidsMax, Count(v[0])) }),
			fileOfHost("T", "/proc/sys/kernel/threads-max", FirstLine, func(s *sampling, v []string) { s.PidsMax = Smaller(s.PidsMax, Count(v[0])) }),
			fileOfHost("B", "/proc/diskstats", Lines, func(s *sampling, v []string) { s.disks(v) }),
			fileOfHost("X", "/proc/pressure/cpu", Bare, func(s *sampling, v []string) { s.Node.Pressure.CPU = pressure(v) }),
			fileOfHost("Y", "/proc/pressure/memory", Bare, func(s *sampling, v []string) { s.Node.Pressure.Memory = pressure(v) }),
			fileOfHost("Z", "/proc/pressure/io", Bare, func(s *sampling, v []string) { s.Node.Pressure.IO = pressure(v) }))
	}
	return files
}

// one is a file with one number.
func one(code, dir, file string, into func(c *host.CgroupSample) *int64) SampleFile {
	return SampleFile{Code: code, Dir: dir, File: file, Digest: FirstLine, fill: func(_ *sampling, c *host.CgroupSample, v []string) { *into(c) = counter(v[0]) }}
}

func filesV2(h Hierarchies, detail bool) []SampleFile {
	file := func(code, name string, into func(c *host.CgroupSample) *int64) SampleFile {
		return one(code, h.V2, name, into)
	}
	fields := func(code, name string, d Digest, fill func(s *sampling, c *host.CgroupSample, v []string), keys ...string) SampleFile {
		return SampleFile{Code: code, Dir: h.V2, File: name, Digest: d, Keys: keys, fill: fill}
	}
	cpu := fields("c", "cpu.stat", Values, func(_ *sampling, c *host.CgroupSample, v []string) {
		c.CPU.Usage, c.CPU.User, c.CPU.System = micros(v[0]), micros(v[1]), micros(v[2])
		if len(v) == 8 {
			c.CPU.Periods, c.CPU.ThrottledPeriods, c.CPU.Throttled = counter(v[3]), counter(v[4]), micros(v[5])
			c.CPU.BurstPeriods, c.CPU.Burst = counter(v[6]), micros(v[7])
		}
	}, "usage_usec", "user_usec", "system_usec")
	memory := fields("s", "memory.stat", Values, func(_ *sampling, c *host.CgroupSample, v []string) {
		m := &c.Memory
		m.InactiveFile, m.Anon, m.PageFaults, m.MajorPageFaults = counter(v[0]), counter(v[1]), counter(v[2]), counter(v[3])
		m.File = counter(v[4])
		if len(v) == 13 {
			m.Mapped, m.ActiveFile, m.Dirty, m.Writeback = counter(v[5]), counter(v[6]), counter(v[7]), counter(v[8])
			m.PagesScanned, m.PagesReclaimed, m.RefaultsFile, m.RefaultsAnon = counter(v[9]), counter(v[10]), counter(v[11]), counter(v[12])
		}
	}, "inactive_file", "anon", "pgfault", "pgmajfault", "file")
	if detail {
		cpu.Keys = append(cpu.Keys, "nr_periods", "nr_throttled", "throttled_usec", "nr_bursts", "burst_usec")
		memory.Keys = append(memory.Keys, "file_mapped", "active_file", "file_dirty", "file_writeback",
			"pgscan", "pgsteal", "workingset_refault_file", "workingset_refault_anon")
	}
	files := []SampleFile{cpu, memory,
		file("m", "memory.current", func(c *host.CgroupSample) *int64 { return &c.Memory.Usage }),
		file("l", "memory.max", func(c *host.CgroupSample) *int64 { return &c.Memory.Limit }),
		file("w", "memory.swap.current", func(c *host.CgroupSample) *int64 { return &c.Memory.Swap }),
		file("W", "memory.swap.max", func(c *host.CgroupSample) *int64 { return &c.Memory.SwapLimit }),
	}
	if !detail {
		return files
	}
	stalls := func(code, name string, into func(c *host.CgroupSample) **host.Pressure) SampleFile {
		return fields(code, name, Bare, func(_ *sampling, c *host.CgroupSample, v []string) { *into(c) = pressure(v) })
	}
	return append(files,
		file("k", "memory.peak", func(c *host.CgroupSample) *int64 { return &c.Memory.MaxUsage }),
		file("r", "memory.min", func(c *host.CgroupSample) *int64 { return &c.Memory.Reservation }),
		fields("e", "memory.events", Values, func(_ *sampling, c *host.CgroupSample, v []string) {
			c.Memory.HighEvents, c.Memory.MaxEvents, c.Memory.OOMKill = counter(v[0]), counter(v[1]), counter(v[2])
		}, "high", "max", "oom_kill"),
		fields("q", "cpu.max", FirstLine, func(_ *sampling, c *host.CgroupSample, v []string) {
			c.CPU.QuotaUS = counter(v[0])
			if len(v) > 1 {
				c.CPU.PeriodUS = counter(v[1])
			}
		}),
		fields("h", "cpu.weight", FirstLine, func(_ *sampling, c *host.CgroupSample, v []string) { c.CPU.Shares = weightToShares(counter(v[0])) }),
		fields("i", "io.stat", Bare, func(s *sampling, c *host.CgroupSample, v []string) { s.io(c, v) }),
		file("p", "pids.current", func(c *host.CgroupSample) *int64 { return &c.Pids }),
		file("P", "pids.max", func(c *host.CgroupSample) *int64 { return &c.PidsMax }),
		SampleFile{Code: "n", Dir: h.V2, File: "cgroup.procs", Digest: LineCount,
			fill: func(_ *sampling, c *host.CgroupSample, v []string) { c.Processes = counter(v[0]) }},
		stalls("x", "cpu.pressure", func(c *host.CgroupSample) **host.Pressure { return &c.Pressure.CPU }),
		stalls("y", "memory.pressure", func(c *host.CgroupSample) **host.Pressure { return &c.Pressure.Memory }),
		stalls("z", "io.pressure", func(c *host.CgroupSample) **host.Pressure { return &c.Pressure.IO }))
}

// hertz is the unit of cpuacct.stat: USER_HZ, which is 100 on every architecture of Linux that
// runs containers.
const hertz = 100

func filesV1(h Hierarchies, detail bool) []SampleFile {
	file := func(code, controller, name string, into func(c *host.CgroupSample) *int64) SampleFile {
		return one(code, h.V1[controller], name, into)
	}
	fields := func(code, controller, name string, d Digest, fill func(s *sampling, c *host.CgroupSample, v []string), keys ...string) SampleFile {
		return SampleFile{Code: code, Dir: h.V1[controller], File: name, Digest: d, Keys: keys, fill: fill}
	}
	memory := fields("s", "memory", "memory.stat", Values, func(_ *sampling, c *host.CgroupSample, v []string) {
		m := &c.Memory
		m.InactiveFile, m.Anon, m.PageFaults, m.MajorPageFaults = counter(v[0]), counter(v[1]), counter(v[2]), counter(v[3])
		m.File, m.Swap = counter(v[4]), counter(v[5])
		if len(v) == 8 {
			m.Mapped, m.ActiveFile = counter(v[6]), counter(v[7])
		}
	}, "total_inactive_file", "total_rss", "pgfault", "pgmajfault", "total_cache", "total_swap")
	if detail {
		memory.Keys = append(memory.Keys, "total_mapped_file", "total_active_file")
	}
	files := []SampleFile{memory,
		fields("u", "cpuacct", "cpuacct.usage", FirstLine, func(_ *sampling, c *host.CgroupSample, v []string) { c.CPU.Usage = times(v[0], time.Nanosecond) }),
		fields("t", "cpuacct", "cpuacct.stat", Values, func(_ *sampling, c *host.CgroupSample, v []string) {
			c.CPU.User, c.CPU.System = times(v[0], time.Second/hertz), times(v[1], time.Second/hertz)
		}, "user", "system"),
		file("m", "memory", "memory.usage_in_bytes", func(c *host.CgroupSample) *int64 { return &c.Memory.Usage }),
		file("l", "memory", "memory.limit_in_bytes", func(c *host.CgroupSample) *int64 { return &c.Memory.Limit }),
		file("W", "memory", "memory.memsw.limit_in_bytes", func(c *host.CgroupSample) *int64 { return &c.Memory.SwapLimit }),
	}
	if detail {
		files = append(files,
			file("k", "memory", "memory.max_usage_in_bytes", func(c *host.CgroupSample) *int64 { return &c.Memory.MaxUsage }),
			file("F", "memory", "memory.failcnt", func(c *host.CgroupSample) *int64 { return &c.Memory.LimitFailures }),
			file("K", "memory", "memory.kmem.usage_in_bytes", func(c *host.CgroupSample) *int64 { return &c.Memory.Kernel }),
			file("r", "memory", "memory.soft_limit_in_bytes", func(c *host.CgroupSample) *int64 { return &c.Memory.Reservation }),
			fields("e", "memory", "memory.oom_control", Values, func(_ *sampling, c *host.CgroupSample, v []string) { c.Memory.OOMKill = counter(v[0]) }, "oom_kill"),
			fields("c", "cpu", "cpu.stat", Values, func(_ *sampling, c *host.CgroupSample, v []string) {
				c.CPU.Periods, c.CPU.ThrottledPeriods, c.CPU.Throttled = counter(v[0]), counter(v[1]), times(v[2], time.Nanosecond)
				c.CPU.BurstPeriods, c.CPU.Burst = counter(v[3]), times(v[4], time.Nanosecond)
			}, "nr_periods", "nr_throttled", "throttled_time", "nr_bursts", "burst_time"),
			file("h", "cpu", "cpu.shares", func(c *host.CgroupSample) *int64 { return &c.CPU.Shares }),
			fields("q", "cpu", "cpu.cfs_quota_us", FirstLine, func(_ *sampling, c *host.CgroupSample, v []string) {
				if c.CPU.QuotaUS = counter(v[0]); v[0] == "-1" {
					c.CPU.QuotaUS = host.Unlimited
				}
			}),
			file("Q", "cpu", "cpu.cfs_period_us", func(c *host.CgroupSample) *int64 { return &c.CPU.PeriodUS }),
			fields("i", "blkio", "blkio.throttle.io_service_bytes_recursive", Lines, func(s *sampling, c *host.CgroupSample, v []string) {
				s.blkio(c, v, func(io *host.IOSample) (read, write, discard *int64) {
					return &io.ReadBytes, &io.WriteBytes, &io.DiscardBytes
				})
			}),
			fields("j", "blkio", "blkio.throttle.io_serviced_recursive", Lines, func(s *sampling, c *host.CgroupSample, v []string) {
				s.blkio(c, v, func(io *host.IOSample) (read, write, discard *int64) {
					return &io.ReadOps, &io.WriteOps, &io.DiscardOps
				})
			}),
			file("p", "pids", "pids.current", func(c *host.CgroupSample) *int64 { return &c.Pids }),
			file("P", "pids", "pids.max", func(c *host.CgroupSample) *int64 { return &c.PidsMax }),
			SampleFile{Code: "n", Dir: SampleBase(h), File: "cgroup.procs", Digest: LineCount,
				fill: func(_ *sampling, c *host.CgroupSample, v []string) { c.Processes = counter(v[0]) }})
	}
	return slices.DeleteFunc(files, func(f SampleFile) bool { return f.Dir == "" })
}

// SampleBase is the hierarchy in which Sample looks for cgroups. A runtime creates a cgroup under
// every controller.
func SampleBase(h Hierarchies) string {
	if h.Version == 2 {
		return h.V2
	}
	for _, c := range []string{"memory", "cpuacct", "cpu", "pids"} {
		if dir := h.V1[c]; dir != "" {
			return dir
		}
	}
	return ""
}

// Limits on data that a pod or a host can inflate. Sample omits entries beyond them.
const (
	// maxDigest is less than the budget of a line: a host with a thousand disks is not hostile. It has
	// room for maxDevices devices.
	maxDigest     = 48 << 10
	maxDevices    = 256      // of a cgroup
	maxIO         = 16 << 10 // devices of all cgroups
	MaxInterfaces = 64       // of a network
	maxNetworks   = 4 << 10
)

// ofPod matches the name of a pod's cgroup for either driver.
var ofPod = regexp.MustCompile(`(^|-)pod([0-9a-f][0-9a-f_-]+)(\.slice)?$`)

// SampledCgroup reports whether Sample reads the cgroup with that path: not those that a
// container makes below its own.
func SampledCgroup(p string) bool {
	_, nested := PodOfCgroup(path.Dir(path.Dir(p)))
	return !nested
}

// PodOfCgroup returns the UID of the pod with a cgroup of that path.
func PodOfCgroup(p string) (uid string, ok bool) {
	m := ofPod.FindStringSubmatch(path.Base(p))
	if m == nil {
		return "", false
	}
	return strings.ReplaceAll(m[2], "_", "-"), true
}

// Sample collects the content of the files that were read. Its methods ignore lines that they
// cannot parse.
type Sample struct {
	s                 sampling
	ofHost, ofCgroups map[string]SampleFile
	prefixes          [][2]string // of paths: that on the host, and that of the request
	cgroups           map[string]*host.CgroupSample
}

// NewSample begins a Sample. full are the paths of the trees of r on the host, in their order.
func NewSample(h Hierarchies, r host.SampleRequest, full []string) *Sample {
	s := &Sample{ofHost: map[string]SampleFile{}, ofCgroups: map[string]SampleFile{}, cgroups: map[string]*host.CgroupSample{}}
	s.s.Sampled = host.Sampled{Node: host.UnknownSample(), PidsMax: 0, Cgroups: map[string]host.CgroupSample{}, Networks: map[string][]host.Interface{}}
	for i := range r.Trees {
		s.prefixes = append(s.prefixes, [2]string{full[i], r.Trees[i]})
	}
	ofHost, ofCgroups := SampleFiles(h, r)
	for _, f := range ofHost {
		s.ofHost[f.Code] = f
	}
	for _, f := range ofCgroups {
		s.ofCgroups[f.Code] = f
	}
	return s
}

// Host adds the digest of a file of the host.
func (s *Sample) Host(code, digest string) { s.add(s.ofHost, code, digest, &s.s.Node) }

// Cgroup adds the digest of a file of a cgroup; "" is the root.
func (s *Sample) Cgroup(full, code, digest string) {
	if full == "" {
		s.add(s.ofCgroups, code, digest, &s.s.Node)
		return
	}
	p, ok := s.requested(full)
	if !ok {
		return
	}
	c := s.cgroups[p]
	if c == nil {
		unknown := host.UnknownSample()
		c = &unknown
		s.cgroups[p] = c
	}
	s.add(s.ofCgroups, code, digest, c)
}

// requested returns a path of the host as the request spells it.
func (s *Sample) requested(full string) (string, bool) {
	for _, p := range s.prefixes {
		if rest, ok := strings.CutPrefix(full, p[0]); ok && (rest == "" || rest[0] == '/') {
			return p[1] + rest, true
		}
	}
	return "", false
}

func (s *Sample) add(files map[string]SampleFile, code, digest string, c *host.CgroupSample) {
	f, ok := files[code]
	v := strings.Fields(digest)
	if !ok || len(v) == 0 || f.Digest == Values && len(v) != len(f.Keys) {
		return
	}
	f.fill(&s.s, c, v)
}

// Interface adds a line of /proc/net/dev, for the host if full is empty, or for the pod with the
// cgroup full.
func (s *Sample) Interface(full, line string) {
	i, ok := networkInterface(line)
	if !ok {
		return
	}
	if full == "" && len(s.s.Interfaces) < MaxInterfaces {
		s.s.Interfaces = append(s.s.Interfaces, i)
		return
	}
	p, ok := s.requested(full)
	if had := s.s.Networks[p]; ok && len(had) < MaxInterfaces && (had != nil || len(s.s.Networks) < maxNetworks) {
		s.s.Networks[p] = append(had, i)
	}
}

// Result returns the counters that the other methods have added.
func (s *Sample) Result() (host.Sampled, error) {
	out := s.s.Sampled
	if out.Uptime <= 0 || out.MemoryBytes <= 0 {
		return host.Sampled{}, errors.New("sample the host: it reports no uptime or no memory")
	}
	m := &out.Node.Memory
	if m.Usage == host.Unknown {
		// As runc does for the root cgroup of version 2, which counts only these.
		if m.Usage = m.Anon + m.File; m.Anon == host.Unknown || m.File == host.Unknown {
			m.Usage = max(out.MemoryBytes-s.s.free.memory, 0)
		}
	}
	if m.Swap == host.Unknown {
		m.Swap = max(out.SwapBytes-s.s.free.swap, 0)
	}
	m.Limit = out.MemoryBytes
	s.name(&out.Node)
	for p, c := range s.cgroups {
		s.name(c)
		out.Cgroups[p] = *c
	}
	return out, nil
}

// name names the devices of a sample.
func (s *Sample) name(c *host.CgroupSample) {
	for i := range c.IO {
		io := &c.IO[i]
		for _, d := range s.s.Disks {
			if d.Major == io.Major && d.Minor == io.Minor {
				io.Device = d.Name
				break
			}
		}
	}
}

// counter parses a number that is not negative, or "max".
func counter(v string) int64 {
	if v == "max" {
		return host.Unlimited
	}
	n, err := strconv.ParseUint(v, 10, 64)
	switch {
	case err != nil:
		return host.Unknown
	case n > unlimited:
		return host.Unlimited
	}
	return int64(n)
}

// times parses a number of units of time. A kernel does not count more than a time.Duration
// holds, which are 292 years.
func times(v string, unit time.Duration) time.Duration {
	n := counter(v)
	if n < 0 {
		return host.Unknown
	}
	return time.Duration(Times(n, int64(unit)))
}

func micros(v string) time.Duration { return times(v, time.Microsecond) }

// seconds parses "12345.67".
func seconds(v string) time.Duration {
	whole, part, _ := strings.Cut(v, ".")
	d := times(whole, time.Second)
	if len(part) > 9 {
		part = part[:9]
	}
	if nanos := times(part+strings.Repeat("0", 9-len(part)), time.Nanosecond); d >= 0 && nanos > 0 && d < math.MaxInt64-nanos {
		d += nanos
	}
	return max(d, 0)
}

// weightToShares is the inverse of sharesToWeight.
func weightToShares(weight int64) int64 {
	if weight < 1 || weight > 10000 {
		return host.Unknown
	}
	return 2 + (weight-1)*262142/9999
}

// pressure parses "some 0.00 0.00 0.00 0;full 0.00 0.00 0.00 0", split at blanks.
func pressure(v []string) *host.Pressure {
	var p host.Pressure
	for line := range strings.SplitSeq(strings.Join(v, " "), ";") {
		f := strings.Fields(line)
		if len(f) != 5 {
			continue
		}
		stall := host.Stall{Avg10: percent(f[1]), Avg60: percent(f[2]), Avg300: percent(f[3]), Total: max(micros(f[4]), 0)}
		switch f[0] {
		case "some":
			p.Some = stall
		case "full":
			p.Full = stall
		}
	}
	return &p
}

func percent(v string) float64 {
	f, err := strconv.ParseFloat(v, 64)
	if err != nil || !(f >= 0 && f <= 100) {
		return 0
	}
	return f
}

// device returns the entry of a device, "8:0"; nil if there is none or too many.
func (s *sampling) device(c *host.CgroupSample, id string) *host.IOSample {
	a, b, ok := strings.Cut(id, ":")
	major, minor := counter(a), counter(b)
	if !ok || major < 0 || minor < 0 {
		return nil
	}
	for i := range c.IO {
		if c.IO[i].Major == major && c.IO[i].Minor == minor {
			return &c.IO[i]
		}
	}
	if len(c.IO) == maxDevices || s.entries == maxIO {
		return nil
	}
	s.entries++
	c.IO = append(c.IO, host.IOSample{Major: major, Minor: minor})
	return &c.IO[len(c.IO)-1]
}

// io parses "8:0 READ WRITE READS WRITES DISCARD DISCARDS;…", the order of the kernel.
func (s *sampling) io(c *host.CgroupSample, v []string) {
	for line := range strings.SplitSeq(strings.Join(v, " "), ";") {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		d := s.device(c, f[0])
		if d == nil {
			continue
		}
		into := []*int64{&d.ReadBytes, &d.WriteBytes, &d.ReadOps, &d.WriteOps, &d.DiscardBytes, &d.DiscardOps}
		for i := range min(len(into), len(f)-1) {
			*into[i] = max(counter(f[i+1]), 0)
		}
	}
}

// disks parses lines of /proc/diskstats.
func (s *sampling) disks(v []string) {
	for line := range strings.SplitSeq(strings.Join(v, " "), ";") {
		f := strings.Fields(line)
		if len(f) < 14 || len(s.Disks) == maxDevices {
			continue
		}
		n := func(i int) int64 { return max(counter(f[i]), 0) }
		ms := func(i int) time.Duration { return max(times(f[i], time.Millisecond), 0) }
		s.Disks = append(s.Disks, host.Disk{Major: n(0), Minor: n(1), Name: strings.ToValidUTF8(f[2], "?"), Reads: n(3), ReadsMerged: n(4), SectorsRead: n(5), ReadTime: ms(6),
			Writes: n(7), WritesMerged: n(8), SectorsWritten: n(9), WriteTime: ms(10), InProgress: n(11), IOTime: ms(12), WeightedIOTime: ms(13)})
	}
}

// blkio parses "8:0 Read 5;8:0 Write 6;…;Total 11".
func (s *sampling) blkio(c *host.CgroupSample, v []string, of func(*host.IOSample) (read, write, discard *int64)) {
	for line := range strings.SplitSeq(strings.Join(v, " "), ";") {
		f := strings.Fields(line)
		if len(f) != 3 {
			continue
		}
		d := s.device(c, f[0])
		if d == nil {
			continue
		}
		read, write, discard := of(d)
		switch f[1] {
		case "Read":
			*read = max(counter(f[2]), 0)
		case "Write":
			*write = max(counter(f[2]), 0)
		case "Discard":
			*discard = max(counter(f[2]), 0)
		}
	}
}

// notOfInterest are the first letters of interfaces that a kubelet does not report either.
var notOfInterest = []string{"lo", "veth", "docker", "nerdctl"}

// networkInterface parses a line of /proc/net/dev.
func networkInterface(line string) (host.Interface, bool) {
	name, rest, ok := strings.Cut(strings.TrimSpace(strings.ToValidUTF8(line, "?")), ":")
	v := strings.Fields(rest)
	if !ok || len(v) != 16 || name == "" || slices.ContainsFunc(notOfInterest, func(p string) bool { return strings.HasPrefix(strings.ToLower(name), p) }) {
		return host.Interface{}, false
	}
	n := func(i int) int64 { return max(counter(v[i]), 0) }
	return host.Interface{Name: name, RxBytes: n(0), RxPackets: n(1), RxErrors: n(2), RxDropped: n(3),
		TxBytes: n(8), TxPackets: n(9), TxErrors: n(10), TxDropped: n(11)}, true
}
