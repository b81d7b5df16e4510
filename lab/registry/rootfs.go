package registry

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Names in a directory that FromDirectory reads.
const (
	rootFS     = "rootfs"     // the root file system
	configFile = "image.json" // the image's configuration, as "config" of an OCI image
)

// FromDirectory builds an image of one layer from dir/rootfs, with the owners and modes of its
// files, and dir/image.json, {"Cmd": ["sh"], "User": "1234"}. The same files give the same image,
// whatever their times.
func FromDirectory(dir string) (v1.Image, error) {
	data, err := os.ReadFile(filepath.Join(dir, configFile))
	if err != nil {
		return nil, fmt.Errorf("%s is to hold %s and %s/: %w", dir, configFile, rootFS, err)
	}
	var config v1.Config
	if err := json.Unmarshal(data, &config); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, configFile), err)
	}
	var archive bytes.Buffer
	if err := writeTar(&archive, filepath.Join(dir, rootFS)); err != nil {
		return nil, err
	}
	// Uncompressed: it is only sent over loopback.
	return fromLayer(static.NewLayer(archive.Bytes(), types.OCIUncompressedLayer), config)
}

// writeTar archives everything below root in the order of names.
func writeTar(out io.Writer, root string) error {
	w := tar.NewWriter(out)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		var target string
		if info.Mode()&fs.ModeSymlink != 0 {
			if target, err = os.Readlink(path); err != nil {
				return err
			}
		}
		h, err := tar.FileInfoHeader(info, target)
		if err != nil {
			return err
		}
		if h.Name, err = filepath.Rel(root, path); err != nil {
			return err
		}
		if d.IsDir() {
			h.Name += "/"
		}
		// Names of this machine's users do not belong into the image.
		h.Uname, h.Gname = "", ""
		if stat, ok := info.Sys().(*syscall.Stat_t); ok {
			h.Uid, h.Gid = int(stat.Uid), int(stat.Gid)
		}
		h.ModTime, h.AccessTime, h.ChangeTime = time.Unix(0, 0), time.Time{}, time.Time{}
		if err := w.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		_, err = io.Copy(w, f)
		return errors.Join(err, f.Close())
	})
	return errors.Join(err, w.Close())
}
