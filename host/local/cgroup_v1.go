package local

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/internal/machine"
)

// ensureV1 creates the cgroup in every hierarchy that has a controller.
func ensureV1(h machine.Hierarchies, full string, r host.CgroupResources) error {
	points := make([]string, 0, len(h.By))
	for point := range h.By {
		points = append(points, point)
	}
	slices.Sort(points)
	for _, point := range points {
		if err := makeV1(point, full, slices.Contains(h.By[point], "cpuset")); err != nil {
			return err
		}
	}
	for _, s := range machine.SettingsV1(r) {
		point, ok := h.V1[s.Controller]
		if !ok {
			if s.Optional {
				continue
			}
			return fmt.Errorf("the %s controller is not mounted", s.Controller)
		}
		if err := writeSetting(s, filepath.Join(point, full)); err != nil {
			if s.Optional && errors.Is(err, fs.ErrNotExist) {
				continue
			}
			return err
		}
	}
	return nil
}

// makeV1 creates the directories one by one: a new cpuset is empty, and a process can enter it
// only after the CPUs and memory nodes of its parent were copied.
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
