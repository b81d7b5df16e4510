package ssh

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/host/internal/machine"
	"github.com/bowline-k8s/bowline/host/ssh/shell"
)

var propagations = []string{"private", "rprivate", "shared", "rshared", "slave", "rslave", "unbindable", "runbindable"}

// mountArgs splits the options of m into the arguments of scripts/mount.sh.
func mountArgs(m host.Mount) (fsType, options, again, propagation string) {
	fsType = m.Type
	var rest, flags []string
	for _, o := range m.Options {
		switch {
		case o == "bind" && fsType != "rbind":
			fsType = "bind"
		case o == "rbind":
			fsType = "rbind"
		case slices.Contains(propagations, o):
			flags = append(flags, o)
		case o == "defaults" || o == "rw":
		default:
			rest = append(rest, o)
		}
	}
	options = strings.Join(rest, ",")
	if fsType == "bind" || fsType == "rbind" {
		options, again = "", options
	}
	return fsType, options, again, strings.Join(flags, " ")
}

// Mount does nothing if the same is mounted already, so that callers can retry after a lost
// answer. If the source of a bind mount is a file, the target is one.
func (h *Host) Mount(ctx context.Context, m host.Mount) error {
	return run(h, ctx, "Mount", mountDeadline, func(ctx context.Context) error {
		if err := machine.Absolute("mount on", m.Target); err != nil {
			return err
		}
		target := path.Clean(m.Target)
		fsType, options, again, propagation := mountArgs(m)
		text := scriptMount
		if machine.Shared(m.Type) {
			text, fsType, options = scriptMountShared, m.Type, machine.ShareOptions(m.Options)
		}
		if strings.HasPrefix(m.Source, "-") || fsType == "" {
			return fmt.Errorf("mount on %s: source %q, type %q", m.Target, m.Source, m.Type)
		}
		_, err := h.script(ctx, "mount on", target, text,
			[]string{m.Source, target, path.Dir(target), fsType, options, again, propagation}, nil)
		return err
	})
}

// MakeShared does nothing if dir is in a shared mount already.
func (h *Host) MakeShared(ctx context.Context, dir string) error {
	return run(h, ctx, "MakeShared", mountDeadline, func(ctx context.Context) error {
		if err := machine.Absolute("make shared", dir); err != nil {
			return err
		}
		_, err := h.script(ctx, "make shared", dir, scriptMakeShared, []string{path.Clean(dir)}, nil)
		return err
	})
}

// UndoShared detaches the mount. An open file stays accessible through the directory below it.
func (h *Host) UndoShared(ctx context.Context, dir string) error {
	return run(h, ctx, "UndoShared", mountDeadline, func(ctx context.Context) error {
		if err := machine.Absolute("undo the sharing of", dir); err != nil {
			return err
		}
		_, err := h.script(ctx, "undo the sharing of", dir, scriptUndoShared, []string{path.Clean(dir)}, nil)
		return err
	})
}

// unmountBusy is the exit code of scripts/unmount.sh for a mount that is in use.
const unmountBusy = 35

// Unmount removes all mounts that are stacked at target.
func (h *Host) Unmount(ctx context.Context, target string) error {
	return run(h, ctx, "Unmount", mountDeadline, func(ctx context.Context) error {
		if err := machine.Absolute("unmount", target); err != nil {
			return err
		}
		target := path.Clean(target)
		res, err := h.script(ctx, "unmount", target, scriptUnmount, []string{target, path.Dir(target), "5"}, nil)
		switch {
		case err != nil && res.Code == unmountBusy:
			return parseBusy(target, res.Stdout)
		case err != nil && res.Code == exitMount:
			return fmt.Errorf("unmount %s: %s: %w", target, messages(res.Stderr), host.ErrMountInside)
		}
		return err
	})
}

// parseBusy reads the type of the file system, its source as in mountinfo, and the processes
// that use it, one per line.
func parseBusy(target string, out []byte) *host.BusyError {
	const longest = 128
	var lines []string
	for l := range strings.SplitSeq(strings.ToValidUTF8(strings.TrimSpace(string(out)), "?"), "\n") {
		if len(lines) > 2*machine.MaxBusyUsers {
			break
		}
		lines = append(lines, strings.ToValidUTF8(l[:min(len(l), longest)], "?"))
	}
	lines = append(lines, "", "")
	e := &host.BusyError{Target: target, Type: lines[0], Source: lines[1]}
	for _, l := range lines[2:] {
		if l != "" && len(e.Users) < machine.MaxBusyUsers {
			e.Users = append(e.Users, l)
		}
	}
	return e
}

// ListMounts returns targets below dir as the caller spells it, even if dir contains links.
func (h *Host) ListMounts(ctx context.Context, dir string) ([]host.Mount, error) {
	return call(h, ctx, "ListMounts", mountDeadline, func(ctx context.Context) ([]host.Mount, error) {
		if err := machine.Absolute("list mounts of", dir); err != nil {
			return nil, err
		}
		var mounts []host.Mount
		// A pod may have made the mounts, so a list that is too large does not end the driver.
		most := int(h.budget.Limit(budget.OutputBytes))
		err := h.read(ctx, "list mounts of", dir, shell.Request{Script: scriptListMounts, Args: []string{path.Clean(dir), itoa(int64(most))}, MaxStdout: most, Inside: true},
			func(stdout []byte) (err error) {
				if err = checkMounts(h.budget, stdout); err == nil && len(stdout) == most {
					err = fmt.Errorf("the list is too large: %w", host.ErrTooLarge)
				}
				if err == nil {
					mounts, err = parseMounts(dir, stdout)
				}
				if err != nil {
					return fmt.Errorf("list mounts of %s: %w", dir, err)
				}
				return nil
			})
		return mounts, err
	})
}

func parseMounts(dir string, data []byte) ([]host.Mount, error) {
	before, rest, _ := bytes.Cut(data, []byte{0})
	info, whole := bytes.CutSuffix(rest, []byte{0})
	if !whole {
		return nil, errors.New("the answer is cut off")
	}
	entries, err := machine.ParseMountInfo(info)
	if err != nil {
		return nil, err
	}
	return machine.MountsBelow(dir, string(before), entries), nil
}
