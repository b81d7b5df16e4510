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

// writable is what the writing of a file asks of the machine; a test's loses power.
type writable interface {
	Stat(path string) (fs.FileInfo, error)
	Mkdir(dir string, mode fs.FileMode) error
	Chmod(path string, mode fs.FileMode) error
	// Create makes a new file for writing, for root alone.
	Create(path string) (writtenFile, error)
	Rename(from, to string) error
	Remove(path string) error
	// SyncDir brings the names in a directory to the disk.
	SyncDir(dir string) error
}

type writtenFile interface {
	io.WriteCloser
	Chmod(mode fs.FileMode) error
	Sync() error
}

// writeFile replaces a file by way of a temporary one. Synced, the content is on the
// disk before it has the name, and the name before writeFile returns; so are the names
// of the directories that it made.
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
			return fmt.Errorf("write %s: bring its name to the disk: %w", path, err)
		}
	}
	return nil
}

// writeInPlace writes a regular file that is there; it is false where there is none. What
// the file has already is not written.
func writeInPlace(path string, data []byte, mode fs.FileMode) (there bool, err error) {
	if err := machine.Absolute("write", path); err != nil {
		return false, err
	}
	f, err := os.OpenFile(path, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, nil // nothing, a link or no file: to be replaced, which says what is wrong
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

// mkdirParents makes what is missing of dir with exactly mode.
func mkdirParents(dir string, mode fs.FileMode) error {
	_, err := makeMissing(realDisk{}, dir, mode)
	return err
}

// makeMissing is mkdirParents; it returns the directories that have a new name in them.
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
	// Another maker may be first, and may not have synced it.
	named = append(named, parent)
	if err := d.Mkdir(dir, mode); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return named, nil
		}
		return nil, err
	}
	return named, d.Chmod(dir, mode)
}

// realDisk is the machine's.
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
	// A file system that cannot sync a directory by itself says EINVAL; syncfs is for all
	// that it has.
	if err = d.Sync(); errors.Is(err, unix.EINVAL) {
		err = unix.Syncfs(int(d.Fd()))
	}
	return err
}
