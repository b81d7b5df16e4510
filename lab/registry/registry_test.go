package registry

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/bowline-k8s/bowline/lab/internal/testutil"
)

func TestKeptNamesComeBack(t *testing.T) {
	for _, image := range []string{"app:v1", "team/app:v1", "odd%2Fname:1"} {
		if got, ok := keptName(keptFile(image)); !ok || got != image {
			t.Errorf("%q becomes %q", image, got)
		}
	}
	if _, ok := keptName("app%3Av1.tar.tmp"); ok {
		t.Error("a file that was not finished is taken for an image")
	}
}

// Pushed images exist again after a restart, beside the built-in ones.
func TestServe(t *testing.T) {
	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	testutil.Must(t, os.Mkdir(bin, 0o755))
	for _, b := range BuiltIns {
		for _, p := range b.Programs {
			testutil.Must(t, os.WriteFile(filepath.Join(bin, p), []byte("\x7fELF"+p), 0o755))
		}
	}
	img, err := Load(filepath.Join(bin, "web"))
	testutil.Must(t, err)
	address := serve(t, bin, dir)
	testutil.Must(t, Push(context.Background(), address, "team/app:v1", img))
	testutil.Must(t, Keep(filepath.Join(dir, "images"), "team/app:v1", img))
	again := serve(t, bin, dir)
	want, err := img.ConfigName()
	testutil.Must(t, err)
	if got := pull(t, again, "team/app:v1"); got != want {
		t.Errorf("the image comes back as %s, was %s", got, want)
	}
	for _, b := range BuiltIns {
		pull(t, again, b.Name)
	}
}

func serve(t *testing.T, bin, dir string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.Must(t, err)
	address := l.Addr().String()
	l.Close()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, address, bin, filepath.Join(dir, "blobs"), filepath.Join(dir, "images")) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	for deadline := time.Now().Add(20 * time.Second); ; {
		if resp, err := http.Get("http://" + address + "/v2/"); err == nil {
			resp.Body.Close()
			return address
		}
		if time.Now().After(deadline) {
			t.Fatal("the registry does not answer")
		}
	}
}

func pull(t *testing.T, address, image string) v1.Hash {
	t.Helper()
	ref, err := name.ParseReference(address+"/"+image, name.Insecure)
	testutil.Must(t, err)
	img, err := remote.Image(ref)
	testutil.Must(t, err)
	hash, err := img.ConfigName()
	testutil.Must(t, err)
	return hash
}
