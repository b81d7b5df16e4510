package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

func TestReleaseInThisAndInANewProcess(t *testing.T) {
	for _, again := range []bool{false, true} {
		t.Run(fmt.Sprintf("new process %v", again), func(t *testing.T) {
			h, c := newMemHost(), newCluster()
			m := newManager(t, h, c)
			mounts := prepare(t, m, full())
			// A container mounted something inside an emptyDir, and it propagated.
			inner := mounts["scratchmemory"].HostPath + "/inner"
			testutil.Must(t, h.Mount(t.Context(), host.Mount{Target: inner}))
			if again {
				m = newManager(t, h, c)
			}
			for range 2 {
				testutil.Must(t, m.Release(t.Context(), "u"))
			}
			for p := range h.nodes {
				if strings.HasPrefix(p, "/root/pods/u") {
					t.Errorf("left: %s", p)
				}
			}
			if left := h.targets("/"); left != nil {
				t.Errorf("mounted: %v", left)
			}
			if !slices.Contains(c.forgotten, "u") {
				t.Error("the tokens are kept")
			}
			if h.nodes["/root/bowline/pods/u"] == nil {
				t.Error("the record went before the sweep of the pod's logs")
			}
			if m.Mounts("u") != nil {
				t.Error("mounts of a released pod")
			}
		})
	}
}

func TestReleaseNeverRemovesThroughAMount(t *testing.T) {
	h := newMemHost()
	m := newManager(t, h, newCluster())
	mounts := prepare(t, m, full())
	h.busy[mounts["sec"].HostPath] = true
	if err := m.Release(t.Context(), "u"); err == nil || !strings.Contains(err.Error(), "busy") {
		t.Fatalf("err = %v", err)
	}
	if h.nodes[mounts["sec"].HostPath] == nil || h.nodes[mounts["scratch"].HostPath] == nil {
		t.Error("removed with a mount inside")
	}
	// If a mount appears between ListMounts and the removal, Release lists the mounts again.
	delete(h.busy, mounts["sec"].HostPath)
	late := 0
	h.before = func(method, p string) {
		if method == "RemoveTree" && late < 1 {
			late++
			h.before = nil
			if err := h.Mount(t.Context(), host.Mount{Target: p + "/late"}); err != nil {
				t.Error(err)
			}
		}
	}
	testutil.Must(t, m.Release(t.Context(), "u"))
	if late != 1 || h.nodes["/root/pods/u"] != nil {
		t.Error("the pod directory is left")
	}
}

// A busy mount keeps the pod's directory and the volume that it belongs to, and nothing else. The
// next Release removes the rest.
func TestReleaseKeepsWhatIsInUse(t *testing.T) {
	h := newMemHost()
	m := newManager(t, h, newCluster())
	p := full()
	mounts := prepare(t, m, p)
	if _, err := m.SubPath(t.Context(), p, "c", 0, &v1.VolumeMount{Name: "scratchmemory"}, "dir"); err != nil {
		t.Fatal(err)
	}
	part := "/root/pods/u/volume-subpaths/scratchmemory/c/0"
	h.fails = map[string]error{part: &host.BusyError{Target: part, Type: "ext4", Source: "/dev/sdb", Users: []string{"42 (postgres)"}}}
	err := m.Release(t.Context(), "u")
	if !errors.Is(err, host.ErrBusy) || !strings.Contains(err.Error(), part) || !strings.Contains(err.Error(), "42 (postgres)") {
		t.Fatalf("err = %v", err)
	}
	if left := h.targets("/"); !slices.Equal(left, []string{mounts["scratchmemory"].HostPath, part}) && !slices.Equal(left, []string{part, mounts["scratchmemory"].HostPath}) {
		t.Errorf("left are %q", left)
	}
	if h.count("RemoveTree") != 0 {
		t.Error("removed with a mount inside")
	}
	h.fails = nil
	if err := m.Release(t.Context(), "u"); err != nil || len(h.mounts) > 0 || h.nodes["/root/pods/u"] != nil {
		t.Errorf("when it is free: %v, %v", err, h.targets("/"))
	}
}

func TestReleaseRefusesTheForeign(t *testing.T) {
	h, c := newMemHost(), newCluster()
	h.put("/root/pods/theirs/volumes/x", node{mode: 0o600})
	m := newManager(t, h, c)
	if err := m.Release(t.Context(), "theirs"); !errors.Is(err, ErrForeign) {
		t.Fatalf("err = %v", err)
	}
	if h.nodes["/root/pods/theirs/volumes/x"] == nil {
		t.Error("it was removed")
	}
	if err := m.Release(t.Context(), "never-was"); err != nil {
		t.Errorf("a pod that never was: %v", err)
	}
}

func TestReleaseWhenTheMachineIsSilent(t *testing.T) {
	for _, method := range []string{"ListMounts", "Unmount", "RemoveTree", "Stat"} {
		h, c := newMemHost(), newCluster()
		prepare(t, newManager(t, h, c), full())
		m := newManager(t, h, c)
		h.fail[method] = host.ErrUnreachable
		if err := m.Release(t.Context(), "u"); !errors.Is(err, host.ErrUnreachable) {
			t.Errorf("%s: %v", method, err)
		}
		delete(h.fail, method)
		if err := m.Release(t.Context(), "u"); err != nil || h.nodes["/root/pods/u"] != nil {
			t.Errorf("%s, then not: %v", method, err)
		}
	}
}

func TestOrphans(t *testing.T) {
	h, c := newMemHost(), newCluster()
	m := newManager(t, h, c)
	if got, err := m.Orphans(t.Context(), nil); err != nil || got != nil {
		t.Fatalf("%v, %v", got, err)
	}
	for _, uid := range []types.UID{"b", "a"} {
		p := testPod()
		p.UID = uid
		prepare(t, m, p)
	}
	h.put("/root/pods/theirs", node{mode: fs.ModeDir})
	h.put("/root/pods/file", node{})
	h.put("/root/bowline/pods/file", node{})
	h.put("/root/bowline/pods/released", node{})
	records, err := h.List(t.Context(), RecordDir("/root"))
	testutil.Must(t, err)
	if got, err := newManager(t, h, c).Orphans(t.Context(), records); err != nil || !slices.Equal(got, []types.UID{"a", "b"}) {
		t.Errorf("%v, %v", got, err)
	}
	h.fail["List"] = host.ErrUnreachable
	if _, err := m.Orphans(t.Context(), nil); !errors.Is(err, host.ErrUnreachable) {
		t.Errorf("err = %v", err)
	}
}

func TestSubPath(t *testing.T) {
	h := newMemHost()
	p := testPod(emptyDir("", ""), secretVolume("sec"))
	m := newManager(t, h, newCluster())
	if _, err := m.SubPath(t.Context(), p, "c", 0, &v1.VolumeMount{Name: "scratch"}, "x"); err == nil {
		t.Error("a subPath of a volume that was never prepared")
	}
	root := prepare(t, m, p)["scratch"].HostPath
	parts := "/root/pods/u/volume-subpaths"
	for sub, want := range map[string]string{
		"":                 root,
		".":                root,
		"dir//./file":      parts + "/scratch/c/3",
		"../x":             "unable to provision SubPath `../x`: must not contain '..'",
		"dir/../../escape": "unable to provision SubPath `dir/../../escape`: must not contain '..'",
		"/etc":             "error SubPath `/etc` must not be an absolute path",
	} {
		got, err := m.SubPath(t.Context(), p, "c", 3, &v1.VolumeMount{Name: "scratch"}, sub)
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: %s\nwant %s", sub, got, want)
		}
	}
	if got := h.mounts[parts+"/scratch/c/3"]; got == nil || got.Source != root+"/dir/file" {
		t.Errorf("mounted is %+v", got)
	}
	if _, err := m.SubPath(t.Context(), p, "c", 0, &v1.VolumeMount{Name: "zz"}, "x"); err == nil || err.Error() != `cannot find volume "zz" to mount into container "c"` {
		t.Errorf("err = %v", err)
	}
	// The error reveals nothing of the host's file system, except that the host does not answer.
	secret := errors.New("/etc/shadow")
	for _, c := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("%w: %w", host.ErrSubPathUnsafe, secret), `failed to prepare subPath for volumeMount "scratch" of container "c"`},
		{secret, `failed to prepare subPath for volumeMount "scratch" of container "c"`},
		{fmt.Errorf("%w: %w", host.ErrSubPathMake, secret), `failed to create subPath directory for volumeMount "scratch" of container "c"`},
	} {
		h.fail["BindSubPath"] = c.err
		if _, err := m.SubPath(t.Context(), p, "c", 0, &v1.VolumeMount{Name: "scratch"}, "dir"); err == nil || err.Error() != c.want {
			t.Errorf("%v: err = %v", c.err, err)
		}
	}
	h.fail["BindSubPath"] = fmt.Errorf("dial: %w", host.ErrUnreachable)
	if _, err := m.SubPath(t.Context(), p, "c", 0, &v1.VolumeMount{Name: "scratch"}, "dir"); !errors.Is(err, host.ErrUnreachable) {
		t.Errorf("err = %v", err)
	}
	delete(h.fail, "BindSubPath")

	// Another process unmounts them, before the volumes.
	if _, err := m.SubPath(t.Context(), p, "longer-than-a-volume", 0, &v1.VolumeMount{Name: "sec"}, "dir"); err != nil {
		t.Fatal(err)
	}
	testutil.Must(t, newManager(t, h, newCluster()).Release(t.Context(), "u"))
	if len(h.mounts) > 0 || len(h.unmounted) != 3 || !strings.Contains(h.unmounted[2], "kubernetes.io~secret/sec") {
		t.Errorf("unmounted %q, left %v", h.unmounted, h.mounts)
	}
	// A late start of a container mounts nothing.
	testutil.Must(t, m.Release(t.Context(), "u"))
	if at, err := m.SubPath(t.Context(), p, "c", 0, &v1.VolumeMount{Name: "scratch"}, "dir"); err == nil || len(h.mounts) > 0 {
		t.Errorf("after the release: %s, %v", at, err)
	}
}

// TestReleaseWithoutAList: if this process knows all mounts of a pod, Release does not list them. It
// does if it cannot know them, or if the removal finds another one.
func TestReleaseWithoutAList(t *testing.T) {
	subPath := func(t *testing.T, h *memHost, m *Manager, p *v1.Pod) {
		_, err := m.SubPath(t.Context(), p, "c", 0, &v1.VolumeMount{Name: "scratch"}, "dir")
		testutil.Must(t, err)
	}
	inside := func(at string) func(*testing.T, *memHost, *Manager, *v1.Pod) {
		return func(t *testing.T, h *memHost, _ *Manager, _ *v1.Pod) {
			testutil.Must(t, h.Mount(t.Context(), host.Mount{Target: at}))
		}
	}
	for _, c := range []struct {
		name   string
		before func(*testing.T, *memHost, *Manager, *v1.Pod)
		again  bool // another process releases
		lists  int
	}{
		{name: "known"},
		{name: "a reboot of the host", before: func(_ *testing.T, h *memHost, _ *Manager, _ *v1.Pod) { h.reboot() }},
		{name: "another process", again: true, lists: 1},
		{name: "a subPath", before: subPath, lists: 1},
		{name: "a mount in a volume on disk", before: inside("/root/pods/u/volumes/kubernetes.io~empty-dir/scratch/inner"), lists: 1},
		{name: "a mount in a volume in memory", before: inside("/root/pods/u/volumes/kubernetes.io~secret/sec/inner"), lists: 1},
		{name: "a disk that hides a volume in memory", before: func(_ *testing.T, h *memHost, _ *Manager, _ *v1.Pod) {
			target := "/root/pods/u/volumes/kubernetes.io~secret/sec"
			h.fails = map[string]error{target: &host.BusyError{Target: target}}
			h.before = func(method, _ string) {
				if method == "ListMounts" {
					h.fails = nil
				}
			}
		}, lists: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, cluster := newMemHost(), newCluster()
			m, p := newManager(t, h, cluster), testPod(emptyDir("", ""), secretVolume("sec"))
			prepare(t, m, p)
			if c.before != nil {
				c.before(t, h, m, p)
			}
			if c.again {
				m = newManager(t, h, cluster)
			}
			h.calls = nil
			testutil.Must(t, m.Release(t.Context(), "u"))
			if c.lists == 0 && !slices.Equal(h.calls, []string{"RemoveTree /root/pods/u"}) {
				t.Errorf("calls: %q", h.calls)
			}
			if lists := h.count("ListMounts"); lists != c.lists {
				t.Errorf("%d lists, want %d: %q", lists, c.lists, h.calls)
			}
			if len(h.mounts) > 0 || h.nodes["/root/pods/u"] != nil {
				t.Errorf("left are the mounts %v and %v", h.mounts, h.nodes["/root/pods/u"])
			}
		})
	}
}
