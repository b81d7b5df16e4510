package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/internal/machine"
)

// ReadFile follows links (/etc/resolv.conf is one) but opens without blocking, so that a FIFO in
// place of the file is an error and does not block.
func (h *Host) ReadFile(ctx context.Context, path string, max int64) ([]byte, error) {
	return call(h, ctx, "ReadFile", shortDeadline, func(context.Context) ([]byte, error) {
		f, err := openRegular(path, 0)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		data, err := io.ReadAll(io.LimitReader(f, max+1))
		if err != nil {
			return nil, err
		}
		if int64(len(data)) > max {
			return data[:max], fmt.Errorf("read %s: more than %d bytes: %w", path, max, host.ErrTooLarge)
		}
		return data, nil
	})
}

func (h *Host) ReadTail(ctx context.Context, path string, max int64) ([]byte, error) {
	return call(h, ctx, "ReadTail", shortDeadline, func(context.Context) ([]byte, error) {
		f, err := openRegular(path, unix.O_NOFOLLOW)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		st, err := f.Stat()
		if err != nil {
			return nil, err
		}
		from := st.Size() - max
		if from < 0 {
			from = 0
		}
		// A section, not the rest: a file that grows in the meantime must not return more.
		return io.ReadAll(io.NewSectionReader(f, from, max))
	})
}

// openRegular opens a file for reading, and refuses everything but a regular file.
func openRegular(path string, flags int) (*os.File, error) {
	if err := machine.Absolute("open", path); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		if errors.Is(err, unix.ELOOP) && flags&unix.O_NOFOLLOW != 0 {
			return nil, fmt.Errorf("open %s: it is a symbolic link: %w", path, err)
		}
		return nil, err
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	if !st.Mode().IsRegular() {
		f.Close()
		return nil, fmt.Errorf("open %s: not a regular file (%s)", path, st.Mode().Type())
	}
	return f, nil
}

// WriteFile is atomic even if this process or the power of the host ends at any point: the path
// holds the old content or the new.
func (h *Host) WriteFile(ctx context.Context, path string, data []byte, mode fs.FileMode) error {
	return run(h, ctx, "WriteFile", shortDeadline, func(context.Context) error {
		return writeFile(realDisk{}, path, data, mode, true)
	})
}

var tempCounter atomic.Uint64

// tempName begins with a dot and contains our PID and a counter, so that two writers never use
// the same name. It cuts a long base, so that the name stays within the limit of 255 bytes.
func tempName(base string) string {
	if len(base) > 200 {
		base = base[:200]
	}
	return "." + base + host.TemporaryMark + strconv.Itoa(os.Getpid()) + "-" + strconv.FormatUint(tempCounter.Add(1), 36)
}

// MkdirAll does not change a directory that exists, or a link to one.
func (h *Host) MkdirAll(ctx context.Context, path string, mode fs.FileMode, owner *host.Owner) error {
	return run(h, ctx, "MkdirAll", shortDeadline, func(context.Context) error { return mkdirAll(path, mode, owner) })
}

func mkdirAll(path string, mode fs.FileMode, owner *host.Owner) error {
	if err := machine.Absolute("make directory", path); err != nil {
		return err
	}
	path = filepath.Clean(path)
	// A new parent is never writable by others, whatever mode is.
	if err := mkdirParents(filepath.Dir(path), mode&0o755); err != nil {
		return err
	}
	// The names above may be links, and may be replaced at any time. So the parent is opened,
	// and the new directory relative to it.
	wrong := func(err error) error { return &fs.PathError{Op: "mkdir", Path: path, Err: err} }
	parent, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return wrong(err)
	}
	defer unix.Close(parent)
	base := filepath.Base(path)
	if err := unix.Mkdirat(parent, base, uint32(mode.Perm())); err != nil {
		var st unix.Stat_t
		if errors.Is(err, unix.EEXIST) && unix.Fstatat(parent, base, &st, 0) == nil {
			if st.Mode&unix.S_IFMT == unix.S_IFDIR {
				// Any writer of the parent may have put a directory there: it is not changed.
				return nil
			}
			err = unix.ENOTDIR
		}
		return wrong(err)
	}
	fd, err := unix.Openat(parent, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return wrong(err)
	}
	d := os.NewFile(uintptr(fd), path)
	defer d.Close()
	if owner != nil {
		if err := d.Chown(int(owner.UID), int(owner.GID)); err != nil {
			return err
		}
	}
	st, err := d.Stat()
	if err != nil {
		return err
	}
	special := fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky
	want := mode&(fs.ModePerm|special) | st.Mode()&special
	if st.Mode()&(fs.ModePerm|special) == want {
		return nil
	}
	return d.Chmod(want)
}

// Make creates the entries one by one; locally there are no round trips to save.
func (h *Host) Make(ctx context.Context, entries ...host.Entry) ([]bool, error) {
	return call(h, ctx, "Make", shortDeadline, func(ctx context.Context) ([]bool, error) {
		made := make([]bool, len(entries))
		for i, t := range entries {
			if err := ctx.Err(); err != nil {
				return nil, fmt.Errorf("make %s: %w", t.Path, err)
			}
			_, err := os.Lstat(t.Path)
			made[i] = errors.Is(err, fs.ErrNotExist)
			if err := makeOne(t); err != nil {
				return nil, err
			}
		}
		return made, nil
	})
}

func makeOne(t host.Entry) error {
	if t.Mode.IsDir() {
		return mkdirAll(t.Path, t.Mode&^fs.ModeDir, nil)
	}
	if t.InPlace {
		if there, err := writeInPlace(t.Path, t.Data, t.Mode); there || err != nil {
			return err
		}
	}
	return writeFile(realDisk{}, t.Path, t.Data, t.Mode, t.Synced)
}

// Symlink creates missing parents with mode 0755.
func (h *Host) Symlink(ctx context.Context, target, path string) error {
	return run(h, ctx, "Symlink", shortDeadline, func(context.Context) error {
		if err := machine.Absolute("link", path); err != nil {
			return err
		}
		if old, err := os.Readlink(path); err == nil && old == target {
			return nil
		}
		dir, base := filepath.Split(path)
		if err := mkdirParents(dir, 0o755); err != nil {
			return err
		}
		tmp := filepath.Join(dir, tempName(base))
		if err := os.Symlink(target, tmp); err != nil {
			return err
		}
		if err := os.Rename(tmp, path); err != nil {
			os.Remove(tmp)
			return err
		}
		return nil
	})
}

func (h *Host) Stat(ctx context.Context, path string) (host.FileInfo, error) {
	return call(h, ctx, "Stat", shortDeadline, func(context.Context) (host.FileInfo, error) {
		if err := machine.Absolute("stat", path); err != nil {
			return host.FileInfo{}, err
		}
		st, err := os.Lstat(path)
		if err != nil {
			return host.FileInfo{}, err
		}
		return fileInfo(st, path), nil
	})
}

func (h *Host) List(ctx context.Context, dir string) ([]host.FileInfo, error) {
	return call(h, ctx, "List", shortDeadline, func(ctx context.Context) ([]host.FileInfo, error) {
		if err := machine.Absolute("list", dir); err != nil {
			return nil, err
		}
		entries, err := os.ReadDir(dir) // sorted by name
		if err != nil {
			return nil, err
		}
		infos := make([]host.FileInfo, 0, len(entries))
		for _, e := range entries {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			st, err := e.Info()
			if errors.Is(err, fs.ErrNotExist) {
				continue // removed since it was listed
			}
			if err != nil {
				return nil, err
			}
			infos = append(infos, fileInfo(st, filepath.Join(dir, e.Name())))
		}
		return infos, nil
	})
}

func fileInfo(st fs.FileInfo, path string) host.FileInfo {
	i := host.FileInfo{Name: st.Name(), Mode: st.Mode(), Size: st.Size(), Time: st.ModTime()}
	if sys, ok := st.Sys().(*unixStat); ok {
		i.Inode, i.Device, i.GID = sys.Ino, uint64(sys.Dev), int64(sys.Gid)
	}
	if st.Mode()&fs.ModeSymlink != 0 {
		// Empty if the link was removed between the two calls.
		i.Target, _ = os.Readlink(path)
	}
	return i
}

func (h *Host) Remove(ctx context.Context, path string) error {
	return run(h, ctx, "Remove", shortDeadline, func(context.Context) error {
		if err := machine.Absolute("remove", path); err != nil {
			return err
		}
		return os.Remove(path)
	})
}

func (h *Host) Open(ctx context.Context, path string) (host.File, error) {
	return call(h, ctx, "Open", shortDeadline, func(context.Context) (host.File, error) {
		f, err := openRegular(path, unix.O_NOFOLLOW)
		if err != nil {
			return nil, err
		}
		return &file{h: h, f: f}, nil
	})
}

// file reads under the hook, with a deadline for each read.
type file struct {
	h *Host
	f *os.File
}

func (f *file) ReadAt(p []byte, off int64) (int, error) {
	// The read has its own buffer: after its deadline it must not write into p.
	data, err := call(f.h, context.Background(), "ReadAt", shortDeadline, func(context.Context) (readAt, error) {
		buf := make([]byte, len(p))
		n, err := f.f.ReadAt(buf, off)
		if errors.Is(err, io.EOF) {
			return readAt{buf[:n], true}, nil
		}
		return readAt{buf[:n], false}, err
	})
	if err != nil {
		return 0, err
	}
	n := copy(p, data.data)
	if data.eof {
		return n, io.EOF
	}
	return n, nil
}

type readAt struct {
	data []byte
	eof  bool
}

func (f *file) Stat() (host.FileInfo, error) {
	return call(f.h, context.Background(), "StatOpen", shortDeadline, func(context.Context) (host.FileInfo, error) {
		st, err := f.f.Stat()
		if err != nil {
			return host.FileInfo{}, err
		}
		return fileInfo(st, f.f.Name()), nil
	})
}

func (f *file) Close() error { return f.f.Close() }

// pause waits for d, or until ctx ends, and returns the error of ctx.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
