package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/host"
)

const (
	// defaultFSType is the file system made on an empty device, as in the kubelet.
	defaultFSType = "ext4"
	// lookTime bounds one blkid, repairTime one fsck or mkfs.
	lookTime   = 10 * time.Second
	repairTime = 5 * time.Minute
)

// setUpDevice checks the block device that containers use.
func (m *Manager) setUpDevice(ctx context.Context, at string, readOnly bool, vs *volumeState) error {
	_, info, err := m.follow(ctx, at)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("path %q does not exist", at)
	case err != nil:
		return fmt.Errorf("look for %s: %w", at, err)
	case !isBlockDevice(info):
		return fmt.Errorf("path %q is not a block device", at)
	}
	vs.mount, vs.ready = Mount{Device: at, ReadOnly: readOnly}, true
	return nil
}

func isBlockDevice(info host.FileInfo) bool {
	return info.Mode&fs.ModeDevice != 0 && info.Mode&fs.ModeCharDevice == 0
}

// mountDevice mounts a block device's file system in the pod's directory, and makes one if the
// device is empty. Pods that share the device each mount it; the kernel has one file system for
// all.
func (m *Manager) mountDevice(ctx context.Context, device, dir string, pv *v1.PersistentVolume, readOnly bool) error {
	turn := m.deviceTurn(device)
	select {
	case turn <- struct{}{}:
		defer func() { <-turn }()
	case <-ctx.Done():
		return fmt.Errorf("mount %s: wait for another pod's mount of it: %w", device, ctx.Err())
	}
	want := defaultFSType
	if t := pv.Spec.Local.FSType; t != nil && *t != "" {
		want = *t
	}
	has, err := m.formatOf(ctx, device)
	switch {
	case err != nil:
		return fmt.Errorf("failed to get disk format of disk %s: %w", device, err)
	case has == "" && readOnly:
		return fmt.Errorf("cannot mount unformatted disk %s as we are manipulating it in read-only mode", device)
	case has == "":
		err = m.format(ctx, device, want)
	case !readOnly:
		err = m.repair(ctx, device)
	}
	if err != nil {
		return err
	}
	mount := host.Mount{Source: device, Target: dir, Type: want, Options: slices.Clone(pv.Spec.MountOptions)}
	err = m.cfg.Host.Mount(ctx, mount)
	if err != nil && readOnly {
		// First read-write, even for a pod that only reads: the kernel mounts a device one way for
		// all pods.
		mount.Options = append(mount.Options, "ro")
		err = m.cfg.Host.Mount(ctx, mount)
	}
	if err != nil && has != "" && has != want {
		err = fmt.Errorf("mount %s as %s, and what is on it is %s: %w", device, want, has, err)
		m.mismatched(pv, err)
		return err
	}
	if err != nil {
		return fmt.Errorf("mount %s as %s: %w", device, want, err)
	}
	return nil
}

// deviceTurn returns the semaphore of a device; a pod holds it while it works on the device.
func (m *Manager) deviceTurn(device string) chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.devices[device] == nil {
		m.devices[device] = make(chan struct{}, 1)
	}
	return m.devices[device]
}

// formatOf is the file system on a device, or what else is on it; empty if blkid finds nothing at
// all.
func (m *Manager) formatOf(ctx context.Context, device string) (string, error) {
	res, err := m.cfg.Host.Run(ctx, host.Command{Args: []string{"blkid", "-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", device}, Timeout: lookTime})
	if err != nil {
		return "", err
	}
	return parseFormat(res)
}

// parseFormat reads blkid's answer. If it is unclear, the device counts as not empty: Bowline
// creates a file system only if blkid says that there is nothing.
func parseFormat(res host.Result) (string, error) {
	switch {
	case res.ExitCode == 2 && len(strings.TrimSpace(string(res.Stdout))) == 0:
		return "", nil
	case res.ExitCode != 0:
		return "", fmt.Errorf("blkid: exit status %d: %s", res.ExitCode, outputLine(res))
	}
	format := ""
	for line := range strings.Lines(string(res.Stdout)) {
		switch name, value, _ := strings.Cut(strings.TrimSpace(line), "="); name {
		case "TYPE":
			format = value
		case "PTTYPE":
			return "unknown data, probably partitions", nil
		}
	}
	if format == "" {
		return "unknown data", nil
	}
	return format, nil
}

// format makes a file system, with the kubelet's options.
func (m *Manager) format(ctx context.Context, device, fsType string) error {
	args := []string{"mkfs." + fsType}
	switch fsType {
	case "ext3", "ext4":
		args = append(args, "-F", "-m0")
	case "xfs":
		args = append(args, "-f")
	}
	res, err := m.cfg.Host.Run(ctx, host.Command{Args: append(args, device), Timeout: repairTime})
	if err == nil && res.ExitCode != 0 {
		err = fmt.Errorf("exit status %d: %s", res.ExitCode, outputLine(res))
	}
	if err != nil {
		return fmt.Errorf("format of disk %q failed: type:(%q): %w", device, fsType, err)
	}
	return nil
}

// fsckUncorrected is the exit code of fsck for errors that it could not correct.
const fsckUncorrected = 4

// repair runs fsck, which corrects errors that need no confirmation. If fsck cannot run (it is missing, or
// another pod has mounted the device), the mount is tried anyway; it shows any errors.
func (m *Manager) repair(ctx context.Context, device string) error {
	res, err := m.cfg.Host.Run(ctx, host.Command{Args: []string{"fsck", "-a", device}, Timeout: repairTime})
	switch {
	case errors.Is(err, host.ErrUnreachable), ctx.Err() != nil:
		return fmt.Errorf("check the file system on %s: %w", device, err)
	case err == nil && res.ExitCode == fsckUncorrected:
		return fmt.Errorf("'fsck' found errors on device %s but could not correct them: %s", device, outputLine(res))
	}
	return nil
}

// outputLine is a program's output in one line.
func outputLine(res host.Result) string {
	line := strings.Join(strings.Fields(string(res.Stdout)+" "+string(res.Stderr)), " ")
	return strings.ToValidUTF8(line[:min(len(line), 1000)], "?")
}
