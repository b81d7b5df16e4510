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

// exitMount is how a script says that it found a mount.
const exitMount = 32

// RemoveTree looks for mounts before it touches anything, in a mount namespace in which
// none appears later. What is mounted in the tree meanwhile is detached where the
// directory goes; what is in it stays. The rest is what the machine's rm does: GNU's goes
// from directory to directory by open descriptors, without following links, and enters no
// other file system. Elsewhere the script itself walks, and checks each directory that it
// enters. Where the machine gives no mount namespace, a bind of the same file system that
// is mounted while it runs is not noticed.
func (h *Host) RemoveTree(ctx context.Context, p string) error {
	return run(h, ctx, "RemoveTree", treeDeadline, func(ctx context.Context) error {
		if err := machine.Absolute("remove tree", p); err != nil {
			return err
		}
		p = path.Clean(p)
		if p == "/" {
			return errors.New("remove tree: refusing to remove /")
		}
		flag := ""
		if h.machine().oneFS {
			flag = "--one-file-system"
		}
		res, err := h.script(ctx, "remove tree", p, scriptRemoveTree, []string{p, path.Dir(p), path.Base(p), flag}, nil)
		switch {
		case res.Code == exitMount:
			return fmt.Errorf("remove tree %s: %s: %w", p, messages(res.Stderr), host.ErrMountInside)
		case errors.Is(err, syscall.EBUSY), err != nil && strings.Contains(string(res.Stderr), "different device"):
			return fmt.Errorf("%w: %w", err, host.ErrMountInside)
		}
		return err
	})
}

// ChownGroup never follows a link and stays on the file system of path, also where a pod
// swaps names for links meanwhile. The machine does it in a mount namespace whose kernel
// follows no links (Linux 5.10, and a mount(8) that knows nosymfollow). Elsewhere it goes
// from directory to directory and opens each file, which takes some milliseconds a file,
// and leaves the modes of FIFOs, sockets and devices.
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
