package local

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/internal/machine"
)

// systemd calls systemd with busctl, which is part of it.
func systemd(ctx context.Context, args []string) (said string, err error) {
	cmd := exec.CommandContext(ctx, "busctl", args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	said = string(bytes.TrimSpace(out))
	switch {
	case err == nil:
		return said, nil
	case said == "":
		return said, fmt.Errorf("busctl: %w", err)
	}
	return said, fmt.Errorf("busctl: %s: %w", said, err)
}

// startSlice creates the slice and its missing parents; if the slice exists, it sets its limits.
func (h *Host) startSlice(ctx context.Context, full string, r host.CgroupResources) error {
	all := machine.Slices(full)
	for _, above := range all[:len(all)-1] {
		if slices.ContainsFunc(h.hier.All, func(point string) bool { return isDir(filepath.Join(point, above)) }) {
			continue
		}
		if said, err := systemd(ctx, machine.StartSlice(h.hier.Version, above, host.CgroupResources{})); err != nil && !machine.SliceExists(said) {
			return fmt.Errorf("systemd failed to create the slice %s: %w", path.Base(above), err)
		}
	}
	said, err := systemd(ctx, machine.StartSlice(h.hier.Version, full, r))
	if err == nil {
		return nil
	}
	if !machine.SliceExists(said) {
		return fmt.Errorf("systemd failed to create the slice: %w", err)
	}
	set := machine.SetSlice(h.hier.Version, full, r)
	if set == nil {
		return nil
	}
	if _, err := systemd(ctx, set); err != nil {
		return fmt.Errorf("systemd failed to set the limits of the slice: %w", err)
	}
	return nil
}

// stopSlice stops a slice. Stopping it would end the processes in it, so stopSlice first waits a
// second for those that are about to end, and with kill kills the rest.
func (h *Host) stopSlice(ctx context.Context, full string, kill bool) error {
	var dirs []string
	for _, point := range h.hier.All {
		if dir := filepath.Join(point, full); isDir(dir) {
			dirs = append(dirs, dir)
		}
	}
	if len(dirs) == 0 {
		return nil
	}
	if err := whileBusy(ctx, dirs, kill, func() error {
		for _, dir := range dirs {
			if busy := processesBelow(dir); busy != "" {
				return fmt.Errorf("processes %s are still in it: %w", busy, unix.EBUSY)
			}
		}
		return nil
	}); err != nil {
		return err
	}
	if said, err := systemd(ctx, machine.StopSlice(full)); err != nil && !machine.SliceMissing(said) {
		return fmt.Errorf("systemd failed to stop the slice: %w", err)
	}
	return os.RemoveAll(machine.SliceSettings(full))
}

// processesBelow returns the processes of a cgroup and of its descendants.
func processesBelow(dir string) string {
	procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return ""
	}
	all := strings.Fields(string(procs))
	children, err := subdirs(dir)
	if err == nil {
		for _, c := range children {
			if more := processesBelow(filepath.Join(dir, c)); more != "" {
				all = append(all, more)
			}
		}
	}
	return strings.Join(all, " ")
}
