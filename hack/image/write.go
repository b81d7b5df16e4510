package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// write puts the images below dir: oci is a layout of all of them, and each
// bowline-ARCHITECTURE.tar holds one of them, for docker load and ctr import. It replaces the
// output of an earlier run.
func write(dir string, ref name.Tag, images []v1.Image) (v1.Hash, error) {
	all, err := index(images)
	if err != nil {
		return v1.Hash{}, err
	}
	oci := filepath.Join(dir, "oci")
	if err := clear(oci); err != nil {
		return v1.Hash{}, err
	}
	path, err := layout.Write(oci, empty.Index)
	if err != nil {
		return v1.Hash{}, err
	}
	annotation := layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": ref.TagStr()})
	if err := path.AppendIndex(all, annotation); err != nil {
		return v1.Hash{}, err
	}
	old, err := filepath.Glob(filepath.Join(dir, "bowline-*.tar"))
	if err != nil {
		return v1.Hash{}, err
	}
	for _, archive := range old {
		if err := os.Remove(archive); err != nil {
			return v1.Hash{}, err
		}
	}
	for _, img := range images {
		config, err := img.ConfigFile()
		if err != nil {
			return v1.Hash{}, err
		}
		if err := tarball.WriteToFile(filepath.Join(dir, "bowline-"+config.Architecture+".tar"), ref, img); err != nil {
			return v1.Hash{}, err
		}
	}
	return all.Digest()
}

// clear removes an earlier OCI layout. It refuses to remove anything else.
func clear(oci string) error {
	entries, err := os.ReadDir(oci)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(oci, "oci-layout")); err != nil {
		return fmt.Errorf("%s is not empty and no OCI layout: remove it, or name another directory by -out", oci)
	}
	return os.RemoveAll(oci)
}
