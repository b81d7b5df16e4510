package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/internal/machine"
)

// ensureV2 creates the cgroup and enables the controllers in all its parents.
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
	for _, s := range machine.SettingsV2(r) {
		if !slices.Contains(have, s.Controller) {
			if s.Optional {
				continue
			}
			return fmt.Errorf("the %s controller is not available in %s", s.Controller, dir)
		}
		if err := writeSetting(s, dir); err != nil {
			if s.Optional && errors.Is(err, fs.ErrNotExist) {
				continue
			}
			return err
		}
	}
	return nil
}

// openControllers enables the available controllers for the children of dir, in one write.
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
	for _, c := range machine.PodControllers {
		if slices.Contains(have, c) && !slices.Contains(open, c) {
			add = append(add, "+"+c)
		}
	}
	if len(add) == 0 {
		return nil
	}
	err = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte(strings.Join(add, " ")), 0o644)
	if errors.Is(err, unix.EBUSY) {
		return hint.Add(fmt.Errorf("cgroup %s has processes of its own, so its children cannot have controllers: %w", dir, err), "choose another cgroupRoot or move them")
	}
	return err
}

func words(file string) ([]string, error) {
	data, err := os.ReadFile(file)
	return strings.Fields(string(data)), err
}
