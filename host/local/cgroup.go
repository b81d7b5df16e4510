package local

import (
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
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/internal/machine"
)

// cgroupPath returns path below the configured root.
func (h *Host) cgroupPath(path string) (string, error) {
	if !machine.CleanAbs(path) || path == "/" {
		return "", fmt.Errorf("cgroup %q is not a clean absolute path below /", path)
	}
	if h.hier.Version == 0 {
		return "", fmt.Errorf("cgroup %s: no cgroups are mounted on %s", path, h.name)
	}
	if machine.IsSlice(path) {
		return machine.SliceBelow(h.cgroupRoot, path)
	}
	return filepath.Join(h.cgroupRoot, path), nil
}

// cgroupDeadline gives systemd more time, because it may need it for a job.
func cgroupDeadline(path string) time.Duration {
	if machine.IsSlice(path) {
		return mountDeadline
	}
	return shortDeadline
}

// EnsureCgroup skips files that hold the wanted value already.
func (h *Host) EnsureCgroup(ctx context.Context, path string, r host.CgroupResources) error {
	return run(h, ctx, "EnsureCgroup", cgroupDeadline(path), func(ctx context.Context) error {
		full, err := h.cgroupPath(path)
		if err != nil {
			return err
		}
		if machine.IsSlice(full) {
			r = machine.ForSystemd(r)
			if err := h.startSlice(ctx, full, r); err != nil {
				return fmt.Errorf("make cgroup %s: %w", full, err)
			}
		}
		// Slices too: systemd has no property for some limits, and a process may enter the
		// directories before systemd has created them.
		if h.hier.Version == 2 {
			err = ensureV2(h.hier.V2, full, r)
		} else {
			err = ensureV1(h.hier, full, r)
		}
		if err != nil {
			return fmt.Errorf("make cgroup %s: %w", full, err)
		}
		return nil
	})
}

// RemoveCgroup waits up to a second for processes that are about to end.
func (h *Host) RemoveCgroup(ctx context.Context, path string, kill bool) error {
	return run(h, ctx, "RemoveCgroup", cgroupDeadline(path), func(ctx context.Context) error {
		full, err := h.cgroupPath(path)
		if errors.Is(err, machine.ErrNoSlice) {
			return nil
		}
		if err != nil {
			return err
		}
		if machine.IsSlice(full) {
			if err := h.stopSlice(ctx, full, kill); err != nil {
				return fmt.Errorf("remove cgroup %s: %w", full, err)
			}
			kill = false
		}
		var dirs []string
		for _, point := range h.hier.All {
			dirs = append(dirs, filepath.Join(point, full))
		}
		return whileBusy(ctx, dirs, kill, func() error {
			var errs []error
			for _, dir := range dirs {
				errs = append(errs, removeCgroupDir(dir))
			}
			return errors.Join(errs...)
		})
	})
}

// whileBusy repeats f while it returns EBUSY, for about a second. With kill it then kills the
// processes in dirs, and repeats f for another second.
func whileBusy(ctx context.Context, dirs []string, kill bool, f func() error) error {
	first := wait.Backoff{Duration: 5 * time.Millisecond, Factor: 2, Steps: 7}
	for retry := first; ; {
		err := f()
		switch {
		case !errors.Is(err, unix.EBUSY):
			return err
		case retry.Steps == 0 && !kill:
			return err
		case retry.Steps == 0:
			for _, dir := range dirs {
				killCgroupDir(dir)
			}
			kill, retry = false, first
		}
		if pauseErr := pause(ctx, retry.Step()); pauseErr != nil {
			return errors.Join(err, pauseErr)
		}
	}
}

// killCgroupDir kills the processes in a cgroup and below it. It ignores errors, because the
// removal that follows reports them.
func killCgroupDir(dir string) {
	children, err := subdirs(dir)
	if err != nil {
		return
	}
	for _, c := range children {
		killCgroupDir(filepath.Join(dir, c))
	}
	procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return
	}
	for _, field := range strings.Fields(string(procs)) {
		// 0 is a process of another PID namespace; kill(0) would kill our own process group.
		if pid, err := strconv.Atoi(field); err == nil && pid > 1 {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

func removeCgroupDir(dir string) error {
	children, err := subdirs(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, c := range children {
		if err := removeCgroupDir(filepath.Join(dir, c)); err != nil {
			return err
		}
	}
	err = unix.Rmdir(dir)
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EBUSY):
		procs, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		return fmt.Errorf("remove cgroup %s: processes %v are still in it: %w", dir, strings.Fields(string(procs)), err)
	}
	return &fs.PathError{Op: "remove cgroup", Path: dir, Err: err}
}

// ListCgroups returns an empty list if path exists in no hierarchy.
func (h *Host) ListCgroups(ctx context.Context, path string) ([]string, error) {
	return call(h, ctx, "ListCgroups", shortDeadline, func(ctx context.Context) ([]string, error) {
		full := h.cgroupRoot
		if path != "/" {
			var err error
			if full, err = h.cgroupPath(path); errors.Is(err, machine.ErrNoSlice) {
				return nil, nil
			}
			if err != nil {
				return nil, err
			}
		}
		var names []string
		for _, point := range h.hier.All {
			children, err := subdirs(filepath.Join(point, full))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
			names = append(names, children...)
		}
		names = machine.SliceNames(h.cgroupRoot, names)
		slices.Sort(names)
		return slices.Compact(names), nil
	})
}

func subdirs(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// writeSetting writes the file unless it holds the value already.
func writeSetting(s machine.Setting, dir string) error {
	p := filepath.Join(dir, s.File)
	if old, err := os.ReadFile(p); err == nil && strings.Join(strings.Fields(string(old)), " ") == s.Value {
		return nil
	}
	// Without O_CREAT: if the file does not exist, the controller does not either.
	f, err := os.OpenFile(p, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(s.Value)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %q to %s: %w", s.Value, p, err)
	}
	return nil
}
