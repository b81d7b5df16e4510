package machine

import (
	"strconv"
	"strings"

	"github.com/bowline-k8s/bowline/host"
)

// Bounds on counting open files. A process has slots for its files, at least 64, and at least as many as
// it has files. Counting a file costs a few microseconds, and a process about twenty.
const (
	processesOfCgroup = 1 << 10
	processesOfSample = 8 << 10
	slotsOfCgroup     = 128 << 10
	slotsOfSample     = 512 << 10
)

// openFiles is the file of the processes of a cgroup. Its digest has the number of files, the number of
// sockets, and the limit, each "-" if it is unknown. The keys are the bounds, for a script.
func openFiles(h Hierarchies) SampleFile {
	var bounds []string
	for _, n := range []int{processesOfCgroup, processesOfSample, slotsOfCgroup, slotsOfSample} {
		bounds = append(bounds, strconv.Itoa(n))
	}
	return SampleFile{Code: "o", Dir: SampleBase(h), File: "cgroup.procs", Digest: OpenFiles, Keys: bounds,
		fill: func(_ *sampling, c *host.CgroupSample, v []string) {
			if len(v) != 3 {
				return
			}
			c.Files, c.Sockets, c.FilesMax = counter(v[0]), counter(v[1]), counter(v[2])
			if v[2] == "unlimited" {
				c.FilesMax = host.Unlimited
			}
		}}
}

// Proc reads files below /proc, which belong to processes that end at any time.
type Proc interface {
	// Read returns the content of a file of a process, "status"; ended: the process is gone.
	Read(pid, file string) (content string, ended bool, err error)
	// Files counts the open files of a process, and the sockets among them, up to most files. ok is
	// false if it has more, or if they cannot be read.
	Files(pid string, most int) (files, sockets int, ended, ok bool)
}

// Walk counts the open files of a sample's cgroups, within its bounds.
type Walk struct {
	proc             Proc
	processes, slots int // that are left
}

// NewWalk begins a Walk.
func NewWalk(p Proc) *Walk { return &Walk{proc: p, processes: processesOfSample, slots: slotsOfSample} }

// Digest is the digest of a cgroup's processes, whose PIDs are lines of procs. root: it is the root
// cgroup.
func (w *Walk) Digest(procs string, root bool) string {
	pids := strings.Fields(procs)
	limit := "-"
	if root {
		limit = w.limit("1")
	} else if len(pids) > 0 {
		limit = w.limit(pids[0])
	}
	files, sockets, ok := w.count(pids)
	if !ok {
		return "- - " + limit
	}
	return strconv.Itoa(files) + " " + strconv.Itoa(sockets) + " " + limit
}

// count counts the files of the processes.
func (w *Walk) count(pids []string) (files, sockets int, ok bool) {
	if len(pids) > min(processesOfCgroup, w.processes) {
		return 0, 0, false
	}
	var alive []string
	slots := 0
	for _, pid := range pids {
		if pid == "0" { // a process that this one cannot see
			return 0, 0, false
		}
		status, ended, err := w.proc.Read(pid, "status")
		switch n := slotsOf(status); {
		case ended:
		case err != nil || n < 0:
			return 0, 0, false
		default:
			alive, slots = append(alive, pid), slots+n
		}
	}
	if slots > min(slotsOfCgroup, w.slots) {
		return 0, 0, false
	}
	w.processes, w.slots = w.processes-len(alive), w.slots-slots
	for _, pid := range alive {
		n, of, ended, ok := w.proc.Files(pid, slotsOfCgroup)
		switch {
		case ended:
		case !ok:
			return 0, 0, false
		default:
			files, sockets = files+n, sockets+of
		}
	}
	return files, sockets, true
}

// slotsOf is how many files a process has room for without growing its table; -1 if its status does not
// say.
func slotsOf(status string) int {
	_, rest, ok := strings.Cut(status, "\nFDSize:")
	if v := strings.Fields(rest); ok && len(v) > 0 {
		if n, err := strconv.Atoi(v[0]); err == nil && n >= 0 {
			return n
		}
	}
	return -1
}

// limit is the soft limit of a process's open files.
func (w *Walk) limit(pid string) string {
	limits, _, _ := w.proc.Read(pid, "limits")
	_, rest, ok := strings.Cut(limits, "\nMax open files ")
	if v := strings.Fields(rest); ok && len(v) > 0 {
		return v[0]
	}
	return "-"
}
