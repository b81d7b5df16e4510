package local

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/bowline-k8s/bowline/host"
)

// ensureV1 makes the cgroup in every hierarchy that has a controller.
func (h hierarchies) ensureV1(full string, r host.CgroupResources) error {
	points := make([]string, 0, len(h.by))
	for point := range h.by {
		points = append(points, point)
	}
	slices.Sort(points)
	for _, point := range points {
		if err := makeV1(point, full, slices.Contains(h.by[point], "cpuset")); err != nil {
			return err
		}
	}
	for _, s := range settingsV1(r) {
		point, ok := h.v1[s.controller]
		if !ok {
			if s.optional {
				continue
			}
			return fmt.Errorf("the %s controller is not mounted", s.controller)
		}
		if err := s.write(filepath.Join(point, full)); err != nil {
			if s.optional && errors.Is(err, fs.ErrNotExist) {
				continue
			}
			return err
		}
	}
	return nil
}

// makeV1 makes the directories one by one: a new cpuset is empty, and a process
// cannot enter it before it has the processors and memory nodes of its parent.
func makeV1(point, full string, cpuset bool) error {
	dir := point
	for e := range strings.SplitSeq(strings.Trim(full, "/"), "/") {
		parent := dir
		dir = filepath.Join(dir, e)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if !cpuset {
			continue
		}
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			now, err := os.ReadFile(filepath.Join(dir, file))
			if err != nil {
				return err
			}
			if len(bytes.TrimSpace(now)) > 0 {
				continue
			}
			above, err := os.ReadFile(filepath.Join(parent, file))
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(dir, file), above, 0o644); err != nil {
				return fmt.Errorf("copy %s from %s: %w", file, parent, err)
			}
		}
	}
	return nil
}

// settingsV1 in the order of writing: a quota needs its period first.
func settingsV1(r host.CgroupResources) []setting {
	var s []setting
	if r.CPUShares != 0 {
		s = append(s, setting{controller: "cpu", file: "cpu.shares", value: strconv.FormatUint(min(max(r.CPUShares, 2), 262144), 10)})
	}
	if r.CPUPeriodUS != 0 {
		s = append(s, setting{controller: "cpu", file: "cpu.cfs_period_us", value: strconv.FormatUint(r.CPUPeriodUS, 10)})
	}
	if r.CPUQuotaUS != 0 {
		s = append(s, setting{controller: "cpu", file: "cpu.cfs_quota_us", value: strconv.FormatInt(max(r.CPUQuotaUS, -1), 10)})
	}
	if r.MemoryBytes != 0 {
		s = append(s, setting{controller: "memory", file: "memory.limit_in_bytes", value: strconv.FormatInt(max(r.MemoryBytes, -1), 10)})
	}
	if r.PidsMax != 0 {
		s = append(s, setting{controller: "pids", file: "pids.max", value: orMax(r.PidsMax), optional: true})
	}
	for _, size := range sortedSizes(r.HugePageBytes) {
		s = append(s, setting{controller: "hugetlb", file: "hugetlb." + size + ".limit_in_bytes",
			value: strconv.FormatInt(r.HugePageBytes[size], 10), optional: true})
	}
	return s
}

func orMax(n int64) string {
	if n < 0 {
		return "max"
	}
	return strconv.FormatInt(n, 10)
}

func sortedSizes(m map[string]int64) []string {
	sizes := make([]string, 0, len(m))
	for size := range m {
		sizes = append(sizes, size)
	}
	slices.Sort(sizes)
	return sizes
}
