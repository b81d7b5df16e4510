package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

var someRelease = release{version: "v1.2.3", revision: "abc", created: time.Unix(1700000000, 0)}

func both(t *testing.T, r release) []v1.Image {
	t.Helper()
	var images []v1.Image
	for _, architecture := range []string{"amd64", "arm64"} {
		img, err := image(r, architecture, []byte("the program for "+architecture))
		if err != nil {
			t.Fatal(err)
		}
		images = append(images, img)
	}
	return images
}

// written returns the contents of every file below dir.
func written(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		rel, relErr := filepath.Rel(dir, path)
		files[rel] = string(data)
		return errors.Join(err, relErr)
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestTheSameReleaseIsTheSameBytes(t *testing.T) {
	ref := name.MustParseReference("bowline:v1.2.3").(name.Tag)
	dirs := []string{t.TempDir(), t.TempDir()}
	var digests []v1.Hash
	for _, dir := range append(dirs, dirs[1]) { // the last run replaces the output of the one before
		digest, err := write(dir, ref, both(t, someRelease))
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, digest)
	}
	if digests[0] != digests[1] || digests[1] != digests[2] {
		t.Errorf("digests differ: %v", digests)
	}
	a, b := written(t, dirs[0]), written(t, dirs[1])
	if len(a) < 8 {
		t.Errorf("%d files were written, which is less than the layout and the two archives", len(a))
	}
	for file := range a {
		if a[file] != b[file] {
			t.Errorf("%s differs from run to run", file)
		}
	}
	if len(a) != len(b) {
		t.Errorf("%d files in one run, %d in another", len(a), len(b))
	}

	other := someRelease
	other.revision = "abd"
	if digest, err := write(t.TempDir(), ref, both(t, other)); err != nil || digest == digests[0] {
		t.Errorf("another commit has the same image (%v)", err)
	}
}

func TestWhatIsNoLayoutIsNotRemoved(t *testing.T) {
	dir := t.TempDir()
	mine := filepath.Join(dir, "oci", "mine")
	if err := errors.Join(os.Mkdir(filepath.Dir(mine), 0o755), os.WriteFile(mine, nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	_, err := write(dir, name.MustParseReference("bowline:x").(name.Tag), both(t, someRelease))
	if err == nil || !strings.Contains(err.Error(), "no OCI layout") {
		t.Errorf("err = %v", err)
	}
	if _, err := os.Stat(mine); err != nil {
		t.Error(err)
	}
}

func TestLayoutAndArchivesAreWhole(t *testing.T) {
	dir := t.TempDir()
	if _, err := write(dir, name.MustParseReference("bowline:v1.2.3").(name.Tag), both(t, someRelease)); err != nil {
		t.Fatal(err)
	}
	top, err := layout.ImageIndexFromPath(filepath.Join(dir, "oci"))
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := top.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Manifests) != 1 || manifest.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != "v1.2.3" {
		t.Fatalf("the layout names %+v", manifest.Manifests)
	}
	all, err := top.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(all); err != nil {
		t.Error(err)
	}
	m, err := all.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var platforms []string
	for _, d := range m.Manifests {
		platforms = append(platforms, d.Platform.String())
		archived, err := tarball.ImageFromPath(filepath.Join(dir, "bowline-"+d.Platform.Architecture+".tar"), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := validate.Image(archived); err != nil {
			t.Error(err)
		}
		config, err := archived.ConfigFile()
		if err != nil || config.Platform().String() != d.Platform.String() {
			t.Errorf("the archive of %v is for %v (%v)", d.Platform, config.Platform(), err)
		}
	}
	if want := []string{"linux/amd64", "linux/arm64"}; !slices.Equal(platforms, want) {
		t.Errorf("platforms %v, want %v", platforms, want)
	}
}

func TestImage(t *testing.T) {
	img, err := image(someRelease, "arm64", []byte("program"))
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Config.User != "65532:65532" || !slices.Equal(config.Config.Entrypoint, []string{"/bin/bowline"}) {
		t.Errorf("user %q, entrypoint %q", config.Config.User, config.Config.Entrypoint)
	}
	for label, want := range map[string]string{
		"version": "v1.2.3", "revision": "abc", "created": "2023-11-14T22:13:20Z", "licenses": "Apache-2.0",
	} {
		if got := config.Config.Labels["org.opencontainers.image."+label]; got != want {
			t.Errorf("label %s is %q, want %q", label, got, want)
		}
	}
	layers, err := img.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v", len(layers), err)
	}
	content, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	found := map[string]*tar.Header{}
	for archive := tar.NewReader(content); ; {
		h, err := archive.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		found[h.Name] = h
		if !h.ModTime.Equal(someRelease.created) || h.Uid != 0 || h.Gid != 0 {
			t.Errorf("%s: of %d:%d, %v: a file's owner and time are not the machine's that built it", h.Name, h.Uid, h.Gid, h.ModTime)
		}
		if data, err := io.ReadAll(archive); h.Name == "bin/bowline" && (err != nil || !bytes.Equal(data, []byte("program"))) {
			t.Errorf("the program is %q, %v", data, err)
		}
	}
	for name, mode := range map[string]int64{"bin/bowline": 0o755, "etc/passwd": 0o644, "tmp/": 0o1777, "etc/ssl/certs/": 0o755} {
		if h := found[name]; h == nil || h.Mode != mode {
			t.Errorf("%s: %+v, want mode %o", name, h, mode)
		}
	}
}

func TestPushedIndexIsPulledByPlatform(t *testing.T) {
	server := httptest.NewServer(registry.New())
	defer server.Close()
	ref, err := name.NewTag(strings.TrimPrefix(server.URL, "http://") + "/bowline:v1")
	if err != nil {
		t.Fatal(err)
	}
	images := both(t, someRelease)
	all, err := index(images)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(ref, all); err != nil {
		t.Fatal(err)
	}
	pulled, err := remote.Image(ref, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: "arm64"}))
	if err != nil {
		t.Fatal(err)
	}
	got, err := pulled.Digest()
	want, wantErr := images[1].Digest()
	if err != nil || wantErr != nil || got != want {
		t.Errorf("pulled %v (%v), want %v (%v)", got, err, want, wantErr)
	}
}

// TestTheProgramKnowsItsCommit: "bowline version" in the image prints its commit, as a program
// built with "make build" does.
func TestTheProgramKnowsItsCommit(t *testing.T) {
	source := t.TempDir()
	main, version := filepath.Join(source, "cmd", "bowline", "main.go"), filepath.Join(source, "version", "version.go")
	if err := errors.Join(
		os.MkdirAll(filepath.Dir(main), 0o755),
		os.MkdirAll(filepath.Dir(version), 0o755),
		os.WriteFile(filepath.Join(source, "go.mod"), []byte("module github.com/bowline-k8s/bowline\n"), 0o644),
		os.WriteFile(version, []byte("package version\n\nvar Version, Commit string\n"), 0o644),
		os.WriteFile(main, []byte("package main\n\nimport \"github.com/bowline-k8s/bowline/version\"\n\nfunc main() { println(version.Version, version.Commit) }\n"), 0o644),
	); err != nil {
		t.Fatal(err)
	}
	program, err := compile(t.Context(), source, release{version: "v1.2.3", revision: "abc"}, runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "bowline")
	if err := os.WriteFile(file, program, 0o755); err != nil {
		t.Fatal(err)
	}
	said, err := exec.CommandContext(t.Context(), file).CombinedOutput()
	if err != nil || strings.TrimSpace(string(said)) != "v1.2.3 abc" {
		t.Errorf("it says %q, %v", said, err)
	}
}
