package ssh

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"syscall"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/internal/machine"
)

// exitMount is the exit code of a script that found a mount.
const exitMount = 32

// RemoveTree checks for mounts before it removes anything, in a mount namespace that receives no
// new mounts. If another process mounts in the tree in the meantime, that mount is detached when
// its directory is removed, and its content stays. GNU rm does the rest: it walks by open
// descriptors, follows no links and enters no other file system. Without GNU rm the script
// itself walks, and checks each directory that it enters. If the host allows no mount namespace,
// the script does not notice a bind mount of the same file system that appears during the run.
func (h *Host) RemoveTree(ctx context.Context, p string, unmount ...string) error {
	return run(h, ctx, "RemoveTree", treeDeadline, func(ctx context.Context) error {
		if err := machine.Absolute("remove tree", p); err != nil {
			return err
		}
		p = path.Clean(p)
		if p == "/" {
			return errors.New("remove tree: refusing to remove /")
		}
		if err := machine.CheckBelow(p, unmount); err != nil {
			return fmt.Errorf("remove tree: %w", err)
		}
		f, flag := h.machine(), ""
		if f.oneFS {
			flag = "--one-file-system"
		}
		res, err := h.script(ctx, "remove tree", p, scriptRemoveTree.on(f), append([]string{p, path.Dir(p), path.Base(p), flag}, unmount...), nil)
		switch {
		case res.Code == exitMount:
			return fmt.Errorf("remove tree %s: %s: %w", p, messages(res.Stderr), host.ErrMountInside)
		// For a mount inside the tree rm has these words, in the C locale, and no exit code of its own.
		case errors.Is(err, syscall.EBUSY), err != nil && strings.Contains(string(res.Stderr), "different device"):
			return fmt.Errorf("%w: %w", err, host.ErrMountInside)
		}
		return err
	})
}

// ChownGroup never follows a link and stays on the file system of path, even if a pod replaces
// names with links at the same time. It runs in a mount namespace where the kernel follows no
// links (Linux 5.10, and a mount(8) that knows nosymfollow). Without that the script walks from
// directory to directory and opens each file, which takes some milliseconds per file, and leaves
// the modes of FIFOs, sockets and devices unchanged.
func (h *Host) ChownGroup(ctx context.Context, p string, gid int64, readOnly bool) error {
	return run(h, ctx, "ChownGroup", treeDeadline, func(ctx context.Context) error {
		if err := machine.Absolute("change group of", p); err != nil {
			return err
		}
		p = path.Clean(p)
		if p == "/" {
			return errors.New("change group: refusing to change /")
		}
		bits := "rw"
		if readOnly {
			bits = "r"
		}
		_, err := h.script(ctx, "chown", p, scriptChownGroup, []string{p, itoa(gid), bits}, nil)
		return err
	})
}
