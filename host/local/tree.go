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

// WriteTree keeps the layout of the kubelet's atomic writer:
//
//	dir/..2026_11_21_06_20_10.123456/a     the version's files
//	dir/..data -> ..2026_11_21_06_20_10.123456
//	dir/a -> ..data/a                      what the container opens
//
// A reader that goes through ..data once sees one version. What a killed writer
// left (a version that was never shown, a half-made link) goes with the next call.
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
		// Nothing below leaves dir, whatever links somebody put into it.
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
	// The visible links come after the flip, so that none dangles; those of
	// removed files go after it, for the same reason.
	if err := setLinks(root, tree); err != nil {
		return err
	}
	return sweep(root, current, tree)
}

// currentVersion is the directory that ..data names, or "" where there is none
// that we could have made.
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

// versionHolds says whether the version is exactly the tree: paths, bytes, modes, owners.
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

// wantOwner turns nil into root, where we could give a file to root at all.
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

// writeVersion writes the tree into a new directory that nobody sees yet.
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
	return root.Chmod(dir, 0o755) // whatever the umask
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

// setLinks makes dir/<first element> -> ..data/<first element> for all files.
// What is there and is no link stays, and is an error: a directory of that name
// is most likely where a runtime mounts another volume inside this one, and
// removing it would take the mount away from a running container.
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

// sweep removes links of files that are gone and versions that are not shown;
// nothing that WriteTree did not make.
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
