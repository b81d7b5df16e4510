package ssh_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/ssh"
	"github.com/bowline-k8s/bowline/host/ssh/shell"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestProgramsOfAPod counts the programs that the host starts for operations at the start and at
// the end of a pod. Fifty pods that start or end at once keep a small host busy with little else,
// so each program more delays all of them.
func TestProgramsOfAPod(t *testing.T) {
	if os.Getuid() != 0 || exec.Command("unshare", "-m", "--propagation", "private", "true").Run() != nil {
		t.Skip("no mounts without root and unshare")
	}
	if out, _ := exec.Command("rm", "--help").CombinedOutput(); !strings.Contains(string(out), "one-file-system") {
		t.Skip("rm is not GNU's")
	}
	d := t.TempDir()
	bin, started := filepath.Join(d, "bin"), filepath.Join(d, "started")
	testutil.Must(t, os.Mkdir(bin, 0o755))
	for dir := range strings.SplitSeq(shell.DefaultPath, ":") {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			to := filepath.Join(bin, e.Name())
			if _, err := os.Lstat(to); err == nil || e.Name() == "sh" {
				continue
			}
			text := "#!/bin/sh\necho '" + e.Name() + "' >>'" + started + "'\nexec '" + filepath.Join(dir, e.Name()) + `' "$@"` + "\n"
			testutil.Must(t, os.WriteFile(to, []byte(text), 0o755))
		}
	}
	h := open(t, ssh.Config{Path: bin + ":/bin"})
	closeHost(t, h)

	ctx := t.Context()
	pod := filepath.Join(d, "pods", "3f0a")
	volumes := filepath.Join(pod, "volumes")
	token := filepath.Join(volumes, "kubernetes.io~projected", "kube-api-access")
	secret := filepath.Join(volumes, "kubernetes.io~secret", "key")
	for _, dir := range []string{token, secret} {
		testutil.Must(t, h.MkdirAll(ctx, dir, 0o750, nil))
		testutil.Must(t, h.Mount(ctx, host.Mount{Type: "tmpfs", Source: "tmpfs", Target: dir}))
		t.Cleanup(func() { testutil.Must(t, h.Unmount(context.Background(), dir)) })
	}
	// The first request with a script carries its text, which dd reads.
	_, err := h.ListMounts(ctx, d)
	_, makeErr := h.Make(ctx, host.Entry{Path: d, Mode: fs.ModeDir | 0o755})
	_, tailErr := h.ReadTail(ctx, started, 10)
	testutil.Must(t, errors.Join(err, makeErr, tailErr, h.Unmount(ctx, d), h.RemoveTree(ctx, filepath.Join(d, "none"))))
	cgroup := "/bowline-programs-" + filepath.Base(d) + strconv.Itoa(os.Getpid())
	cgroupErr := errors.Join(h.RemoveCgroup(ctx, cgroup, true), h.EnsureCgroup(ctx, cgroup, host.CgroupResources{}))
	t.Cleanup(func() {
		if err := h.RemoveCgroup(context.Background(), cgroup, true); cgroupErr == nil {
			testutil.Must(t, err)
		}
	})
	container := filepath.Join(pod, "containers", "main")
	files := []host.Entry{
		{Path: container, Mode: fs.ModeDir | 0o755},
		{Path: filepath.Join(container, "0"), Mode: 0o666},
		{Path: filepath.Join(pod, "etc-hosts"), Mode: 0o644, Data: []byte("127.0.0.1 localhost\n"), InPlace: true},
	}
	for _, step := range []struct {
		name string
		do   func() error
		want []string
	}{
		{"Make", func() error { _, err := h.Make(ctx, files...); return err }, []string{"mkdir"}},
		{"ReadTail of an empty file", func() error { _, err := h.ReadTail(ctx, files[1].Path, 100); return err }, nil},
		{"ListMounts", func() error { _, err := h.ListMounts(ctx, pod); return err }, []string{"head", "sed"}},
		{"Unmount", func() error { return h.Unmount(ctx, secret) }, []string{"sed", "umount"}},
		{"Unmount again", func() error { return h.Unmount(ctx, secret) }, []string{"sed"}},
		{"RemoveTree", func() error { return h.RemoveTree(ctx, pod, token) }, []string{"grep", "rm", "umount", "unshare"}},
		{"RemoveCgroup", func() error { return h.RemoveCgroup(ctx, cgroup, true) }, []string{"rmdir"}},
	} {
		t.Run(step.name, func(t *testing.T) {
			if step.name == "RemoveCgroup" && cgroupErr != nil {
				t.Skipf("no cgroup can be made here: %v", cgroupErr)
			}
			if err := os.Remove(started); err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			testutil.Must(t, step.do())
			data, err := os.ReadFile(started)
			if err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			got := strings.Fields(string(data))
			if diff := cmp.Diff(step.want, slices.Sorted(slices.Values(got))); diff != "" {
				t.Errorf("programs started (-want +got):\n%s", diff)
			}
		})
	}
}
