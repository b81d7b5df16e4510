package volume

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// flipping changes a volume just before a file in it is mounted.
type flipping struct {
	host.Host
	before func()
}

func (h flipping) BindSubPath(ctx context.Context, s host.SubPath) error {
	h.before()
	return h.Host.BindSubPath(ctx, s)
}

// EnvFile reads only files of the volume, whatever a container puts in their place.
func TestEnvFileStaysInTheVolume(t *testing.T) {
	h, root := realHost(t)
	if err := h.Mount(t.Context(), host.Mount{Source: "tmpfs", Target: filepath.Join(root, "probe"), Type: "tmpfs"}); err != nil {
		t.Skip("nothing can be mounted here: ", err)
	}
	testutil.Must(t, h.Unmount(t.Context(), filepath.Join(root, "probe")))
	flip := func() {}
	m := realManager(t, flipping{h, func() { flip() }}, newCluster(), root)
	p := testPod(emptyDir("", ""))
	mounts, err := m.Prepare(t.Context(), p)
	testutil.Must(t, err)
	t.Cleanup(func() {
		if err := m.Release(context.Background(), p.UID); err != nil {
			t.Error(err)
		}
	})
	name := p.Spec.Volumes[0].Name
	dir := mounts[name].HostPath
	outside := filepath.Join(root, "canary")
	write := func(path, text string) {
		t.Helper()
		testutil.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		testutil.Must(t, os.WriteFile(path, []byte(text), 0o644))
	}
	link := func(to, path string) {
		t.Helper()
		_ = os.RemoveAll(path)
		testutil.Must(t, os.Symlink(to, path))
	}
	write(outside, "A=canary")
	write(dir+"/a/vars", "A=1")
	link("a", dir+"/to-a")
	link("/a/vars", dir+"/absolute")
	link("../../../../../../canary", dir+"/out")
	for file, want := range map[string]string{"a/vars": "A=1", "to-a/vars": "A=1", "absolute": "A=1"} {
		if got, err := m.EnvFile(t.Context(), p.UID, name, file); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", file, got, err)
		}
	}
	for _, file := range []string{"none", "a/none", "out", "a"} {
		if got, err := m.EnvFile(t.Context(), p.UID, name, file); err == nil {
			t.Errorf("%s: %q", file, got)
		}
	}
	if _, err := m.EnvFile(t.Context(), p.UID, name, "a/none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	if _, err := os.Stat(dir + "/none"); err == nil {
		t.Error("a file that was looked for was made")
	}
	for what, f := range map[string]func(){
		"the file is a link":      func() { link(outside, dir+"/a/vars") },
		"its directory is a link": func() { link(root, dir+"/a"); write(root+"/vars", "A=canary") },
	} {
		_ = os.RemoveAll(dir + "/a")
		write(dir+"/a/vars", "A=1")
		flip = f
		if got, err := m.EnvFile(t.Context(), p.UID, name, "a/vars"); err == nil || strings.Contains(string(got), "canary") {
			t.Errorf("%s: %q, %v", what, got, err)
		}
		flip = func() {}
	}
	left, err := h.ListMounts(t.Context(), root)
	if err != nil || len(left) != 0 {
		t.Errorf("mounts are left: %v, %v", left, err)
	}
}
