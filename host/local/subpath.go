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

// BindSubPath pins, checks, then mounts. Every element is opened by the
// descriptor of the directory before it and without following a link, so that a
// descriptor is of what is inside and stays of it, whatever its name becomes;
// links are read from their own descriptors and walked in the same way. The last
// descriptor is what is mounted: its path under /proc names the file itself.
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

// pinned is a file that is held by a descriptor that neither reads nor blocks
// (O_PATH), and what it is.
type pinned struct {
	fd   int
	stat unix.Stat_t
}

func (p pinned) is(kind uint32) bool { return p.stat.Mode&unix.S_IFMT == kind }

// path names the file itself, and not what has its name now.
func (p pinned) path() string { return "/proc/self/fd/" + strconv.Itoa(p.fd) }

// pin opens name below the directory dir, links as links.
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

// walker goes down from a directory, and never above it.
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

// back gives up what lies deeper than the first n.
func (w *walker) back(n int) {
	for _, p := range w.held[n:] {
		_ = unix.Close(p.fd)
	}
	w.held = w.held[:n]
}

// maxLinks is how many links the kernel follows in one path.
const maxLinks = 40

func (w *walker) walk(ctx context.Context, part string) error {
	type element struct {
		name     string
		fromLink bool // it must be there
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

// makeDir makes a directory in the last one with the mode of the root, its special bits
// included, so that an fsGroup holds in it. One that another has just made is
// taken as it is.
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
	// The path under /proc is that of the directory which is held, and no link of a pod's.
	if err := unix.Chmod(p.path(), mode); err != nil {
		_ = unix.Close(p.fd)
		return pinned{}, fmt.Errorf("%w: %w", host.ErrSubPathMake, &fs.PathError{Op: "chmod", Path: name, Err: err})
	}
	return p, nil
}

// within asks the kernel where the file that is held is. A pod may have moved it
// since, or removed it; it cannot have moved it out of its own mount.
func (w *walker) within() error {
	at, err := os.Readlink(w.last().path())
	if err != nil {
		return err
	}
	if !machine.Below(w.root, at) {
		return fmt.Errorf("%w: it is elsewhere by now", host.ErrSubPathUnsafe)
	}
	if n := w.last().stat.Nlink; n == 0 {
		return fmt.Errorf("%w: it has been removed", host.ErrSubPathUnsafe)
	}
	return nil
}

// bindPinned shows the file at target.
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

// clearTarget takes away what is mounted at target, unless it is p already: the
// mount of the container's last run, or one whose answer did not arrive.
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
		// At once out of sight: what it showed may be a dead server's.
		if err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH); err != nil {
			return false, &fs.PathError{Op: "unmount", Path: target, Err: err}
		}
	}
	return false, fmt.Errorf("unmount %s: still mounted after 64 rounds", target)
}

// makePlace makes target a directory for a directory, and a file for all else.
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
