package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/host"
)

// setUpHostPath checks a path of the host against its type, or creates it. It does so once; if the
// path vanishes later, the container has to cope.
func (m *Manager) setUpHostPath(ctx context.Context, v *v1.Volume, vs *volumeState) error {
	at := v.HostPath.Path
	vs.mount = Mount{HostPath: at}
	if vs.ready {
		return nil
	}
	if !path.IsAbs(at) {
		return fmt.Errorf("invalid HostPath `%s`: must be an absolute path", at)
	}
	for _, part := range strings.Split(at, "/") {
		if part == ".." {
			return fmt.Errorf("invalid HostPath `%s`: must not contain '..'", at)
		}
	}
	want := v1.HostPathUnset
	if v.HostPath.Type != nil {
		want = *v.HostPath.Type
	}
	if err := m.checkHostPath(ctx, at, want); err != nil {
		return err
	}
	vs.ready = true
	return nil
}

func (m *Manager) checkHostPath(ctx context.Context, at string, want v1.HostPathType) error {
	var expected string // in the kubelet's words
	var create bool
	var is v1.HostPathType
	switch want {
	case v1.HostPathUnset:
		return nil
	case v1.HostPathDirectoryOrCreate:
		expected, is, create = "directory", v1.HostPathDirectory, true
	case v1.HostPathDirectory:
		expected, is = "directory", v1.HostPathDirectory
	case v1.HostPathFileOrCreate:
		expected, is, create = "file", v1.HostPathFile, true
	case v1.HostPathFile:
		expected, is = "file", v1.HostPathFile
	case v1.HostPathSocket:
		expected, is = "socket file", v1.HostPathSocket
	case v1.HostPathCharDev:
		expected, is = "character device", v1.HostPathCharDev
	case v1.HostPathBlockDev:
		expected, is = "block device", v1.HostPathBlockDev
	default:
		return fmt.Errorf("%s is an invalid volume type", want)
	}

	end, info, err := m.follow(ctx, at)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if create {
			return m.makeHostPath(ctx, end, is)
		}
		return fmt.Errorf("hostPath type check failed, %s is not a %s, unable to determine its type: path %q does not exist", at, expected, at)
	case err != nil:
		return fmt.Errorf("hostPath type check failed, %s is not a %s, unable to determine its type: %w", at, expected, err)
	}
	if got := typeOf(info.Mode); got != is {
		return fmt.Errorf("hostPath type check failed: %s is not a %s, it's a %s", at, expected, got)
	}
	return nil
}

func (m *Manager) makeHostPath(ctx context.Context, at string, is v1.HostPathType) error {
	if is == v1.HostPathDirectory {
		if err := m.cfg.Host.MkdirAll(ctx, at, 0o755, nil); err != nil {
			return fmt.Errorf("make hostPath directory %s: %w", at, err)
		}
		return nil
	}
	// The kubelet creates only the file, never its directory.
	if ok, err := m.exist(ctx, path.Dir(at)); err != nil {
		return err
	} else if !ok {
		return fmt.Errorf("open %s: no such file or directory", at)
	}
	if _, err := m.cfg.Host.Make(ctx, host.Entry{Path: at, Mode: 0o644}); err != nil {
		return fmt.Errorf("make hostPath file %s: %w", at, err)
	}
	return nil
}

// typeOf is the API's name for the type of a file; "Unknown" for a FIFO and the like.
func typeOf(mode fs.FileMode) v1.HostPathType {
	switch {
	case mode.IsDir():
		return v1.HostPathDirectory
	case mode.IsRegular():
		return v1.HostPathFile
	case mode&fs.ModeSocket != 0:
		return v1.HostPathSocket
	case mode&fs.ModeCharDevice != 0:
		return v1.HostPathCharDev
	case mode&fs.ModeDevice != 0:
		return v1.HostPathBlockDev
	}
	return "Unknown"
}

// maxLinks is how many links the kernel follows in one path (ELOOP beyond).
const maxLinks = 40

// follow is stat(2): it resolves links in the last element of at, which the host's Stat returns as
// links. It also returns the resolved path.
func (m *Manager) follow(ctx context.Context, at string) (string, host.FileInfo, error) {
	for range maxLinks {
		info, err := m.cfg.Host.Stat(ctx, at)
		if err != nil || info.Mode&fs.ModeSymlink == 0 {
			return at, info, err
		}
		if path.IsAbs(info.Target) {
			at = info.Target
			continue
		}
		// Not cleaned: the kernel must resolve ".." after a link to a directory.
		dir, _ := path.Split(strings.TrimRight(at, "/"))
		at = dir + info.Target
	}
	return "", host.FileInfo{}, fmt.Errorf("%s: too many levels of symbolic links", at)
}
