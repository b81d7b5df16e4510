package registry

import (
	"archive/tar"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/bowline-k8s/bowline/lab/internal/testutil"
)

// An image of a directory has its links, modes and configuration, and does not depend on when its
// files were written.
func TestFromDirectory(t *testing.T) {
	make := func(age time.Duration) string {
		dir := t.TempDir()
		root := filepath.Join(dir, rootFS)
		must := func(errs ...error) {
			t.Helper()
			testutil.Must(t, errors.Join(errs...))
		}
		must(os.MkdirAll(filepath.Join(root, "usr/bin"), 0o755), os.MkdirAll(filepath.Join(root, "tmp"), 0o755))
		must(os.Chmod(filepath.Join(root, "tmp"), 0o777|fs.ModeSticky),
			os.WriteFile(filepath.Join(root, "usr/bin/tool"), []byte("tool"), 0o755),
			os.Chmod(filepath.Join(root, "usr/bin/tool"), 0o755|fs.ModeSetuid),
			os.Symlink("usr/bin", filepath.Join(root, "bin")),
			os.WriteFile(filepath.Join(dir, configFile), []byte(`{"Cmd":["tool"],"User":"1234","Env":["A=b"]}`), 0o644))
		at := time.Now().Add(-age)
		must(os.Chtimes(filepath.Join(root, "usr/bin/tool"), at, at))
		return dir
	}
	image, err := Load(make(0))
	testutil.Must(t, err)
	file, err := image.ConfigFile()
	testutil.Must(t, err)
	if c := file.Config; !slices.Equal(c.Cmd, []string{"tool"}) || c.User != "1234" || !slices.Equal(c.Env, []string{"A=b"}) || file.OS != "linux" {
		t.Errorf("the configuration is %+v of %s", c, file.OS)
	}
	var got []string
	r := tar.NewReader(mutate.Extract(image))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		testutil.Must(t, err)
		got = append(got, strings.TrimRight(h.Name, "/")+" "+h.FileInfo().Mode().String()+" "+h.Linkname)
	}
	slices.Sort(got)
	want := []string{"bin Lrwxrwxrwx usr/bin", "tmp dtrwxrwxrwx ", "usr drwxr-xr-x ", "usr/bin drwxr-xr-x ", "usr/bin/tool urwxr-xr-x "}
	if !slices.Equal(got, want) {
		t.Errorf("the image holds\n%q, not\n%q", got, want)
	}
	digest, err := image.Digest()
	testutil.Must(t, err)
	other, err := Load(make(time.Hour))
	testutil.Must(t, err)
	if again, err := other.Digest(); err != nil || again != digest {
		t.Errorf("the same files an hour older give %s, not %s: %v", again, digest, err)
	}
	if _, err := Load(t.TempDir()); err == nil || !strings.Contains(err.Error(), configFile) {
		t.Errorf("an empty directory: %v", err)
	}
}
