package volume

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/local"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// realHost is this machine, with a directory of the test's own.
func realHost(t *testing.T) (host.Host, string) {
	t.Helper()
	h, err := local.New(local.Config{})
	testutil.Must(t, err)
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h, t.TempDir()
}

func realManager(t *testing.T, h host.Host, c *cluster, root string) *Manager {
	t.Helper()
	m, err := New(Config{Host: h, Objects: c, Tokens: c, RootDir: root, Allocatable: func() v1.ResourceList { return nil }})
	testutil.Must(t, err)
	return m
}

func read(t *testing.T, p string) string {
	t.Helper()
	data := testutil.ReadFile(t, p)
	return string(data)
}

// TestARealFileSystem runs a pod's life on this machine; the steps that need mounts run if mounting
// is allowed.
func TestARealFileSystem(t *testing.T) {
	h, root := realHost(t)
	c := newCluster()
	p := testPod(configMapVolume("cfg"), emptyDir("", ""))
	probe := filepath.Join(root, "probe")
	mountErr := h.Mount(t.Context(), host.Mount{Source: "tmpfs", Target: probe, Type: "tmpfs"})
	mountable := mountErr == nil
	if mountable {
		testutil.Must(t, h.Unmount(t.Context(), probe))
		p = testPod(configMapVolume("cfg"), emptyDir("", ""), secretVolume("sec"), tokenVolume(), labelsVolume(), emptyDir(v1.StorageMediumMemory, "1Mi"))
	} else if !errors.Is(mountErr, fs.ErrPermission) {
		t.Fatal(mountErr)
	}
	t.Logf("with mounts: %v", mountable)
	// Nothing of this test outlives it, whatever fails.
	t.Cleanup(func() { _ = realManager(t, h, c, root).Release(t.Context(), p.UID) })

	gid := int64(os.Getgid())
	p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &gid}
	p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "cfg", MountPath: "/a"}, {Name: "scratch", MountPath: "/a/nested"}}

	m := realManager(t, h, c, root)
	mounts := prepare(t, m, p)
	if got := read(t, mounts["cfg"].HostPath+"/k"); got != "v" {
		t.Errorf("k = %q", got)
	}
	if st, err := os.Stat(mounts["cfg"].HostPath + "/nested"); err != nil || !st.IsDir() {
		t.Errorf("nested mount point: %v", err)
	}
	st, err := os.Stat(mounts["scratch"].HostPath)
	if err != nil || st.Mode() != fs.ModeDir|fs.ModeSetgid|0o777 {
		t.Errorf("emptyDir: %v %v", st.Mode(), err)
	}
	if mountable {
		var disk, memory syscall.Stat_t
		if err := errors.Join(syscall.Stat(root, &disk), syscall.Stat(mounts["sec"].HostPath, &memory)); err != nil || disk.Dev == memory.Dev {
			t.Errorf("the secret lies on the disk: %v", err)
		}
		if got := read(t, mounts["token"].HostPath+"/token"); got != "SECRET-token/u/" {
			t.Errorf("token = %q", got)
		}
		if st, err := os.Stat(mounts["token"].HostPath + "/token"); err != nil || st.Mode() != 0o640 {
			t.Errorf("token: %v %v", st.Mode(), err)
		}
	}

	// The container works; then another process adopts the pod.
	testutil.Must(t, os.WriteFile(mounts["scratch"].HostPath+"/work", []byte("done"), 0o600))
	testutil.Must(t, os.Chmod(mounts["scratch"].HostPath, 0o700))
	version, err := os.Readlink(mounts["cfg"].HostPath + "/..data")
	testutil.Must(t, err)
	m = realManager(t, h, c, root)
	prepare(t, m, p)
	prepare(t, m, p)
	if got := read(t, mounts["scratch"].HostPath+"/work"); got != "done" {
		t.Errorf("work = %q", got)
	}
	if st, err := os.Stat(mounts["scratch"].HostPath); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("the container's mode is lost: %v %v", st.Mode(), err)
	}
	if again, err := os.Readlink(mounts["cfg"].HostPath + "/..data"); err != nil || again != version {
		t.Errorf("unchanged content was written again: %s, %s, %v", version, again, err)
	}

	c.setConfigMap("cfg", "k", "new")
	testutil.Must(t, m.Refresh(t.Context(), p))
	if got := read(t, mounts["cfg"].HostPath+"/k"); got != "new" {
		t.Errorf("k = %q", got)
	}

	// subPath: a file of the configMap, a new directory, and nothing outside. A start after an
	// update gets the new file.
	sub := func(volume, at string) (string, error) {
		return m.SubPath(t.Context(), p, "c", 0, &v1.VolumeMount{Name: volume}, at)
	}
	if mountable {
		at, err := sub("cfg", "k")
		if err != nil || read(t, at) != "new" || at != PodDir(root, "u")+"/volume-subpaths/cfg/c/0" {
			t.Errorf("subPath k: %s, %v", at, err)
		}
		c.setConfigMap("cfg", "k", "newer")
		testutil.Must(t, m.Refresh(t.Context(), p))
		if got := read(t, at); got != "new" {
			t.Errorf("a container that runs sees %q", got)
		}
		if at, err := sub("cfg", "k"); err != nil || read(t, at) != "newer" {
			t.Errorf("subPath k: %s, %v", at, err)
		}
		if at, err := sub("scratch", "x/y"); err != nil {
			t.Error(err)
		} else if st, err := os.Stat(at); err != nil || !st.IsDir() {
			t.Errorf("subPath x/y: %v", err)
		}
		testutil.Must(t, os.Symlink("/etc", mounts["scratch"].HostPath+"/etc"))
		if at, err := sub("scratch", "etc/passwd"); err == nil {
			t.Errorf("subPath leaves the volume: %s", at)
		}
	}

	records, err := h.List(t.Context(), RecordDir(root))
	testutil.Must(t, err)
	if uids, err := realManager(t, h, c, root).Orphans(t.Context(), records); err != nil || len(uids) != 1 || uids[0] != "u" {
		t.Errorf("orphans = %v, %v", uids, err)
	}
	testutil.Must(t, realManager(t, h, c, root).Release(t.Context(), "u"))
	if _, err := os.Lstat(PodDir(root, "u")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("pod directory: %v", err)
	}
	if left, err := h.ListMounts(t.Context(), root); err != nil || len(left) != 0 {
		t.Errorf("mounted: %v, %v", left, err)
	}
}

// TestAFullDisk: the volume fails with ENOSPC and is not left incomplete; it is set up once there
// is room.
func TestAFullDisk(t *testing.T) {
	h, dir := realHost(t)
	root := dir + "/small"
	if err := h.Mount(t.Context(), host.Mount{Source: "tmpfs", Target: root, Type: "tmpfs", Options: []string{"size=256k"}}); err != nil {
		t.Skipf("mounts are not allowed: %v", err)
	}
	t.Cleanup(func() {
		if err := h.Unmount(context.Background(), root); err != nil {
			t.Error(err)
		}
	})
	c := newCluster()
	m := realManager(t, h, c, root)
	p := testPod(configMapVolume("cfg"), emptyDir("", ""))
	testutil.Must(t, makePodDirs(t.Context(), m, p))
	c.setConfigMap("cfg", "k", strings.Repeat("x", 20_000))
	ballast := root + "/ballast"
	if err := os.WriteFile(ballast, make([]byte, 1<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	_, err := m.Prepare(t.Context(), p)
	failures := Failures(err)
	if len(failures) != 1 || failures[0].Volume != "cfg" || failures[0].Reason != ReasonFailedMount || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("on a full disk: %v", err)
	}
	if _, err := os.Lstat(m.volumeDir(p.UID, pluginConfigMap, "cfg") + "/k"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file is there: %v", err)
	}
	testutil.Must(t, os.Remove(ballast))
	mounts := prepare(t, m, p)
	// While the pod runs, the old content stays complete until there is room.
	if err := os.WriteFile(ballast, make([]byte, 1<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	c.setConfigMap("cfg", "k", strings.Repeat("y", 20_000))
	if err := m.Refresh(t.Context(), p); !errors.Is(err, syscall.ENOSPC) || len(Failures(err)) != 1 {
		t.Errorf("refresh: %v", err)
	}
	if got := read(t, mounts["cfg"].HostPath+"/k"); got != strings.Repeat("x", 20_000) {
		t.Errorf("%d bytes of %.1q", len(got), got)
	}
	testutil.Must(t, os.Remove(ballast))
	if err := m.Refresh(t.Context(), p); err != nil {
		t.Error(err)
	}
	if got := read(t, mounts["cfg"].HostPath+"/k"); got != strings.Repeat("y", 20_000) {
		t.Errorf("%d bytes of %.1q", len(got), got)
	}
}

// BenchmarkPrepare sets up and releases the volumes of an ordinary pod with a token.
func BenchmarkPrepare(b *testing.B) {
	h, err := local.New(local.Config{})
	testutil.Must(b, err)
	defer h.Close()
	root, c := b.TempDir(), newCluster()
	m, err := New(Config{Host: h, Objects: c, Tokens: c, RootDir: root, Allocatable: func() v1.ResourceList { return nil }})
	testutil.Must(b, err)
	p := testPod(tokenVolume())
	for b.Loop() {
		if _, err := m.Prepare(b.Context(), p); err != nil {
			b.Skipf("mounts are not allowed: %v", err)
		}
		testutil.Must(b, m.Release(b.Context(), p.UID))
	}
}
