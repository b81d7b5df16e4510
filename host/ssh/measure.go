package ssh

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/host/internal/machine"
	"github.com/bowline-k8s/bowline/host/ssh/shell"
)

// Measure takes one round trip for any number of paths.
func (h *Host) Measure(ctx context.Context, cgroup string, paths ...string) (host.Measured, error) {
	return call(h, ctx, "Measure", shortDeadline, func(ctx context.Context) (host.Measured, error) {
		version, root := h.machine().hier.MemoryRoot()
		dir, limit, usage := "", "", ""
		if cgroup != "" && root != "" {
			full, err := h.cgroupPath(cgroup)
			if err != nil {
				return host.Measured{}, fmt.Errorf("measure %s: %w", h.name, err)
			}
			dir = path.Join(root, full)
			limit, usage = machine.CgroupMemoryFiles(version)
		}
		const what = "free resources of the host"
		var m host.Measured
		if err := h.read(ctx, "read", what, h.whole(what, shell.Request{Script: scriptMeasure, Args: append([]string{root, dir, limit, usage}, paths...)}),
			func(stdout []byte) (err error) {
				if err = checkFields(h.budget, what, stdout); err == nil {
					m, err = parseMeasured(stdout, version, root, dir, len(paths))
				}
				if err != nil {
					return fmt.Errorf("%s: %w", what, err)
				}
				return nil
			}); err != nil {
			return host.Measured{}, err
		}
		return m, nil
	})
}

// parseMeasured parses the output of scripts/measure.sh for that many paths. root and cgroup are its
// arguments.
func parseMeasured(data []byte, version int, root, cgroup string, paths int) (host.Measured, error) {
	v := parseFields(data)
	of := func(dir, file string) string {
		if dir == "" {
			return ""
		}
		return linesOf(v["lines"], dir+"/"+file)
	}
	meminfo := of("/proc", "meminfo")
	m := host.Measured{
		MemoryBytes:     machine.Meminfo([]byte(meminfo), "MemTotal"),
		WorkingSetBytes: machine.WorkingSet([]byte(meminfo), version, of(root, "memory.usage_in_bytes"), of(root, "memory.stat")),
		PidsMax:         machine.Smaller(number(of("/proc/sys/kernel", "pid_max")), number(of("/proc/sys/kernel", "threads-max"))),
		Pids:            machine.Threads(of("/proc", "loadavg")),
		OOMKills:        machine.OOMKills(of("/proc", "vmstat")),
	}
	limit, usage := machine.CgroupMemoryFiles(version)
	m.CgroupBytes, m.CgroupWorkingSetBytes = machine.CgroupMemory(version, of(cgroup, limit), of(cgroup, usage), of(cgroup, "memory.stat"))
	if m.MemoryBytes == 0 {
		return host.Measured{}, errors.New("the host reports no memory")
	}
	var err error
	if m.FileSystems, err = parseFileSystems(v, paths); err != nil {
		return host.Measured{}, err
	}
	return m, nil
}

// parseFileSystems parses what scripts/filesystems.sh prints for that many paths.
func parseFileSystems(fields map[string]string, paths int) ([]host.FileSystem, error) {
	var out []host.FileSystem
	devices := strings.Fields(fields["devices"])
	for line := range strings.Lines(fields["disks"]) {
		if len(out) >= min(paths, len(devices)) {
			break
		}
		n := strings.Fields(line)
		if len(n) != 5 {
			return nil, fmt.Errorf("a file system is %q", line)
		}
		size := number(n[0])
		out = append(out, host.FileSystem{Device: uint64(number(devices[len(out)])), Bytes: machine.Times(size, number(n[1])),
			FreeBytes: machine.Times(size, number(n[2])), Inodes: number(n[3]), InodesFree: number(n[4])})
	}
	if len(out) != paths || len(devices) != paths {
		return nil, fmt.Errorf("got %d of %d file systems", len(out), paths)
	}
	return out, nil
}

// linesOf returns the lines that begin with file and a colon, without these.
func linesOf(text, file string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if rest, found := strings.CutPrefix(line, file+":"); found {
			out.WriteString(rest)
		}
	}
	return out.String()
}

// DiskUsage is one request; the disk of the host determines how long it takes.
func (h *Host) DiskUsage(ctx context.Context, dirs ...string) ([]host.Usage, error) {
	if len(dirs) == 0 {
		return nil, nil
	}
	return call(h, ctx, "DiskUsage", treeDeadline, func(ctx context.Context) ([]host.Usage, error) {
		const what = "what directories hold"
		var out []host.Usage
		err := h.read(ctx, "read", what, h.whole(what, shell.Request{Script: scriptDiskUsage, Args: dirs}), func(stdout []byte) (err error) {
			if err = h.budget.Check(budget.Items, int64(bytes.Count(stdout, []byte("\n"))), what); err == nil {
				out, err = parseUsages(stdout, len(dirs))
			}
			return err
		})
		return out, err
	})
}

// parseUsages parses the output of scripts/diskusage.sh for that many directories.
func parseUsages(data []byte, dirs int) ([]host.Usage, error) {
	var out []host.Usage
	for line := range bytes.Lines(data) {
		n := strings.Fields(string(line[:min(len(line), 64)]))
		if len(n) != 2 || len(line) > 64 {
			return nil, fmt.Errorf("what directories hold: %.64q", line)
		}
		out = append(out, host.Usage{Bytes: machine.Times(number(n[0]), 1024), Inodes: number(n[1])})
	}
	if len(out) != dirs {
		return nil, fmt.Errorf("what directories hold: %d answers for %d", len(out), dirs)
	}
	return out, nil
}
