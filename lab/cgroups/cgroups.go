// Package cgroups places processes in the lab's cgroups, in every mounted hierarchy, and empties
// and removes these cgroups. Membership identifies the lab's processes: a child cannot leave it,
// and a recycled pid is not in it.
package cgroups

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Hierarchy is one mounted cgroup hierarchy.
type Hierarchy struct {
	Mount   string // mount point
	V2      bool
	Options []string // of a v1 hierarchy: its controllers or name=...
}

// Has reports whether a v1 hierarchy carries the controller.
func (h Hierarchy) Has(controller string) bool { return slices.Contains(h.Options, controller) }

// Mounted lists the hierarchies mounted in the caller's mount namespace.
func Mounted() ([]Hierarchy, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	found := parseMountinfo(string(data))
	if len(found) == 0 {
		return nil, errors.New("no cgroup hierarchy is mounted: mount -t cgroup2 none /sys/fs/cgroup")
	}
	return found, nil
}

// parseMountinfo picks the hierarchies out of a mountinfo file (proc(5)). A
// hierarchy that is mounted twice is listed once, by its first mount point.
func parseMountinfo(mountinfo string) []Hierarchy {
	var found []Hierarchy
	seen := map[string]bool{}
	for line := range strings.Lines(mountinfo) {
		before, after, ok := strings.Cut(strings.TrimSpace(line), " - ")
		fields, tail := strings.Fields(before), strings.Fields(after)
		if !ok || len(fields) < 5 || len(tail) < 3 || seen[fields[2]] {
			continue
		}
		switch tail[0] {
		case "cgroup2":
			found = append(found, Hierarchy{Mount: fields[4], V2: true})
		case "cgroup":
			var options []string
			for o := range strings.SplitSeq(tail[2], ",") {
				if o != "rw" && o != "ro" && o != "xattr" && o != "clone_children" && !strings.HasPrefix(o, "release_agent=") {
					options = append(options, o)
				}
			}
			found = append(found, Hierarchy{Mount: fields[4], Options: options})
		default:
			continue
		}
		seen[fields[2]] = true
	}
	return found
}

// Make creates the cgroup in every hierarchy, ready to take processes.
func Make(path string) error {
	all, err := Mounted()
	if err != nil {
		return err
	}
	for _, h := range all {
		if err := h.make(path); err != nil {
			return fmt.Errorf("make cgroup %s in %s: %w", path, h.Mount, err)
		}
	}
	return nil
}

func (h Hierarchy) make(path string) error {
	dir := h.Mount
	for part := range strings.SplitSeq(path, "/") {
		parent := dir
		dir = filepath.Join(dir, part)
		if h.V2 {
			h.delegate(parent)
		}
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if h.Has("cpuset") {
			if err := inheritCpuset(parent, dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// delegate enables every controller of a v2 cgroup for its children. The kernel refuses this for a
// cgroup with processes of its own, except for the machine's root; the lab's cgroups have none.
func (h Hierarchy) delegate(dir string) {
	data, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return
	}
	for controller := range strings.FieldsSeq(string(data)) {
		// One by one: a refused controller must not prevent the others.
		_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+controller), 0)
	}
}

// inheritCpuset fills the empty files of a new v1 cpuset from its parent. No process can join the
// cpuset before that.
func inheritCpuset(parent, dir string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		present, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			return err
		}
		if len(bytes.TrimSpace(present)) > 0 {
			continue
		}
		value, err := os.ReadFile(filepath.Join(parent, file))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, file), value, 0); err != nil {
			return err
		}
	}
	return nil
}

// Join moves the calling process into the cgroup in every hierarchy.
func Join(path string) error {
	if err := Make(path); err != nil {
		return err
	}
	all, err := Mounted()
	if err != nil {
		return err
	}
	for _, h := range all {
		if err := os.WriteFile(filepath.Join(h.Mount, path, "cgroup.procs"), []byte("0"), 0); err != nil {
			return fmt.Errorf("join cgroup %s in %s: %w", path, h.Mount, err)
		}
	}
	return nil
}

// Delegate enables the controllers of a v2 cgroup for its children. Call it after the processes
// that made the cgroup have moved below it.
func Delegate(path string) error {
	all, err := Mounted()
	if err != nil {
		return err
	}
	for _, h := range all {
		if h.V2 {
			h.delegate(filepath.Join(h.Mount, path))
		}
	}
	return nil
}

// Weigh gives the cgroup the CPU weight of factor ordinary cgroups, which counts when processors
// are short.
func Weigh(path string, factor int) error {
	all, err := Mounted()
	if err != nil {
		return err
	}
	for _, h := range all {
		file, normal := "cpu.shares", 1024
		if h.V2 {
			file, normal = "cpu.weight", 100
		} else if !h.Has("cpu") {
			continue
		}
		f, err := os.OpenFile(filepath.Join(h.Mount, path, file), os.O_WRONLY, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue // a v2 hierarchy beside v1 ones has no controllers
		}
		if err != nil {
			return err
		}
		_, err = f.WriteString(strconv.Itoa(factor * normal))
		if err = errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("weigh cgroup %s: %w", path, err)
		}
	}
	return nil
}

// Processes lists the processes in the cgroup and below it, in any hierarchy.
func Processes(path string) ([]int, error) {
	all, err := Mounted()
	if err != nil {
		return nil, err
	}
	pids := map[int]bool{}
	for _, h := range all {
		for _, dir := range tree(filepath.Join(h.Mount, path)) {
			data, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			if err != nil {
				continue // removed in the meantime
			}
			for field := range strings.FieldsSeq(string(data)) {
				if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
					pids[pid] = true
				}
			}
		}
	}
	list := make([]int, 0, len(pids))
	for pid := range pids {
		list = append(list, pid)
	}
	slices.Sort(list)
	return list, nil
}

// Kill kills every process in the cgroup and below it, and waits until none is left or the context
// ends.
func Kill(ctx context.Context, path string) error {
	all, err := Mounted()
	if err != nil {
		return err
	}
	for {
		for _, h := range all {
			h.thaw(path)
			_ = os.WriteFile(filepath.Join(h.Mount, path, "cgroup.kill"), []byte("1"), 0) // v2, Linux 5.14
		}
		pids, err := Processes(path)
		if err != nil {
			return err
		}
		if len(pids) == 0 {
			return nil
		}
		for _, pid := range pids {
			killMember(pid, path)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("processes %v of cgroup %s survive SIGKILL: %w", pids, path, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// thaw thaws a v1 freezer, so that its frozen processes can die.
func (h Hierarchy) thaw(path string) {
	if !h.Has("freezer") {
		return
	}
	for _, dir := range tree(filepath.Join(h.Mount, path)) {
		_ = os.WriteFile(filepath.Join(dir, "freezer.state"), []byte("THAWED"), 0)
	}
}

// killMember kills pid if it is in the cgroup. It opens the pidfd before it reads the membership,
// so it kills the process that it checked.
func killMember(pid int, path string) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil || !member(string(data), path) {
		return
	}
	_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
}

// member reports whether a /proc/PID/cgroup file places its process at or below path.
func member(file, path string) bool {
	for line := range strings.Lines(file) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) == 3 && (parts[2] == "/"+path || strings.HasPrefix(parts[2], "/"+path+"/")) {
			return true
		}
	}
	return false
}

// Remove removes the cgroup and all cgroups below it from every hierarchy. They must have no
// processes.
func Remove(ctx context.Context, path string) error {
	all, err := Mounted()
	if err != nil {
		return err
	}
	for _, h := range all {
		dirs := tree(filepath.Join(h.Mount, path))
		slices.Reverse(dirs)
		for _, dir := range dirs {
			for {
				err := os.Remove(dir)
				if err == nil || errors.Is(err, fs.ErrNotExist) {
					break
				}
				// The kernel releases the last process a little after its death.
				select {
				case <-ctx.Done():
					return fmt.Errorf("remove cgroup %s: %w", dir, err)
				case <-time.After(20 * time.Millisecond):
				}
			}
		}
	}
	return nil
}

// tree lists a directory and the directories below it, parents first.
func tree(root string) []string {
	var dirs []string
	_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // removed in the meantime
		}
		if d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	return dirs
}
