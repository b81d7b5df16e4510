package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/internal/machine"
)

type unixStat = syscall.Stat_t

// WriteTree uses the layout of the kubelet's AtomicWriter:
//
//	dir/..2026_11_21_06_20_10.123456/a     the files of the version
//	dir/..data -> ..2026_11_21_06_20_10.123456
//	dir/a -> ..data/a                      the path that the container opens
//
// A reader that resolves ..data once sees one version. The next call removes the remains
// of a killed writer (an incomplete version, a temporary link).
func (h *Host) WriteTree(ctx context.Context, dir string, tree host.Tree) error {
	return run(h, ctx, "WriteTree", shortDeadline, func(ctx context.Context) error {
		if err := machine.Absolute("write tree", dir); err != nil {
			return err
		}
		if err := machine.CheckTree(tree); err != nil {
			return fmt.Errorf("write tree %s: %w", dir, err)
		}
		unlock, err := h.trees.Lock(ctx, path.Clean(dir))
		if err != nil {
			return err
		}
		defer unlock()
		if err := mkdirParents(dir, 0o755); err != nil {
			return err
		}
		// The root confines all operations to dir, whatever links it contains.
		root, err := os.OpenRoot(dir)
		if err != nil {
			return err
		}
		defer root.Close()
		if err := h.writeTree(ctx, root, tree); err != nil {
			return fmt.Errorf("write tree %s: %w", dir, err)
		}
		return nil
	})
}

func (h *Host) writeTree(ctx context.Context, root *os.Root, tree host.Tree) error {
	current, err := currentVersion(root)
	if err != nil {
		return err
	}
	same := current != ""
	if same {
		if same, err = h.versionHolds(root, current, tree); err != nil {
			return err
		}
	}
	if !same {
		next, err := h.writeVersion(ctx, root, tree)
		if err != nil {
			return err
		}
		if err := flip(root, next); err != nil {
			return errors.Join(err, root.RemoveAll(next))
		}
		current = next
	}
	// The visible links are created after the switch, so that none dangles. Those of removed
	// files are removed after it, for the same reason.
	if err := setLinks(root, tree); err != nil {
		return err
	}
	return sweep(root, current, tree)
}

// currentVersion is the directory that ..data names, or "" if it does not name a version.
func currentVersion(root *os.Root) (string, error) {
	target, err := root.Readlink(machine.DataLink)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EINVAL) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if !machine.IsVersion(target) {
		return "", nil
	}
	st, err := root.Lstat(target)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !st.IsDir() {
		return "", nil
	}
	return target, err
}

// versionHolds reports whether the version is exactly the tree: paths, bytes, modes, owners.
func (h *Host) versionHolds(root *os.Root, version string, tree host.Tree) (bool, error) {
	sub, err := root.OpenRoot(version)
	if err != nil {
		return false, err
	}
	defer sub.Close()
	seen := 0
	differs := errors.New("differs")
	err = fs.WalkDir(sub.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if p != "." && !machine.IsDirOf(tree, p) {
				return differs
			}
			return nil
		}
		want, ok := tree[p]
		if !ok || !d.Type().IsRegular() {
			return differs
		}
		seen++
		st, err := sub.Lstat(p)
		if err != nil {
			return err
		}
		if st.Size() != int64(len(want.Data)) || st.Mode() != want.Mode.Perm() || !h.owns(st, want.Owner) {
			return differs
		}
		got, err := sub.ReadFile(p)
		if err != nil {
			return err
		}
		if !bytes.Equal(got, want.Data) {
			return differs
		}
		return nil
	})
	if errors.Is(err, differs) {
		return false, nil
	}
	return err == nil && seen == len(tree), err
}

// wantOwner returns root for nil, if this process can chown to root.
func (h *Host) wantOwner(o *host.Owner) host.Owner {
	switch {
	case o != nil:
		return *o
	case h.asRoot:
		return host.Owner{UID: 0, GID: 0}
	default:
		return host.Owner{UID: -1, GID: -1}
	}
}

func (h *Host) owns(st fs.FileInfo, o *host.Owner) bool {
	sys, ok := st.Sys().(*unixStat)
	want := h.wantOwner(o)
	return ok && (want.UID < 0 || int64(sys.Uid) == want.UID) && (want.GID < 0 || int64(sys.Gid) == want.GID)
}

// writeVersion writes the tree into a new directory that is not visible yet.
func (h *Host) writeVersion(ctx context.Context, root *os.Root, tree host.Tree) (string, error) {
	name, err := makeVersion(root)
	if err != nil {
		return "", err
	}
	err = func() error {
		sub, err := root.OpenRoot(name)
		if err != nil {
			return err
		}
		defer sub.Close()
		if err := sub.Chmod(".", 0o755); err != nil {
			return err
		}
		for _, p := range machine.SortedPaths(tree) {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := mkdirsIn(sub, path.Dir(p)); err != nil {
				return err
			}
			if err := h.writeIn(sub, p, tree[p]); err != nil {
				return err
			}
		}
		return nil
	}()
	if err != nil {
		return "", errors.Join(err, root.RemoveAll(name))
	}
	return name, nil
}

func makeVersion(root *os.Root) (string, error) {
	prefix := time.Now().UTC().Format(machine.VersionLayout)
	for range 100 {
		name := fmt.Sprintf("%s%06d", prefix, (uint64(time.Now().UnixNano())+tempCounter.Add(7919))%1_000_000)
		err := root.Mkdir(name, 0o700)
		if !errors.Is(err, fs.ErrExist) {
			return name, err
		}
	}
	return "", errors.New("no free name for a new version")
}

func mkdirsIn(root *os.Root, dir string) error {
	if dir == "." {
		return nil
	}
	if err := mkdirsIn(root, path.Dir(dir)); err != nil {
		return err
	}
	if err := root.Mkdir(dir, 0o755); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return err
	}
	return root.Chmod(dir, 0o755) // despite the umask
}

func (h *Host) writeIn(root *os.Root, p string, want host.TreeFile) error {
	f, err := root.OpenFile(p, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, bytes.NewReader(want.Data))
	if o := h.wantOwner(want.Owner); err == nil && (o.UID >= 0 || o.GID >= 0) {
		err = f.Chown(int(o.UID), int(o.GID))
	}
	if err == nil {
		err = f.Chmod(want.Mode.Perm()) // after chown, which drops bits
	}
	return errors.Join(err, f.Close())
}

func flip(root *os.Root, version string) error {
	if err := root.Remove(machine.DataLinkTmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := root.Symlink(version, machine.DataLinkTmp); err != nil {
		return err
	}
	return root.Rename(machine.DataLinkTmp, machine.DataLink)
}

// setLinks creates dir/<first element> -> ..data/<first element> for all files. If anything but
// a link has that name, it stays and is an error: it is most likely a directory where a runtime
// mounts another volume inside this one, and removing it would unmount that in a running
// container.
func setLinks(root *os.Root, tree host.Tree) error {
	for name := range machine.FirstElements(tree) {
		want := machine.DataLink + "/" + name
		got, err := root.Readlink(name)
		if err == nil && got == want {
			continue
		}
		if err == nil {
			if err := root.Remove(name); err != nil {
				return err
			}
		}
		if err := root.Symlink(want, name); err != nil {
			return err
		}
	}
	return nil
}

// sweep removes the links of removed files and all versions but the current one; nothing that
// WriteTree did not create.
func sweep(root *os.Root, current string, tree host.Tree) error {
	d, err := root.Open(".")
	if err != nil {
		return err
	}
	names, err := d.Readdirnames(-1)
	if err := errors.Join(err, d.Close()); err != nil {
		return err
	}
	keep := machine.FirstElements(tree)
	var errs []error
	for _, name := range names {
		switch {
		case name == current || name == machine.DataLink || keep[name]:
		case machine.IsVersion(name):
			// RemoveAll of a Root follows no link.
			errs = append(errs, root.RemoveAll(name))
		default:
			target, err := root.Readlink(name)
			if err == nil && (name == machine.DataLinkTmp || target == machine.DataLink+"/"+name) {
				errs = append(errs, root.Remove(name))
			}
		}
	}
	return errors.Join(errs...)
}
