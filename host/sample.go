package host

import "time"

// SampleDepth is the number of levels that Sample reads below each of its trees: QoS class, pod,
// container.
const SampleDepth = 3

// SampleRequest says what Sample reads.
type SampleRequest struct {
	// Trees are paths of cgroups, as for EnsureCgroup. Sample reads each of them and SampleDepth
	// levels below it. One that does not exist is missing in the result.
	Trees []string
	// Detail reads every counter, and the networks of the host and of the pods. Otherwise Sample
	// reads what CPU time, memory and swap are computed from, and the other counters are Unknown.
	Detail bool
	// OpenFiles also counts the open files of the processes in each cgroup. It needs Detail, and
	// costs more than everything else.
	OpenFiles bool
	// HostNetwork are the UIDs of pods in the trees that use the network of the host. Their
	// networks are not read.
	HostNetwork []string
	// Paths are measured as by Measure.
	Paths []string
}

// Unknown is the value of a counter that the host does not have or that Sample did not read.
const Unknown = -1

// Sampled are counters of a host at one time. They count since boot, or since the cgroup exists.
type Sampled struct {
	// Uptime is the time since the host booted, with the time that it slept. It was read before
	// the counters.
	Uptime time.Duration
	// Node is the root cgroup. Where that has no counter, it is the host's.
	Node CgroupSample
	// MemoryBytes and SwapBytes are the totals of the host.
	MemoryBytes, SwapBytes int64
	// PidsMax is the limit of threads, Pids their current number.
	PidsMax, Pids int64
	// Disks are the block devices of the host.
	Disks []Disk
	// Interfaces are the network interfaces of the host.
	Interfaces []Interface
	// Cgroups are the cgroups of the trees, by path, with the path of the request as prefix.
	Cgroups map[string]CgroupSample
	// Networks are the network interfaces of pods, by the path of the pod's cgroup.
	Networks map[string][]Interface
	// FileSystems are those of the requested paths, in their order.
	FileSystems []FileSystem
}

// CgroupSample are the counters and limits of a cgroup, including the cgroups below it.
type CgroupSample struct {
	CPU    CPUSample
	Memory MemorySample
	// IO are the block devices that the cgroup has used.
	IO []IOSample
	// Pids is the number of threads, PidsMax its limit: Unlimited, if there is none. Processes is
	// the number of processes in the cgroup itself.
	Pids, PidsMax, Processes int64
	// Files are the open file descriptors of the processes in the cgroup itself, Sockets those that
	// are sockets. FilesMax is the soft limit of its first process, or Unlimited; that of the root is
	// init's. Of a cgroup with very many processes or files they are Unknown.
	Files, Sockets, FilesMax int64
	// Pressure are the pressure stall counters, with nil for those that the kernel does not have.
	Pressure struct{ CPU, Memory, IO *Pressure }
}

// Unlimited is a limit that does not exist.
const Unlimited = 1<<63 - 1

// CPUSample is about CPU time.
type CPUSample struct {
	Usage, User, System time.Duration
	// Periods are those of a CPU quota.
	Periods, ThrottledPeriods, BurstPeriods int64
	Throttled, Burst                        time.Duration
	// Shares are on the scale of cgroup v1. QuotaUS is Unlimited without a quota.
	Shares, QuotaUS, PeriodUS int64
}

// MemorySample is about memory, in bytes where the name says nothing else.
type MemorySample struct {
	// Usage is the memory in use, MaxUsage its highest value.
	Usage, MaxUsage int64
	// Anon is anonymous memory (RSS), File the page cache.
	Anon, File, Mapped, Kernel int64
	ActiveFile, InactiveFile   int64
	Dirty, Writeback           int64
	Swap                       int64
	// Limit and SwapLimit are Unlimited if there is none. The swap limit of cgroup v1 includes
	// memory. Reservation is memory.min, or the soft limit of version 1.
	Limit, SwapLimit, Reservation int64

	PageFaults, MajorPageFaults    int64
	PagesScanned, PagesReclaimed   int64
	RefaultsFile, RefaultsAnon     int64
	LimitFailures                  int64 // attempts to exceed the limit, version 1
	HighEvents, MaxEvents, OOMKill int64
}

// WorkingSet is the part of the usage that the kernel cannot free at once; Unknown if the usage
// is.
func (m MemorySample) WorkingSet() int64 {
	if m.Usage == Unknown {
		return Unknown
	}
	return max(m.Usage-max(m.InactiveFile, 0), 0)
}

// IOSample is about one block device.
type IOSample struct {
	Major, Minor                             int64
	Device                                   string // "sda"; empty if the kernel does not name it
	ReadBytes, WriteBytes, ReadOps, WriteOps int64
	DiscardBytes, DiscardOps                 int64
}

// Disk is a block device of the host, with its I/O counters.
type Disk struct {
	Major, Minor                                int64
	Name                                        string // "sda"
	Reads, ReadsMerged, SectorsRead             int64
	Writes, WritesMerged, SectorsWritten        int64
	ReadTime, WriteTime, IOTime, WeightedIOTime time.Duration
	InProgress                                  int64
}

// Pressure are the stalls of a cgroup for one resource.
type Pressure struct{ Some, Full Stall }

// Stall is the time in which some or all tasks waited: in total, and its percentage of the last
// 10, 60 and 300 seconds.
type Stall struct {
	Total                time.Duration
	Avg10, Avg60, Avg300 float64
}

// Interface is a network interface, with its counters of received and sent data.
type Interface struct {
	Name                                    string
	RxBytes, RxPackets, RxErrors, RxDropped int64
	TxBytes, TxPackets, TxErrors, TxDropped int64
}

// UnknownSample has no counter.
func UnknownSample() CgroupSample {
	return CgroupSample{
		CPU: CPUSample{Usage: Unknown, User: Unknown, System: Unknown, Periods: Unknown, ThrottledPeriods: Unknown,
			BurstPeriods: Unknown, Throttled: Unknown, Burst: Unknown, Shares: Unknown, QuotaUS: Unknown, PeriodUS: Unknown},
		Memory: MemorySample{Usage: Unknown, MaxUsage: Unknown, Anon: Unknown, File: Unknown, Mapped: Unknown, Kernel: Unknown,
			ActiveFile: Unknown, InactiveFile: Unknown, Dirty: Unknown, Writeback: Unknown, Swap: Unknown, Limit: Unknown,
			SwapLimit: Unknown, Reservation: Unknown, PageFaults: Unknown, MajorPageFaults: Unknown, PagesScanned: Unknown,
			PagesReclaimed: Unknown, RefaultsFile: Unknown, RefaultsAnon: Unknown, LimitFailures: Unknown, HighEvents: Unknown,
			MaxEvents: Unknown, OOMKill: Unknown},
		Pids: Unknown, PidsMax: Unknown, Processes: Unknown,
		Files: Unknown, Sockets: Unknown, FilesMax: Unknown,
	}
}
