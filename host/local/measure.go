package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/internal/machine"
)

func (h *Host) Measure(ctx context.Context, cgroup string, paths ...string) (host.Measured, error) {
	return call(h, ctx, "Measure", shortDeadline, func(context.Context) (host.Measured, error) {
		mem, err := os.ReadFile("/proc/meminfo")
		if err != nil {
			return host.Measured{}, fmt.Errorf("measure %s: %w", h.name, err)
		}
		m := host.Measured{
			MemoryBytes: machine.Meminfo(mem, "MemTotal"),
			PidsMax:     machine.Smaller(number("/proc/sys/kernel/pid_max"), number("/proc/sys/kernel/threads-max")),
			Pids:        machine.Threads(oneLine("/proc/loadavg")),
		}
		vmstat, _ := os.ReadFile("/proc/vmstat")
		m.OOMKills = machine.OOMKills(string(vmstat))
		version, root := h.hier.MemoryRoot()
		usage, stat := "", []byte(nil)
		if root != "" {
			usage = oneLine(filepath.Join(root, "memory.usage_in_bytes"))
			stat, _ = os.ReadFile(filepath.Join(root, "memory.stat"))
		}
		m.WorkingSetBytes = machine.WorkingSet(mem, version, usage, string(stat))
		if cgroup != "" && root != "" {
			full, err := h.cgroupPath(cgroup)
			if err != nil {
				return host.Measured{}, fmt.Errorf("measure %s: %w", h.name, err)
			}
			dir := filepath.Join(root, full)
			limit, usage := machine.CgroupMemoryFiles(version)
			stat, _ := os.ReadFile(filepath.Join(dir, "memory.stat"))
			m.CgroupBytes, m.CgroupWorkingSetBytes = machine.CgroupMemory(version, oneLine(filepath.Join(dir, limit)), oneLine(filepath.Join(dir, usage)), string(stat))
		}
		for _, path := range paths {
			f, err := fileSystem(path)
			if err != nil {
				return host.Measured{}, fmt.Errorf("measure the file system of %s: %w", path, err)
			}
			m.FileSystems = append(m.FileSystems, f)
		}
		return m, nil
	})
}

func fileSystem(path string) (host.FileSystem, error) {
	for {
		var st unix.Statfs_t
		var at unix.Stat_t
		err := unix.Statfs(path, &st)
		if err == nil {
			err = unix.Stat(path, &at)
		}
		switch {
		case err == nil:
			return host.FileSystem{Device: at.Dev, Bytes: int64(st.Blocks) * st.Frsize, FreeBytes: int64(st.Bavail) * st.Frsize,
				Inodes: int64(st.Files), InodesFree: int64(st.Ffree)}, nil
		case !errors.Is(err, unix.ENOENT) || path == "/":
			return host.FileSystem{}, err
		}
		path = filepath.Dir(path)
	}
}

// DiskUsage walks the directories while other processes write to them; it does not count files
// that disappear during the walk.
func (h *Host) DiskUsage(ctx context.Context, dirs ...string) ([]host.Usage, error) {
	return call(h, ctx, "DiskUsage", treeDeadline, func(ctx context.Context) ([]host.Usage, error) {
		out := make([]host.Usage, len(dirs))
		for i, dir := range dirs {
			var err error
			if out[i], err = diskUsage(ctx, dir); err != nil {
				return nil, fmt.Errorf("what %s holds: %w", dir, err)
			}
		}
		return out, nil
	})
}

func diskUsage(ctx context.Context, dir string) (host.Usage, error) {
	var u host.Usage
	var top unix.Stat_t
	if err := unix.Lstat(dir, &top); err != nil {
		if errors.Is(err, unix.ENOENT) {
			err = nil
		}
		return u, err
	}
	linked := map[uint64]bool{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(path, &st)
		}
		switch {
		case err != nil: // removed, or not readable
			return nil
		case st.Dev != top.Dev && d.IsDir():
			return fs.SkipDir
		case st.Dev != top.Dev, linked[st.Ino]:
			return nil
		case st.Nlink > 1 && !d.IsDir():
			linked[st.Ino] = true
		}
		u.Bytes += st.Blocks * 512
		u.Inodes++
		return nil
	})
	return u, err
}
