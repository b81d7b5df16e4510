package registry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func architecture() string { return runtime.GOARCH }

// direct carries requests to the registry's handler without a connection, so that the registry can
// be filled before it listens.
type direct struct{ handler http.Handler }

func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	if r.Body == nil {
		r.Body = http.NoBody
	}
	d.handler.ServeHTTP(w, r)
	resp := w.Result()
	resp.Request = r
	return resp, nil
}

// Newer reports whether a program of a built-in image was built after t.
func Newer(bin string, t time.Time) bool {
	for _, b := range BuiltIns {
		for _, p := range b.Programs {
			if info, err := os.Stat(filepath.Join(bin, p)); err == nil && info.ModTime().After(t) {
				return true
			}
		}
	}
	return false
}

// fill pushes the built-in images, and those that were loaded earlier.
func fill(ctx context.Context, handler http.Handler, bin, loaded string) error {
	push := func(image string, img v1.Image) error {
		ref, err := name.ParseReference("registry.invalid/"+image, name.Insecure)
		if err != nil {
			return err
		}
		if err := remote.Write(ref, img, remote.WithContext(ctx), remote.WithTransport(direct{handler}), remote.WithJobs(1)); err != nil {
			return fmt.Errorf("fill the registry with %s: %w", image, err)
		}
		return nil
	}
	for _, b := range BuiltIns {
		img, err := b.Build(bin)
		if err != nil {
			return err
		}
		if err := push(b.Name, img); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(loaded)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		image, ok := keptName(e.Name())
		if !ok {
			continue
		}
		img, err := tarball.ImageFromPath(filepath.Join(loaded, e.Name()), nil)
		if err != nil {
			return err
		}
		if err := push(image, img); err != nil {
			return err
		}
	}
	return nil
}

// Keep writes an image into the directory from which the registry is filled at its start.
func Keep(loaded, image string, img v1.Image) error {
	if err := os.MkdirAll(loaded, 0o755); err != nil {
		return err
	}
	ref, err := name.NewTag("registry.invalid/" + image)
	if err != nil {
		return err
	}
	path := filepath.Join(loaded, keptFile(image))
	if err := tarball.WriteToFile(path+".tmp", ref, img); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

// keptFile returns the file name of a loaded image: its name, with the characters that a file name
// cannot hold written as %2F and %3A.
func keptFile(image string) string {
	return strings.NewReplacer("%", "%25", "/", "%2F", ":", "%3A").Replace(image) + ".tar"
}

func keptName(file string) (image string, ok bool) {
	base, ok := strings.CutSuffix(file, ".tar")
	return strings.NewReplacer("%2F", "/", "%3A", ":", "%25", "%").Replace(base), ok
}

// Kept lists the names of the images that were loaded.
func Kept(loaded string) []string {
	entries, err := os.ReadDir(loaded)
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		if image, ok := keptName(e.Name()); ok {
			names = append(names, image)
		}
	}
	return names
}
