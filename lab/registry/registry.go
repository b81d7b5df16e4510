// Package registry builds the lab's images from static programs and serves them as an OCI registry
// over plain HTTP.
package registry

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// BuiltIn is an image that every lab has.
type BuiltIn struct {
	Name     string   // with its tag, without the registry
	Programs []string // file names in the directory of built programs; the first is the command
	Args     []string // the default command's arguments
	Links    []string // further names of the command in /bin
	Port     string   // "8080/tcp", or none
}

// BuiltIns lists the images of the demo and the tests.
var BuiltIns = []BuiltIn{
	{Name: "pause:lab", Programs: []string{"pause"}},
	{Name: "web:v1", Programs: []string{"web"}, Port: "8080/tcp"},
	{Name: "web:v2", Programs: []string{"web"}, Port: "8080/tcp"},
	{Name: "toolbox:lab", Programs: []string{"toolbox", "busybox"}, Args: []string{"sh"}, Links: toolboxLinks},
	{Name: "coredns:lab", Programs: []string{"bowline-coredns"}},
}

// toolboxLinks are the commands of the toolbox, and those of busybox that it runs.
var toolboxLinks = strings.Fields(`alloc append count
	awk cat chgrp chmod chown cp cut date dd df du echo env false fallocate find free grep head hostname id ip kill killall
	ln ls md5sum mkdir mkfifo mount mv nc netstat nproc nslookup od pidof ping printf ps pwd readlink rm rmdir sed seq sh
	sha256sum sleep sort stat sync tail tar tee test timeout top touch tr true tty umount uname uniq vi wc wget whoami xargs yes`)

// Build builds the image of a built-in from its program in bin.
func (b BuiltIn) Build(bin string) (v1.Image, error) {
	tag := b.Name[strings.LastIndexByte(b.Name, ':')+1:]
	return FromBinary(bin, b.Programs, b.Args, b.Links, []string{"VERSION=" + tag}, b.Port)
}

// FromBinary builds an image that runs the first of some static programs, which are in dir. They are
// in /bin under their file names, and the first one also under the names in links.
func FromBinary(dir string, programs, args, links, env []string, port string) (v1.Image, error) {
	program := strings.TrimPrefix(programs[0], "bowline-")
	layer, err := layer(dir, programs, links)
	if err != nil {
		return nil, err
	}
	config := v1.Config{Env: append([]string{"PATH=/bin"}, env...), Entrypoint: []string{"/bin/" + program}, Cmd: args}
	if len(links) > 0 && len(args) > 0 {
		config.Entrypoint = nil // any of its commands may be the container's command
	}
	if port != "" {
		config.ExposedPorts = map[string]struct{}{port: {}}
	}
	return fromLayer(layer, config)
}

// fromLayer returns an image of one layer.
func fromLayer(layer v1.Layer, config v1.Config) (v1.Image, error) {
	image, err := mutate.AppendLayers(emptyImage(), layer)
	if err != nil {
		return nil, err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Config = "linux", architecture(), config
	return mutate.ConfigFile(image, file)
}

// emptyImage returns an empty OCI image with an OCI configuration: CRI-O refuses a manifest of one
// kind with a configuration of the other.
func emptyImage() v1.Image {
	return mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
}

// layer returns the root file system: the programs, a user database, the order in which names are
// looked up, and the directories that programs expect.
func layer(from string, programs, links []string) (v1.Layer, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	entry := func(h tar.Header, content []byte) error {
		h.Size = int64(len(content))
		h.ModTime = time.Unix(0, 0)
		if err := w.WriteHeader(&h); err != nil {
			return err
		}
		_, err := w.Write(content)
		return err
	}
	var errs []error
	for _, dir := range []string{"bin", "etc", "home", "root", "tmp", "var"} {
		mode := int64(0o755)
		if dir == "tmp" {
			mode = 0o1777
		}
		errs = append(errs, entry(tar.Header{Name: dir + "/", Typeflag: tar.TypeDir, Mode: mode}, nil))
	}
	errs = append(errs,
		entry(tar.Header{Name: "home/user/", Typeflag: tar.TypeDir, Mode: 0o755, Uid: 1000, Gid: 1000}, nil),
		entry(tar.Header{Name: "etc/passwd", Mode: 0o644}, []byte("root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")),
		entry(tar.Header{Name: "etc/group", Mode: 0o644}, []byte("root:x:0:\nuser:x:1000:\nextra:x:2000:user\nnobody:x:65534:\n")),
		entry(tar.Header{Name: "etc/nsswitch.conf", Mode: 0o644}, []byte("hosts: files dns\n")))
	for _, p := range programs {
		data, err := os.ReadFile(filepath.Join(from, p))
		if err != nil {
			return nil, fmt.Errorf("%w: build it with hack/build-lab.sh", err)
		}
		errs = append(errs, entry(tar.Header{Name: "bin/" + strings.TrimPrefix(p, "bowline-"), Mode: 0o755}, data))
	}
	for _, link := range links {
		errs = append(errs, entry(tar.Header{Name: "bin/" + link, Typeflag: tar.TypeSymlink, Linkname: programs[0]}, nil))
	}
	if err := errors.Join(append(errs, w.Close())...); err != nil {
		return nil, err
	}
	// Uncompressed: it is only sent over loopback.
	return static.NewLayer(b.Bytes(), types.OCIUncompressedLayer), nil
}

// Push puts an image into the registry at address under a name like "web:v1".
func Push(ctx context.Context, address, image string, img v1.Image) error {
	ref, err := name.ParseReference(address+"/"+image, name.Insecure)
	if err != nil {
		return fmt.Errorf("image name %q: %w", image, err)
	}
	return remote.Write(ref, img, remote.WithContext(ctx), remote.WithJobs(1))
}

// Load reads an image from an archive of docker save, or builds one from a directory
// (FromDirectory) or from a static program.
func Load(path string) (v1.Image, error) {
	if img, err := tarball.ImageFromPath(path, nil); err == nil {
		return img, nil
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return FromDirectory(path)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if !bytes.HasPrefix(data, []byte("\x7fELF")) {
		return nil, fmt.Errorf("%s is neither an image archive (docker save), nor a Linux program, nor a directory", path)
	}
	return FromBinary(filepath.Dir(path), []string{filepath.Base(path)}, nil, nil, nil, "")
}

// Serve runs the registry at address until the context ends. It starts with the built-in images and
// those in the directory loaded (see Keep).
func Serve(ctx context.Context, address, bin, blobs, loaded string) error {
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		return err
	}
	handler := registry.New(
		registry.WithBlobHandler(registry.NewDiskBlobHandler(blobs)),
		registry.Logger(stdlog.New(io.Discard, "", 0)),
	)
	// Fill the registry before it listens: a pull that came too early would fail, and be retried
	// only after a back-off.
	if err := fill(ctx, handler, bin, loaded); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case <-ctx.Done():
		_ = server.Close()
		<-served
		return nil
	case err := <-served:
		return err
	}
}
