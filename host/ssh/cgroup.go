package ssh

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/host/internal/machine"
)

// cgroupPath returns p below the configured root.
func (h *Host) cgroupPath(p string) (string, error) {
	if !machine.CleanAbs(p) || p == "/" || strings.ContainsAny(p, "\n|") {
		return "", fmt.Errorf("cgroup %q is not a clean absolute path below /", p)
	}
	if h.machine().hier.Version == 0 {
		return "", fmt.Errorf("cgroup %s: no cgroups are mounted", p)
	}
	if machine.IsSlice(p) {
		return machine.SliceBelow(h.cgroupRoot, p)
	}
	return path.Join(h.cgroupRoot, p), nil
}

// cgroupDeadline gives systemd more time, because it may need it for a job.
func cgroupDeadline(path string) time.Duration {
	if machine.IsSlice(path) {
		return mountDeadline
	}
	return shortDeadline
}

// EnsureCgroup skips files that hold the wanted value already.
func (h *Host) EnsureCgroup(ctx context.Context, p string, r host.CgroupResources) error {
	return run(h, ctx, "EnsureCgroup", cgroupDeadline(p), func(ctx context.Context) error {
		full, err := h.cgroupPath(p)
		if err != nil {
			return err
		}
		// Slices too: systemd has no property for some limits, and a process may enter the
		// directories before systemd has created them.
		slice := machine.IsSlice(full)
		if slice {
			r = machine.ForSystemd(r)
		}
		script, args, hier := scriptEnsureV2, []string(nil), h.machine().hier
		if hier.Version == 2 {
			args = ensureV2Args(hier, full, r)
		} else {
			script = scriptEnsureV1
			if args, err = ensureV1Args(hier, full, r); err != nil {
				return fmt.Errorf("make cgroup %s: %w", full, err)
			}
		}
		if slice {
			script = map[int]string{1: scriptEnsureSliceV1, 2: scriptEnsureSliceV2}[hier.Version]
			args = append(sliceArgs(hier, full, r), args...)
		}
		_, err = h.script(ctx, "make cgroup", full, script, args, nil)
		return err
	})
}

// sliceArgs are the first arguments of scripts/ensureslice.sh: where slices appear, the calls
// that create its parents, and the calls that create the slice and set its limits.
func sliceArgs(hier machine.Hierarchies, full string, r host.CgroupResources) []string {
	var above []string
	all := machine.Slices(full)
	for _, p := range all[:len(all)-1] {
		above = append(above, p+"|"+strings.Join(machine.StartSlice(hier.Version, p, host.CgroupResources{}), " "))
	}
	return []string{strings.Join(hier.All, " "), strings.Join(above, "\n"),
		strings.Join(machine.StartSlice(hier.Version, full, r), " "), strings.Join(machine.SetSlice(hier.Version, full, r), " ")}
}

func ensureV1Args(hier machine.Hierarchies, full string, r host.CgroupResources) ([]string, error) {
	points := make([]string, 0, len(hier.By))
	for point := range hier.By {
		points = append(points, point)
	}
	slices.Sort(points)
	var have []string
	for c := range hier.V1 {
		have = append(have, c)
	}
	slices.Sort(have)
	var lines []string
	for _, s := range machine.SettingsV1(r) {
		point, ok := hier.V1[s.Controller]
		if !ok && s.Optional {
			continue
		}
		if !ok {
			return nil, fmt.Errorf("the %s controller is not mounted", s.Controller)
		}
		lines = append(lines, settingLine(s, point, full))
	}
	cpuset := ""
	if point, ok := hier.V1["cpuset"]; ok {
		cpuset = point
	}
	args := []string{full, cpuset, strings.Join(have, " "), strings.Join(lines, "\n")}
	for _, point := range points {
		args = append(args, path.Join(point, full))
	}
	return args, nil
}

func ensureV2Args(hier machine.Hierarchies, full string, r host.CgroupResources) []string {
	var lines []string
	for _, s := range machine.SettingsV2(r) {
		lines = append(lines, settingLine(s, hier.V2, full))
	}
	return []string{full, hier.V2, strings.Join(machine.PodControllers, " "), strings.Join(lines, "\n")}
}

// settingLine is a setting in the syntax of scripts/cgroup.sh.
func settingLine(s machine.Setting, point, full string) string {
	optional := "no"
	if s.Optional {
		optional = "yes"
	}
	return strings.Join([]string{s.Controller, optional, s.Value, path.Join(point, full, s.File)}, "|")
}

// RemoveCgroup waits up to a second for processes that are about to end.
func (h *Host) RemoveCgroup(ctx context.Context, p string, kill bool) error {
	// The script checks repeatedly, in each hierarchy: the deadline lets a slow host get to the
	// killing.
	return run(h, ctx, "RemoveCgroup", mountDeadline, func(ctx context.Context) error {
		full, err := h.cgroupPath(p)
		if errors.Is(err, machine.ErrNoSlice) {
			return nil
		}
		if err != nil {
			return err
		}
		args := []string{"no"}
		if kill {
			args[0] = "yes"
		}
		script := scriptRemoveCgroup
		if machine.IsSlice(full) {
			script = scriptRemoveSlice
			args = append([]string{strings.Join(machine.StopSlice(full), " "), machine.SliceSettings(full)}, args...)
		}
		_, err = h.script(ctx, "remove cgroup", full, script, append(args, h.cgroupDirs(full)...), nil)
		return err
	})
}

func (h *Host) cgroupDirs(full string) []string {
	points := h.machine().hier.All
	dirs := make([]string, len(points))
	for i, point := range points {
		dirs[i] = path.Join(point, full)
	}
	return dirs
}

// ListCgroups returns an empty list if p exists in no hierarchy.
func (h *Host) ListCgroups(ctx context.Context, p string) ([]string, error) {
	return call(h, ctx, "ListCgroups", shortDeadline, func(ctx context.Context) ([]string, error) {
		full := h.cgroupRoot
		if p != "/" {
			var err error
			if full, err = h.cgroupPath(p); errors.Is(err, machine.ErrNoSlice) {
				return nil, nil
			}
			if err != nil {
				return nil, err
			}
		}
		args := append([]string{strings.TrimSuffix(full, "/")}, h.machine().hier.All...)
		res, err := h.script(ctx, "list cgroups in", full, scriptListCgroups, args, nil)
		if err == nil {
			err = h.budget.Check(budget.Items, int64(bytes.Count(res.Stdout, []byte{0})), "the list of cgroups")
		}
		if err != nil {
			return nil, err
		}
		return slices.Compact(slices.Sorted(slices.Values(machine.SliceNames(h.cgroupRoot, parseNames(res.Stdout))))), nil
	})
}

// parseNames parses strings that each end with a NUL, sorts them and removes duplicates.
func parseNames(data []byte) []string {
	text := strings.TrimSuffix(string(data), "\x00")
	if text == "" {
		return nil
	}
	names := strings.Split(text, "\x00")
	slices.Sort(names)
	return slices.Compact(names)
}
