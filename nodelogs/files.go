package nodelogs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/bowline-k8s/bowline/host"
)

// files are the files below a directory of the host, for http.FileServer. Links are followed as far as
// they stay inside of the directory: a pod may have it mounted, and must not make other files readable.
// A pod that may write there and swaps a directory for a link between two calls can still lead out, as
// it can on a kubelet, which follows every link.
type files struct {
	ctx context.Context
	h   *Handler
}

// maxLinks bounds the links on the way to a file.
const maxLinks = 16

func (f files) Open(name string) (http.File, error) {
	at, info, err := f.resolve(path.Clean("/"+name), maxLinks)
	if err != nil {
		return nil, err
	}
	if info.Mode.IsDir() {
		return &dir{files: f, at: at, info: info}, nil
	}
	if !info.Mode.IsRegular() {
		return nil, &fs.PathError{Op: "open", Path: name, Err: errors.New("not a regular file")}
	}
	open, err := f.h.Host.Open(f.ctx, at)
	if err != nil {
		return nil, err
	}
	now, err := open.Stat()
	if err == nil && (now.Inode != info.Inode || now.Device != info.Device) {
		err = &fs.PathError{Op: "open", Path: name, Err: errors.New("replaced meanwhile")}
	}
	if err != nil {
		open.Close()
		return nil, err
	}
	return &file{SectionReader: io.NewSectionReader(open, 0, now.Size), open: open, info: now}, nil
}

// resolve returns where a path below the directory leads to, without leaving it.
func (f files) resolve(p string, links int) (string, host.FileInfo, error) {
	at := f.h.Dir
	info, err := f.h.Host.Stat(f.ctx, at)
	if err != nil {
		return "", info, err
	}
	parts := strings.Split(strings.Trim(p, "/"), "/")
	for i, part := range parts {
		if part == "" {
			continue
		}
		next := path.Join(at, part)
		if info, err = f.h.Host.Stat(f.ctx, next); err != nil {
			return "", info, err
		}
		if info.Mode.Type() != fs.ModeSymlink {
			at = next
			continue
		}
		if links == 0 {
			return "", info, &fs.PathError{Op: "open", Path: p, Err: errors.New("too many links")}
		}
		target := info.Target
		if !path.IsAbs(target) {
			target = path.Join(at, target)
		}
		inside, ok := strings.CutPrefix(path.Clean(target)+"/", f.h.Dir+"/")
		if !ok {
			return "", info, &fs.PathError{Op: "open", Path: p, Err: fmt.Errorf("a link leads out of %s: %w", f.h.Dir, fs.ErrNotExist)}
		}
		return f.resolve(path.Join("/", inside, path.Join(parts[i+1:]...)), links-1)
	}
	return at, info, nil
}

// file is an open file.
type file struct {
	*io.SectionReader
	open host.File
	info host.FileInfo
}

func (f *file) Close() error                       { return f.open.Close() }
func (f *file) Stat() (fs.FileInfo, error)         { return fileInfo{f.info}, nil }
func (f *file) Readdir(int) ([]fs.FileInfo, error) { return nil, errors.New("not a directory") }

// dir is a directory.
type dir struct {
	files
	at   string
	info host.FileInfo
	read bool
}

func (d *dir) Close() error                   { return nil }
func (d *dir) Stat() (fs.FileInfo, error)     { return fileInfo{d.info}, nil }
func (d *dir) Read([]byte) (int, error)       { return 0, errors.New("is a directory") }
func (d *dir) Seek(int64, int) (int64, error) { return 0, nil }

func (d *dir) Readdir(int) ([]fs.FileInfo, error) {
	if d.read {
		return nil, io.EOF
	}
	d.read = true
	list, err := d.h.Host.List(d.ctx, d.at)
	if err != nil {
		return nil, err
	}
	out := make([]fs.FileInfo, len(list))
	for i, info := range list {
		out[i] = fileInfo{info}
	}
	return out, nil
}

type fileInfo struct{ host.FileInfo }

func (i fileInfo) Name() string       { return i.FileInfo.Name }
func (i fileInfo) Size() int64        { return i.FileInfo.Size }
func (i fileInfo) Mode() fs.FileMode  { return i.FileInfo.Mode }
func (i fileInfo) ModTime() time.Time { return i.Time }
func (i fileInfo) IsDir() bool        { return i.FileInfo.Mode.IsDir() }
func (i fileInfo) Sys() any           { return nil }
