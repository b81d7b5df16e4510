package local

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/internal/machine"
)

// compressDeadline is enough for a log of some gigabytes on a busy host.
const compressDeadline = 10 * time.Minute

func (h *Host) FileSizes(ctx context.Context, paths []string) ([]int64, error) {
	return call(h, ctx, "FileSizes", shortDeadline, func(context.Context) ([]int64, error) {
		sizes := make([]int64, len(paths))
		for i, p := range paths {
			if err := machine.Absolute("stat", p); err != nil {
				return nil, err
			}
			st, err := os.Lstat(p)
			switch {
			case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR):
				sizes[i] = host.NoFile
			case err != nil:
				return nil, err
			case st.Mode().IsRegular():
				sizes[i] = st.Size()
			}
		}
		return sizes, nil
	})
}

func (h *Host) Rename(ctx context.Context, from, to string) error {
	return run(h, ctx, "Rename", shortDeadline, func(context.Context) error {
		for _, p := range []string{from, to} {
			if err := machine.Absolute("rename", p); err != nil {
				return err
			}
		}
		err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
			// The file system does not support RENAME_NOREPLACE, so check first; this is not
			// atomic.
			if _, err = os.Lstat(to); err == nil {
				err = unix.EEXIST
			} else if errors.Is(err, fs.ErrNotExist) {
				return os.Rename(from, to)
			}
		}
		if err != nil {
			return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
		}
		return nil
	})
}

// Compress runs on a thread of its own with the lowest priority.
func (h *Host) Compress(ctx context.Context, path string) error {
	return run(h, ctx, "Compress", compressDeadline, func(ctx context.Context) error {
		if err := machine.Absolute("compress", path); err != nil {
			return err
		}
		done := make(chan error, 1)
		go func() {
			runtime.LockOSThread() // never unlocked, so that the thread ends with its priority
			_ = unix.Setpriority(unix.PRIO_PROCESS, 0, 19)
			done <- compress(ctx, filepath.Clean(path))
		}()
		return <-done
	})
}

func compress(ctx context.Context, path string) (err error) {
	from, err := openRegular(path, unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer from.Close()
	st, err := from.Stat()
	if err != nil {
		return err
	}
	tmp := path + "." + strconv.Itoa(os.Getpid()) + "-" + strconv.FormatUint(tempCounter.Add(1), 36) + ".tmp"
	to, err := os.OpenFile(tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			to.Close()
			os.Remove(tmp)
			err = fmt.Errorf("compress %s: %w", path, err)
		}
	}()
	z := gzip.NewWriter(to)
	if _, err = io.Copy(z, whileContext{ctx, from}); err != nil {
		return err
	}
	if err = errors.Join(z.Close(), to.Chmod(st.Mode().Perm())); err != nil {
		return err
	}
	if err = to.Close(); err != nil {
		return err
	}
	if err = os.Rename(tmp, path+".gz"); err != nil {
		return err
	}
	return os.Remove(path)
}

// whileContext is a reader that ends with a context.
type whileContext struct {
	ctx context.Context
	r   io.Reader
}

func (w whileContext) Read(p []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	return w.r.Read(p)
}
