package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/internal/machine"
)

// BindSubPath pins, checks, then mounts. It opens every element relative to the descriptor of
// the directory before it and without following a link. So each descriptor refers to a file
// inside the root, even if its name changes. It reads links from their own descriptors and walks
// their targets in the same way. Then it mounts the last descriptor: its path under /proc names
// the file itself.
func (h *Host) BindSubPath(ctx context.Context, s host.SubPath) error {
	return run(h, ctx, "BindSubPath", mountDeadline, func(ctx context.Context) error {
		if err := s.Check(); err != nil {
			return err
		}
		s.Target = filepath.Clean(s.Target)
		w, err := walkFrom(s.Root)
		if err != nil {
			return err
		}
		defer w.close()
		if err := w.walk(ctx, s.Path); err != nil {
			return fmt.Errorf("subPath %s of %s: %w", s.Path, s.Root, err)
		}
		if err := w.within(); err != nil {
			return fmt.Errorf("subPath %s of %s: %w", s.Path, s.Root, err)
		}
		if h.beforeBind != nil {
			h.beforeBind()
		}
		return bindPinned(ctx, w.last(), s.Target)
	})
}

// pinned is a file held by a descriptor that neither reads nor blocks (O_PATH), and its stat.
type pinned struct {
	fd   int
	stat unix.Stat_t
}

func (p pinned) is(kind uint32) bool { return p.stat.Mode&unix.S_IFMT == kind }

// path names the file itself, even if its name now belongs to another file.
func (p pinned) path() string { return "/proc/self/fd/" + strconv.Itoa(p.fd) }

// pin opens name in the directory dir. A final link is opened itself with O_NOFOLLOW.
func pin(dir int, name string, flags int) (pinned, error) {
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return pinned{}, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	p := pinned{fd: fd}
	if err := unix.Fstat(fd, &p.stat); err != nil {
		return pinned{}, errors.Join(&fs.PathError{Op: "stat", Path: name, Err: err}, unix.Close(fd))
	}
	return p, nil
}

// walker descends from a directory, and never leaves it.
type walker struct {
	root string // as the kernel names it
	held []pinned
}

func walkFrom(root string) (*walker, error) {
	p, err := pin(unix.AT_FDCWD, root, unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	w := &walker{held: []pinned{p}}
	if w.root, err = os.Readlink(p.path()); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *walker) close() {
	for _, p := range w.held {
		_ = unix.Close(p.fd)
	}
}

func (w *walker) last() pinned { return w.held[len(w.held)-1] }

// back closes the descriptors after the first n.
func (w *walker) back(n int) {
	for _, p := range w.held[n:] {
		_ = unix.Close(p.fd)
	}
	w.held = w.held[:n]
}

// maxLinks is the most links that the kernel follows in one path.
const maxLinks = 40

func (w *walker) walk(ctx context.Context, part string) error {
	type element struct {
		name     string
		fromLink bool // it must exist
	}
	var todo []element
	for name := range strings.SplitSeq(part, "/") {
		todo = append(todo, element{name: name})
	}
	for links := 0; len(todo) > 0; {
		if err := ctx.Err(); err != nil {
			return err
		}
		e := todo[0]
		todo = todo[1:]
		switch e.name {
		case "", ".":
			continue
		case "..":
			if len(w.held) == 1 {
				return host.ErrSubPathUnsafe
			}
			w.back(len(w.held) - 1)
			continue
		}
		if !w.last().is(unix.S_IFDIR) {
			return &fs.PathError{Op: "open", Path: e.name, Err: unix.ENOTDIR}
		}
		p, err := pin(w.last().fd, e.name, unix.O_NOFOLLOW)
		if errors.Is(err, fs.ErrNotExist) {
			if e.fromLink {
				return fmt.Errorf("%w: a link leads to what is not there", host.ErrSubPathMake)
			}
			p, err = w.makeDir(e.name)
		}
		if err != nil {
			return err
		}
		if !p.is(unix.S_IFLNK) {
			w.held = append(w.held, p)
			continue
		}
		target, err := readPinnedLink(p)
		if err != nil {
			return err
		}
		if links++; links > maxLinks {
			return fmt.Errorf("%w: too many levels of symbolic links", host.ErrSubPathUnsafe)
		}
		if filepath.IsAbs(target) {
			if !machine.Below(w.root, target) {
				return host.ErrSubPathUnsafe
			}
			w.back(1)
			target = strings.TrimPrefix(target, w.root)
		}
		var names []element
		for name := range strings.SplitSeq(target, "/") {
			names = append(names, element{name, true})
		}
		todo = append(names, todo...)
	}
	return nil
}

func readPinnedLink(p pinned) (string, error) {
	defer unix.Close(p.fd)
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(p.fd, "", buf)
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: p.path(), Err: err}
	}
	return string(buf[:n]), nil
}

// makeDir creates a directory in the last one with the mode of the root, special bits included,
// so that an fsGroup applies in it. If another process has just created it, it is used as it is.
func (w *walker) makeDir(name string) (pinned, error) {
	mode := w.held[0].stat.Mode & 0o7777
	dir := w.last().fd
	err := unix.Mkdirat(dir, name, mode&0o777)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return pinned{}, fmt.Errorf("%w: %w", host.ErrSubPathMake, &fs.PathError{Op: "mkdir", Path: name, Err: err})
	}
	p, pinErr := pin(dir, name, unix.O_NOFOLLOW)
	if pinErr != nil || err != nil {
		return p, pinErr
	}
	if !p.is(unix.S_IFDIR) {
		_ = unix.Close(p.fd)
		return pinned{}, fmt.Errorf("%w: changed while it was made", host.ErrSubPathUnsafe)
	}
	// The path under /proc names the held directory, not a link of a pod.
	if err := unix.Chmod(p.path(), mode); err != nil {
		_ = unix.Close(p.fd)
		return pinned{}, fmt.Errorf("%w: %w", host.ErrSubPathMake, &fs.PathError{Op: "chmod", Path: name, Err: err})
	}
	return p, nil
}

// within asks the kernel for the current path of the held file. A pod may have moved or removed
// it since, but cannot have moved it out of its own mount.
func (w *walker) within() error {
	at, err := os.Readlink(w.last().path())
	if err != nil {
		return err
	}
	if !machine.Below(w.root, at) {
		return fmt.Errorf("%w: the directory was moved", host.ErrSubPathUnsafe)
	}
	if n := w.last().stat.Nlink; n == 0 {
		return fmt.Errorf("%w: it has been removed", host.ErrSubPathUnsafe)
	}
	return nil
}

// bindPinned mounts the file on target.
func bindPinned(ctx context.Context, p pinned, target string) error {
	if done, err := clearTarget(p, target); done || err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("mount on %s: %w", target, err)
	}
	if err := makePlace(p, target); err != nil {
		return err
	}
	if err := unix.Mount(p.path(), target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount a subPath on %s: %w", target, err)
	}
	return nil
}

// clearTarget removes the mounts at target, unless the top one is p already. They come from the
// container's last run, or from a call whose answer was lost.
func clearTarget(p pinned, target string) (done bool, err error) {
	for range 64 {
		mounted, err := isMountPoint(target)
		if err != nil || !mounted {
			return false, err
		}
		var st unix.Stat_t
		if err := unix.Lstat(target, &st); err == nil && st.Dev == p.stat.Dev && st.Ino == p.stat.Ino {
			return true, nil
		}
		// Detach at once: the mount may be of a dead server.
		if err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH); err != nil {
			return false, &fs.PathError{Op: "unmount", Path: target, Err: err}
		}
	}
	return false, fmt.Errorf("unmount %s: still mounted after 64 rounds", target)
}

// makePlace makes target a directory for a directory, and a file for everything else.
func makePlace(p pinned, target string) error {
	if err := mkdirParents(filepath.Dir(target), 0o750); err != nil {
		return err
	}
	dir := p.is(unix.S_IFDIR)
	st, err := os.Lstat(target)
	if err == nil && (st.IsDir() != dir || !dir && !st.Mode().IsRegular()) {
		if err := os.Remove(target); err != nil {
			return err
		}
		err = fs.ErrNotExist
	}
	switch {
	case err == nil:
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return err
	case dir:
		return os.Mkdir(target, 0o750)
	}
	f, err := os.OpenFile(target, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o640)
	if err != nil {
		return err
	}
	return f.Close()
}
