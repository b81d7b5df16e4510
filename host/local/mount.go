package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/moby/sys/mountinfo"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/internal/machine"
)

// mountFlags by option name; propagationFlags are the changes of propagation, which need a mount
// call of their own.
var (
	mountFlags = map[string]uintptr{
		"ro": unix.MS_RDONLY, "nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV, "noexec": unix.MS_NOEXEC,
		"noatime": unix.MS_NOATIME, "nodiratime": unix.MS_NODIRATIME, "relatime": unix.MS_RELATIME,
		"strictatime": unix.MS_STRICTATIME, "sync": unix.MS_SYNCHRONOUS, "dirsync": unix.MS_DIRSYNC,
		"bind": unix.MS_BIND, "rbind": unix.MS_BIND | unix.MS_REC, "rw": 0, "defaults": 0,
	}
	propagationFlags = map[string]uintptr{
		"private": unix.MS_PRIVATE, "rprivate": unix.MS_PRIVATE | unix.MS_REC,
		"shared": unix.MS_SHARED, "rshared": unix.MS_SHARED | unix.MS_REC,
		"slave": unix.MS_SLAVE, "rslave": unix.MS_SLAVE | unix.MS_REC,
		"unbindable": unix.MS_UNBINDABLE, "runbindable": unix.MS_UNBINDABLE | unix.MS_REC,
	}
)

// parseMountOptions splits options into flags, propagation and data for the file system.
func parseMountOptions(options []string) (flags, propagation uintptr, data string) {
	var rest []string
	for _, o := range options {
		if f, ok := mountFlags[o]; ok {
			flags |= f
		} else if f, ok := propagationFlags[o]; ok {
			propagation |= f
		} else {
			rest = append(rest, o)
		}
	}
	return flags, propagation, strings.Join(rest, ",")
}

// Mount does nothing if the same is mounted already, so that callers can retry after a lost
// answer. If the source of a bind mount is a file, the target is one.
func (h *Host) Mount(ctx context.Context, m host.Mount) error {
	return run(h, ctx, "Mount", mountDeadline, func(ctx context.Context) error {
		if err := machine.Absolute("mount on", m.Target); err != nil {
			return err
		}
		if machine.Shared(m.Type) {
			return mountShared(ctx, m)
		}
		flags, propagation, data := parseMountOptions(m.Options)
		fsType := m.Type
		if fsType == "bind" {
			fsType = ""
			flags |= unix.MS_BIND
		}
		bind := flags&unix.MS_BIND != 0
		if err := makeTarget(m, bind); err != nil {
			return err
		}
		already, err := mounted(m, bind)
		if err != nil {
			return err
		}
		if already {
			return propagate(m, propagation)
		}
		if err := unix.Mount(m.Source, m.Target, fsType, flags, data); err != nil {
			return fmt.Errorf("mount %s (%s) on %s: %w", m.Source, m.Type, m.Target, err)
		}
		// The kernel ignores all other flags of a bind mount until a remount.
		if rest := flags &^ (unix.MS_BIND | unix.MS_REC); bind && rest != 0 {
			if err := unix.Mount("", m.Target, "", unix.MS_REMOUNT|unix.MS_BIND|rest, ""); err != nil {
				return errors.Join(fmt.Errorf("mount %s: set %v: %w", m.Target, m.Options, err), unix.Unmount(m.Target, unix.MNT_DETACH))
			}
		}
		if err := propagate(m, propagation); err != nil {
			return errors.Join(err, unix.Unmount(m.Target, unix.MNT_DETACH))
		}
		return nil
	})
}

func propagate(m host.Mount, propagation uintptr) error {
	if propagation == 0 {
		return nil
	}
	if err := unix.Mount("", m.Target, "", propagation, ""); err != nil {
		return fmt.Errorf("mount %s: set propagation %v: %w", m.Target, m.Options, err)
	}
	return nil
}

// MakeShared does nothing if dir is in a shared mount already.
func (h *Host) MakeShared(ctx context.Context, dir string) error {
	return run(h, ctx, "MakeShared", mountDeadline, func(context.Context) error {
		if err := machine.Absolute("make shared", dir); err != nil {
			return err
		}
		if err := mkdirParents(dir, 0o750); err != nil {
			return err
		}
		entries, err := readMountInfo()
		if err != nil {
			return err
		}
		real := resolve(dir)
		of := machine.MountOf(entries, real)
		if of != nil && machine.Propagates(of) {
			return nil
		}
		if of == nil || of.Mountpoint != real {
			if err := unix.Mount(real, real, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
				return fmt.Errorf("mount %s on itself: %w", real, err)
			}
		}
		if err := unix.Mount("", real, "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("make %s shared: %w", real, err)
		}
		return nil
	})
}

func makeTarget(m host.Mount, bind bool) error {
	if bind {
		st, err := os.Stat(m.Source)
		if err != nil {
			return fmt.Errorf("mount on %s: source: %w", m.Target, err)
		}
		if !st.IsDir() {
			if err := mkdirParents(dirOf(m.Target), 0o750); err != nil {
				return err
			}
			f, err := os.OpenFile(m.Target, unix.O_CREAT|unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o640)
			if err != nil {
				return err
			}
			return f.Close()
		}
	}
	return mkdirParents(m.Target, 0o750)
}

func dirOf(p string) string { return p[:strings.LastIndexByte(p, '/')+1] }

// mounted reports whether the topmost mount at the target is what m asks for.
func mounted(m host.Mount, bind bool) (bool, error) {
	if !maybeMountPoint(m.Target) {
		return false, nil
	}
	entries, err := readMountInfo()
	if err != nil {
		return false, err
	}
	top := machine.TopMount(entries, resolve(m.Target))
	if top == nil {
		return false, nil
	}
	if !bind {
		return top.FSType == m.Type && top.Source == m.Source, nil
	}
	var a, b unix.Stat_t
	if err := errors.Join(unix.Stat(m.Source, &a), unix.Stat(m.Target, &b)); err != nil {
		return false, fmt.Errorf("mount on %s: %w", m.Target, err)
	}
	return a.Dev == b.Dev && a.Ino == b.Ino, nil
}

// UndoShared detaches the mount. An open file stays accessible through the directory below it.
func (h *Host) UndoShared(ctx context.Context, dir string) error {
	return run(h, ctx, "UndoShared", mountDeadline, func(context.Context) error {
		if err := machine.Absolute("undo the sharing of", dir); err != nil {
			return err
		}
		entries, err := readMountInfo()
		if err != nil {
			return err
		}
		real := resolve(dir)
		if !machine.OnItself(entries, real) {
			return nil
		}
		if err := unix.Unmount(real, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", real, err)
		}
		return nil
	})
}

// Unmount removes all mounts that are stacked at target.
func (h *Host) Unmount(ctx context.Context, target string) error {
	return run(h, ctx, "Unmount", mountDeadline, func(ctx context.Context) error {
		if err := machine.Absolute("unmount", target); err != nil {
			return err
		}
		shared, err := sharedAt(target)
		if err != nil {
			return err
		}
		for range 64 {
			if err := ctx.Err(); err != nil {
				return err
			}
			if shared {
				if done, err := unmountShared(ctx, target); err != nil {
					return err
				} else if done {
					continue
				}
			}
			err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW)
			if errors.Is(err, unix.EBUSY) {
				err = detach(ctx, target)
			}
			switch {
			case err == nil:
			case errors.Is(err, host.ErrBusy), errors.Is(err, host.ErrMountInside):
				return err
			case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
				return nil // not a mount point, or does not exist
			case errors.Is(err, unix.EPERM):
				// Without the permission to unmount, the error is EPERM even if target is not a
				// mount point.
				if is, infoErr := isMountPoint(target); infoErr == nil && !is {
					return nil
				}
				fallthrough
			default:
				return &fs.PathError{Op: "unmount", Path: target, Err: err}
			}
		}
		return fmt.Errorf("unmount %s: still mounted after 64 rounds", target)
	})
}

// detach handles a mount that is in use: it detaches the mount if nothing can be lost.
func detach(ctx context.Context, target string) error {
	at, err := topAt(target)
	switch {
	case err != nil:
		return err
	case at.top == nil:
		return unix.EINVAL // unmounted in the meantime
	case at.inside != "":
		return at.hasInside(target)
	case !machine.Detachable(at.top):
		return busy(ctx, target, at.real, at.top)
	}
	return unix.Unmount(target, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
}

// maybeMountPoint asks the kernel about target alone, which is much cheaper than to read all
// mounts. It returns true if the kernel does not know (before 5.8), and on errors.
func maybeMountPoint(target string) bool {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, target, unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC, 0, &st)
	return err != nil || st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0 || st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

func isMountPoint(target string) (bool, error) {
	entries, err := readMountInfo()
	if err != nil {
		return false, err
	}
	real := resolve(target)
	return slices.ContainsFunc(entries, func(e *mountinfo.Info) bool { return e.Mountpoint == real }), nil
}

// ListMounts returns targets below dir as the caller spells it, even if dir contains links.
func (h *Host) ListMounts(ctx context.Context, dir string) ([]host.Mount, error) {
	return call(h, ctx, "ListMounts", mountDeadline, func(ctx context.Context) ([]host.Mount, error) {
		if err := machine.Absolute("list mounts of", dir); err != nil {
			return nil, err
		}
		real := resolve(dir)
		entries, err := readMountsOf(strings.TrimPrefix(path.Base(real), "/"))
		if err != nil {
			return nil, err
		}
		return machine.MountsBelow(dir, real, entries), nil
	})
}
