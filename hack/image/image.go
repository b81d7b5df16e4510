package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// user is the UID and GID that the program runs as. No account has it, and a pod's security context
// can name it.
const user = 65532

// release describes where an image comes from. The same release of the same program gives the same
// bytes.
type release struct {
	version  string
	revision string    // the commit; empty where none is known
	created  time.Time // of the commit
}

// labels returns the labels of the OCI image specification.
func (r release) labels() map[string]string {
	l := map[string]string{
		"org.opencontainers.image.title":       "bowline",
		"org.opencontainers.image.description": "Runs machines with a container runtime as nodes of a Kubernetes cluster, without a kubelet",
		"org.opencontainers.image.source":      "https://github.com/bowline-k8s/bowline",
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.version":     r.version,
		"org.opencontainers.image.created":     r.created.UTC().Format(time.RFC3339),
	}
	if r.revision != "" {
		l["org.opencontainers.image.revision"] = r.revision
	}
	return l
}

// image returns the image for one architecture: the program and the files that a program expects
// around it.
func image(r release, architecture string, program []byte) (v1.Image, error) {
	files, err := root(r.created, program)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(files)), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.Append(base, mutate.Addendum{
		Layer:   layer,
		History: v1.History{Created: v1.Time{Time: r.created.UTC()}, CreatedBy: "hack/image", Comment: "bowline " + r.version},
	})
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", architecture
	config.Created = v1.Time{Time: r.created.UTC()}
	config.Config = v1.Config{
		User:       fmt.Sprintf("%d:%d", user, user),
		Entrypoint: []string{"/bin/bowline"},
		Env:        []string{"PATH=/bin", "HOME=/"},
		WorkingDir: "/",
		Labels:     r.labels(),
	}
	return mutate.ConfigFile(img, config)
}

// root returns the whole file system as a tar archive. It has no CA certificates: Bowline checks
// only the API server's certificate, whose CA comes with the service account or is in the
// kubeconfig, and the image must not add to those. /etc/ssl/certs exists so that the system's
// certificates can be mounted over it if a kubeconfig trusts them.
func root(at time.Time, program []byte) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	var errs []error
	entry := func(h tar.Header, content []byte) {
		h.Size, h.ModTime, h.Format = int64(len(content)), at.UTC().Truncate(time.Second), tar.FormatUSTAR
		errs = append(errs, w.WriteHeader(&h))
		_, err := w.Write(content)
		errs = append(errs, err)
	}
	directory := func(name string, mode int64) {
		entry(tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: mode}, nil)
	}
	file := func(name string, mode int64, content []byte) {
		entry(tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: mode}, content)
	}
	directory("bin/", 0o755)
	file("bin/bowline", 0o755, program)
	directory("etc/", 0o755)
	directory("etc/bowline/", 0o755)
	file("etc/group", 0o644, fmt.Appendf(nil, "root:x:0:\nbowline:x:%d:\n", user))
	file("etc/passwd", 0o644, fmt.Appendf(nil, "root:x:0:0:root:/:/sbin/nologin\nbowline:x:%d:%d:bowline:/:/sbin/nologin\n", user, user))
	directory("etc/ssl/", 0o755)
	directory("etc/ssl/certs/", 0o755)
	directory("tmp/", 0o1777)
	return b.Bytes(), errors.Join(append(errs, w.Close())...)
}

// index returns the images of all architectures under one name.
func index(images []v1.Image) (v1.ImageIndex, error) {
	all := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, img := range images {
		config, err := img.ConfigFile()
		if err != nil {
			return nil, err
		}
		all = mutate.AppendManifests(all, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: config.Platform()}})
	}
	return all, nil
}
