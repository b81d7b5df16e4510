package local

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/bowline-k8s/bowline/host/internal/machine"
)

// writable is the file system as writeFile uses it; a test replaces it to simulate a power cut.
type writable interface {
	Stat(path string) (fs.FileInfo, error)
	Mkdir(dir string, mode fs.FileMode) error
	Chmod(path string, mode fs.FileMode) error
	// Create creates a new file for writing, with access for its owner only.
	Create(path string) (writtenFile, error)
	Rename(from, to string) error
	Remove(path string) error
	// SyncDir syncs the entries of a directory to the disk.
	SyncDir(dir string) error
}

type writtenFile interface {
	io.WriteCloser
	Chmod(mode fs.FileMode) error
	Sync() error
}

// writeFile replaces a file through a temporary one. If synced, it syncs the content before the
// rename, and before it returns the directory and the parents of directories that it made.
func writeFile(d writable, path string, data []byte, mode fs.FileMode, synced bool) error {
	if err := machine.Absolute("write", path); err != nil {
		return err
	}
	path = filepath.Clean(path)
	dir, base := filepath.Dir(path), filepath.Base(path)
	named, err := makeMissing(d, dir, 0o750)
	if err != nil {
		return err
	}
	tmp := filepath.Join(dir, tempName(base))
	f, err := d.Create(tmp)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, bytes.NewReader(data))
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil && synced {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = d.Rename(tmp, path)
	}
	if err != nil {
		d.Remove(tmp)
		return fmt.Errorf("write %s: %w", path, err)
	}
	if !synced {
		return nil
	}
	for _, dir := range append(named, dir) {
		if err := d.SyncDir(dir); err != nil {
			return fmt.Errorf("write %s: sync its directory: %w", path, err)
		}
	}
	return nil
}

// writeInPlace overwrites an existing regular file; it returns false if there is none. It does
// not write unchanged content.
func writeInPlace(path string, data []byte, mode fs.FileMode) (there bool, err error) {
	if err := machine.Absolute("write", path); err != nil {
		return false, err
	}
	f, err := os.OpenFile(path, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, nil // missing, a link or not openable: writeFile replaces it or reports the error
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return false, err
	}
	had, err := io.ReadAll(io.LimitReader(f, int64(len(data))+1))
	if err == nil && !bytes.Equal(had, data) {
		if _, err = f.WriteAt(data, 0); err == nil {
			err = f.Truncate(int64(len(data)))
		}
	}
	if err == nil {
		err = f.Chmod(mode)
	}
	if err != nil {
		return true, fmt.Errorf("write %s: %w", path, err)
	}
	return true, nil
}

// mkdirParents creates dir and its missing parents with exactly mode.
func mkdirParents(dir string, mode fs.FileMode) error {
	_, err := makeMissing(realDisk{}, dir, mode)
	return err
}

// makeMissing is mkdirParents; it returns the directories that got a new entry.
func makeMissing(d writable, dir string, mode fs.FileMode) (named []string, err error) {
	st, err := d.Stat(dir)
	if err == nil {
		if !st.IsDir() {
			return nil, &fs.PathError{Op: "mkdir", Path: dir, Err: unix.ENOTDIR}
		}
		return nil, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	parent := filepath.Dir(filepath.Clean(dir))
	if parent != dir {
		if named, err = makeMissing(d, parent, mode); err != nil {
			return nil, err
		}
	}
	// Another process may create dir first without syncing parent.
	named = append(named, parent)
	if err := d.Mkdir(dir, mode); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return named, nil
		}
		return nil, err
	}
	return named, d.Chmod(dir, mode)
}

// realDisk is the file system of the host.
type realDisk struct{}

func (realDisk) Stat(path string) (fs.FileInfo, error)     { return os.Stat(path) }
func (realDisk) Mkdir(dir string, mode fs.FileMode) error  { return os.Mkdir(dir, mode) }
func (realDisk) Chmod(path string, mode fs.FileMode) error { return os.Chmod(path, mode) }
func (realDisk) Rename(from, to string) error              { return os.Rename(from, to) }
func (realDisk) Remove(path string) error                  { return os.Remove(path) }

func (realDisk) Create(path string) (writtenFile, error) {
	return os.OpenFile(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
}

func (realDisk) SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	// Some file systems cannot sync a single directory and return EINVAL; syncfs syncs the whole
	// file system.
	if err = d.Sync(); errors.Is(err, unix.EINVAL) {
		err = unix.Syncfs(int(d.Fd()))
	}
	return err
}
