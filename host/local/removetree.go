package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/internal/machine"
)

// RemoveTree checks for mounts before it removes anything, and again at every step, because pods
// write to these directories while it runs. It holds a descriptor of each directory on its way,
// so that a link put in place of one cannot lead it outside.
func (h *Host) RemoveTree(ctx context.Context, path string, unmount ...string) error {
	return run(h, ctx, "RemoveTree", treeDeadline, func(ctx context.Context) error {
		if err := machine.Absolute("remove tree", path); err != nil {
			return err
		}
		path = filepath.Clean(path)
		dir, base := filepath.Split(path)
		if base == "" {
			return errors.New("remove tree: refusing to remove /")
		}
		if err := machine.CheckBelow(path, unmount); err != nil {
			return fmt.Errorf("remove tree: %w", err)
		}
		for _, target := range unmount {
			_ = unix.Unmount(target, unix.UMOUNT_NOFOLLOW) // a mount that stays is found below
		}
		st, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if !st.IsDir() {
			return gone(os.Remove(path))
		}
		mounts, err := readMountsOf(base)
		if err != nil {
			return err
		}
		real := filepath.Join(resolve(dir), base)
		for _, m := range mounts {
			if machine.Below(real, m.Mountpoint) {
				return fmt.Errorf("remove tree %s: %s on %s: %w", path, m.FSType, m.Mountpoint, host.ErrMountInside)
			}
		}
		parent, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return &fs.PathError{Op: "open", Path: dir, Err: err}
		}
		defer unix.Close(parent)
		return removeAt(ctx, parent, base, path)
	})
}

// removeAt removes the directory name in parent; path is for messages only.
func removeAt(ctx context.Context, parent int, name, path string) error {
	d, err := openDirAt(parent, name, path)
	if err != nil {
		return gone(err)
	}
	defer d.Close()
	var errs []error
	for {
		names, err := d.Readdirnames(512)
		for _, n := range names {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := removeEntry(ctx, int(d.Fd()), n, filepath.Join(path, n)); err != nil {
				errs = append(errs, err)
			}
			// Ten errors are enough, even for a tree of a million files that cannot be removed.
			if len(errs) > 10 {
				return errors.Join(errs...)
			}
		}
		if err != nil { // io.EOF or another error: the rmdir below reports what remains
			break
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	return gone(unlinkAt(parent, name, path, unix.AT_REMOVEDIR))
}

func removeEntry(ctx context.Context, parent int, name, path string) error {
	err := unlinkAt(parent, name, path, 0)
	// For a directory the error is EISDIR (Linux) or EPERM (POSIX).
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
		var st unix.Stat_t
		if statErr := unix.Fstatat(parent, name, &st, unix.AT_SYMLINK_NOFOLLOW); statErr == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			return removeAt(ctx, parent, name, path)
		}
	}
	return gone(err)
}

func unlinkAt(parent int, name, path string, flags int) error {
	err := unix.Unlinkat(parent, name, flags)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EBUSY): // a mount point
		return fmt.Errorf("remove %s: %w", path, host.ErrMountInside)
	}
	return &fs.PathError{Op: "remove", Path: path, Err: err}
}

const openDirFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

// openDirAt opens a directory without following a link and without entering a mount.
func openDirAt(parent int, name, path string) (*os.File, error) {
	fd, err := unix.Openat2(parent, name, &unix.OpenHow{
		Flags:   openDirFlags,
		Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH,
	})
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		// Linux before 5.6, or a seccomp filter that does not know the call.
		fd, err = openDirAtOld(parent, name, openDirFlags)
	}
	switch {
	case err == nil:
		return os.NewFile(uintptr(fd), path), nil
	case errors.Is(err, unix.EXDEV):
		return nil, fmt.Errorf("open %s: %w", path, host.ErrMountInside)
	}
	return nil, &fs.PathError{Op: "open", Path: path, Err: err}
}

func openDirAtOld(parent int, name string, flags int) (int, error) {
	fd, err := unix.Openat(parent, name, flags, 0)
	if err != nil {
		return -1, err
	}
	var above, in unix.Stat_t
	if err := errors.Join(unix.Fstat(parent, &above), unix.Fstat(fd, &in)); err != nil {
		unix.Close(fd)
		return -1, err
	}
	if above.Dev != in.Dev {
		unix.Close(fd)
		return -1, unix.EXDEV
	}
	return fd, nil
}

// gone drops the error if the file does not exist: then it has been removed.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// ChownGroup never follows a link and stays on the file system of path. It continues after a
// failure, so that one bad file does not hide the others.
func (h *Host) ChownGroup(ctx context.Context, path string, gid int64, readOnly bool) error {
	return run(h, ctx, "ChownGroup", treeDeadline, func(ctx context.Context) error {
		if err := machine.Absolute("change group of", path); err != nil {
			return err
		}
		dir, base := filepath.Split(filepath.Clean(path))
		if base == "" {
			return errors.New("change group: refusing to change /")
		}
		parent, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return &fs.PathError{Op: "open", Path: dir, Err: err}
		}
		defer unix.Close(parent)
		c := grouper{gid: int(gid), bits: 0o660}
		if readOnly {
			c.bits = 0o440
		}
		return c.change(ctx, parent, base, path, nil)
	})
}

type grouper struct {
	gid  int
	bits uint32 // added to files; directories also get execute and setgid
}

func (c grouper) change(ctx context.Context, parent int, name, path string, device *uint64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	fd, err := unix.Openat(parent, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		if device != nil {
			return gone(&fs.PathError{Op: "open", Path: path, Err: err})
		}
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if device != nil && *device != uint64(st.Dev) {
		return nil // another volume is mounted inside
	}
	if int(st.Gid) != c.gid {
		if err := unix.Fchownat(fd, "", -1, c.gid, unix.AT_EMPTY_PATH); err != nil {
			return &fs.PathError{Op: "chown", Path: path, Err: err}
		}
	}
	kind := st.Mode & unix.S_IFMT
	if kind == unix.S_IFLNK {
		return nil
	}
	want := st.Mode&0o7777 | c.bits
	if kind == unix.S_IFDIR {
		want |= unix.S_ISGID | 0o110
	}
	// Compare with the mode after the chown, which drops bits of executables.
	if err := unix.Fstat(fd, &st); err == nil && st.Mode&0o7777 != want {
		// fchmod refuses an O_PATH descriptor; its path in /proc is the same file.
		if err := unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), want); err != nil {
			return &fs.PathError{Op: "chmod", Path: path, Err: err}
		}
	}
	if kind != unix.S_IFDIR {
		return nil
	}
	rd, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	d := os.NewFile(uintptr(rd), path)
	names, err := d.Readdirnames(-1)
	errs := []error{err, d.Close()}
	dev := uint64(st.Dev)
	for _, n := range names {
		errs = append(errs, c.change(ctx, fd, n, filepath.Join(path, n), &dev))
	}
	return errors.Join(errs...)
}
