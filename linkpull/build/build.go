// Package build makes the container image of one static program: a single layer with a single file. Bowline
// writes the image of its helper into a remote host's containerd (linkpull/store) and needs no registry for it.
//
// The package is pure: the image depends only on the program's bytes and the values beside them. The same ones
// give the same digests, as long as Go's compressor stays the same; the IDs of the unpacked layer and its
// snapshot do not even depend on that.
package build

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/bowline-k8s/bowline/linkpull/oci"
)

// Program is what an image is made of.
type Program struct {
	// Path is where the program is in the image: "/lifeline". It is the image's entry point.
	Path     string
	Binary   []byte // statically linked
	Platform oci.Platform
	// Labels are those of the image's configuration; they may be nil.
	Labels map[string]string
}

// Image is an image and its only layer.
type Image struct {
	oci.Image
	Layer []byte // tar, compressed with gzip
}

// Name returns the name of an image of Bowline's own: bowline.io/PROGRAM:VERSION. A version may have characters
// that no tag has.
func Name(program, version string) string {
	tag := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' || r == '_' {
			return r
		}
		return '-'
	}, version)
	tag = strings.TrimLeft(tag, ".-")
	if tag == "" {
		tag = "none"
	}
	return "bowline.io/" + program + ":" + tag[:min(len(tag), 128)]
}

// Make makes the image of a program. An error says which field of Program is missing or wrong.
func Make(p Program) (Image, error) {
	if path.Dir(p.Path) != "/" || path.Clean(p.Path) != p.Path || p.Path == "/" {
		return Image{}, fmt.Errorf("program at %q in an image: the path must be of a file in /", p.Path)
	}
	if len(p.Binary) == 0 || p.Platform.OS == "" || p.Platform.Architecture == "" {
		return Image{}, errors.New("image of a program without its binary or platform")
	}
	plain, err := archive(strings.TrimPrefix(p.Path, "/"), p.Binary)
	if err != nil {
		return Image{}, fmt.Errorf("archive %s: %w", p.Path, err)
	}
	layer, err := compress(plain)
	if err != nil {
		return Image{}, fmt.Errorf("compress %s: %w", p.Path, err)
	}
	platform := p.Platform.Normal()
	config, err := json.Marshal(oci.Config{
		Created: epoch.Format(time.RFC3339), OS: platform.OS, Architecture: platform.Architecture,
		Variant: platform.Variant,
		Config:  oci.RuntimeConfig{Entrypoint: []string{p.Path}, WorkingDir: "/", Labels: p.Labels},
		RootFS:  oci.RootFS{Type: "layers", DiffIDs: []oci.Digest{oci.Sum(plain)}},
	})
	if err != nil {
		return Image{}, fmt.Errorf("configuration of the image: %w", err)
	}
	described := oci.Describe(oci.ConfigType, config)
	manifest, err := json.Marshal(oci.Document{SchemaVersion: 2, MediaType: oci.ManifestType, Config: &described,
		Layers: []oci.Descriptor{oci.Describe(oci.LayerGzipType, layer)}})
	if err != nil {
		return Image{}, fmt.Errorf("manifest of the image: %w", err)
	}
	i, err := oci.NewImage(oci.Describe(oci.ManifestType, manifest), nil, 0, manifest, config)
	return Image{Image: i, Layer: layer}, err
}

// epoch is the time of everything in an image.
var epoch = time.Unix(0, 0).UTC()

func archive(name string, binary []byte) ([]byte, error) {
	var b bytes.Buffer
	b.Grow(len(binary) + 4<<10)
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o555, Size: int64(len(binary)),
		ModTime: epoch, Format: tar.FormatUSTAR}); err != nil {
		return nil, err
	}
	if _, err := w.Write(binary); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

func compress(plain []byte) ([]byte, error) {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(plain); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
