package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/bowline-k8s/bowline/host"
)

// podControllers are handed down to the pods' cgroups where the machine has them.
var podControllers = []string{"cpu", "cpuset", "hugetlb", "io", "memory", "pids"}

// ensureV2 makes the cgroup and opens the controllers on the way down to it.
func ensureV2(point, full string, r host.CgroupResources) error {
	dir := point
	for e := range strings.SplitSeq(strings.Trim(full, "/"), "/") {
		if err := openControllers(dir); err != nil {
			return err
		}
		dir = filepath.Join(dir, e)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	have, err := words(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, s := range settingsV2(r) {
		if !slices.Contains(have, s.controller) {
			if s.optional {
				continue
			}
			return fmt.Errorf("the %s controller is not available in %s", s.controller, dir)
		}
		if err := s.write(dir); err != nil {
			if s.optional && errors.Is(err, fs.ErrNotExist) {
				continue
			}
			return err
		}
	}
	return nil
}

// openControllers enables what dir has for its children, in one write.
func openControllers(dir string) error {
	have, err := words(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	open, err := words(filepath.Join(dir, "cgroup.subtree_control"))
	if err != nil {
		return err
	}
	var add []string
	for _, c := range podControllers {
		if slices.Contains(have, c) && !slices.Contains(open, c) {
			add = append(add, "+"+c)
		}
	}
	if len(add) == 0 {
		return nil
	}
	err = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte(strings.Join(add, " ")), 0o644)
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("cgroup %s has processes of its own, so its children cannot have controllers; choose another cgroupRoot or move them: %w", dir, err)
	}
	return err
}

func words(file string) ([]string, error) {
	data, err := os.ReadFile(file)
	return strings.Fields(string(data)), err
}

func settingsV2(r host.CgroupResources) []setting {
	var s []setting
	if r.CPUShares != 0 {
		s = append(s, setting{controller: "cpu", file: "cpu.weight", value: strconv.FormatUint(sharesToWeight(r.CPUShares), 10)})
	}
	if r.CPUQuotaUS != 0 || r.CPUPeriodUS != 0 {
		quota, period := "max", r.CPUPeriodUS
		if r.CPUQuotaUS > 0 {
			quota = strconv.FormatInt(r.CPUQuotaUS, 10)
		}
		if period == 0 {
			period = 100_000
		}
		s = append(s, setting{controller: "cpu", file: "cpu.max", value: quota + " " + strconv.FormatUint(period, 10)})
	}
	if r.MemoryBytes != 0 {
		s = append(s, setting{controller: "memory", file: "memory.max", value: orMax(r.MemoryBytes)})
	}
	if r.PidsMax != 0 {
		s = append(s, setting{controller: "pids", file: "pids.max", value: orMax(r.PidsMax), optional: true})
	}
	for _, size := range sortedSizes(r.HugePageBytes) {
		s = append(s, setting{controller: "hugetlb", file: "hugetlb." + size + ".max",
			value: strconv.FormatInt(r.HugePageBytes[size], 10), optional: true})
	}
	return s
}

// sharesToWeight maps [2, 262144] to [1, 10000] in a straight line, as the
// kubelet does for its pods' cgroups.
func sharesToWeight(shares uint64) uint64 {
	shares = min(max(shares, 2), 262144)
	return 1 + (shares-2)*9999/262142
}
