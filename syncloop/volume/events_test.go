package volume

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/host"
)

// told collects events as "KIND/NAME TYPE REASON MESSAGE".
type told struct {
	mu   sync.Mutex
	list []string
}

func (r *told) event(about runtime.Object, kind, reason, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	name := ""
	switch o := about.(type) {
	case *v1.Pod:
		name = "pod/" + o.Name
	case *v1.PersistentVolume:
		name = "pv/" + o.Name
	}
	r.list = append(r.list, strings.Join([]string{name, kind, reason, message}, " "))
}

func (r *told) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.list
	r.list = nil
	return list
}

// telling is a manager of claims that records events.
func telling(t *testing.T, h *memHost, b *bindings) (*Manager, *told) {
	t.Helper()
	m, r := claimManager(t, h, b), &told{}
	m.cfg.Event = r.event
	return m, r
}

// TestEventsOfABlockVolume: a block volume that the pod gets has a kubelet's event, once for the pod, even
// across processes; one that it cannot get fails with another reason than a file system.
func TestEventsOfABlockVolume(t *testing.T) {
	h := newMemHost()
	h.put("/dev/sdx", node{mode: fs.ModeDevice | 0o660})
	b := bound(localSource("/dev/sdy"))
	block := v1.PersistentVolumeBlock
	b.volumes["pv"].Spec.VolumeMode = &block
	p := testPod(claimVolume(false))
	p.Spec.Containers[0].VolumeDevices = []v1.VolumeDevice{{Name: "data", DevicePath: "/dev/x"}}
	m, r := telling(t, h, b)
	_, err := m.Prepare(t.Context(), p)
	want := `MapVolume.MapBlockVolume failed for volume "data" : path "/dev/sdy" does not exist`
	if f := Failures(err); len(f) != 1 || f[0].Reason != "FailedMapVolume" || f[0].Error() != want {
		t.Errorf("%+v, want %s", f, want)
	}
	if got := r.take(); len(got) > 0 {
		t.Errorf("events of a volume that the pod has not got: %q", got)
	}
	b.volumes["pv"].Spec.Local.Path = "/dev/sdx"
	prepare(t, m, p)
	prepare(t, m, p)
	again, r2 := telling(t, h, b)
	prepare(t, again, p)
	if d := cmp.Diff([]string{`pod/p Normal SuccessfulMountVolume MapVolume.MapPodDevice succeeded for volume "pv" devicePath "/dev/sdx"`}, append(r.take(), r2.take()...)); d != "" {
		t.Error(d)
	}
}

// TestEventOfAnotherFileSystem: the event is on the persistent volume, whose fsType is wrong.
func TestEventOfAnotherFileSystem(t *testing.T) {
	for format, want := range map[string][]string{
		"ext4": {`pv/pv Warning FailedMountOnFilesystemMismatch MountVolume failed for volume "pv" mount /dev/sdb as xfs, and what is on it is ext4: no`},
		"xfs":  nil, // the mount fails for another reason
	} {
		h := disk(&format, false)
		h.fail["Mount"] = errors.New("no")
		b := bound(localSource("/dev/sdb"))
		b.volumes["pv"].Spec.Local.FSType = ptr("xfs")
		m, r := telling(t, h, b)
		if _, err := m.Prepare(t.Context(), testPod(claimVolume(false))); err == nil {
			t.Error("it is mounted")
		}
		if d := cmp.Diff(want, r.take()); d != "" {
			t.Errorf("%s: %s", format, d)
		}
	}
}

// TestGroupOfASharedVolume: while a pod has a local volume, another pod does not change the group of its
// files. If it wants another group, an event says so, once.
func TestGroupOfASharedVolume(t *testing.T) {
	format := "ext4"
	disk := disk(&format, false)
	directory := newMemHost()
	directory.put("/mnt/disk", node{mode: fs.ModeDir | 0o755})
	for at, h := range map[string]*memHost{"/dev/sdb": disk, "/mnt/disk": directory} {
		m, r := telling(t, h, bound(localSource(at)))
		ask := func(uid types.UID, gid int64) {
			p := testPod(claimVolume(false))
			p.UID, p.Name = uid, string(uid)
			p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &gid}
			prepare(t, m, p)
			prepare(t, m, p)
		}
		ask("first", 7)
		if got := r.take(); h.count("ChownGroup") == 0 || len(got) > 0 {
			t.Errorf("%s: calls %q, events %q", at, h.calls, got)
		}
		h.forgetCalls()
		if h == directory { // each mount of the fake device has an owner of its own
			ask("same", 7)
		}
		if got := r.take(); h.count("ChownGroup") > 0 || len(got) > 0 {
			t.Errorf("%s: calls %q, events %q", at, h.calls, got)
		}
		ask("other", 8)
		of := map[string]string{"/dev/sdb": "0", "/mnt/disk": "7"}[at]
		if d := cmp.Diff([]string{"pod/other Warning AlreadyMountedVolume fsGroup 8 is not applied to the volume pv: another pod has mounted it, and its group is " + of}, r.take()); d != "" || h.count("ChownGroup") > 0 {
			t.Errorf("%s: calls %q: %s", at, h.calls, d)
		}
	}
}

// TestGroupAfterAFailure: a pod whose group could not be set is the first with its device, and sets it at the
// next attempt, although another pod has mounted the device meanwhile.
func TestGroupAfterAFailure(t *testing.T) {
	format := "ext4"
	h := disk(&format, false)
	m, r := telling(t, h, bound(localSource("/dev/sdb")))
	of := func(uid types.UID) *v1.Pod {
		p := testPod(claimVolume(false))
		p.UID, p.Name = uid, string(uid)
		p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr(int64(7))}
		return p
	}
	h.fail["ChownGroup"] = errors.New("no")
	if _, err := m.Prepare(t.Context(), of("first")); err == nil {
		t.Error("it has its group")
	}
	delete(h.fail, "ChownGroup")
	prepare(t, m, of("second"))
	h.forgetCalls()
	prepare(t, m, of("first"))
	if got := r.take(); h.count("ChownGroup") != 1 || len(got) != 1 || !strings.HasPrefix(got[0], "pod/second ") {
		t.Errorf("calls %q, events %q", h.calls, got)
	}
}

// slowGroup is a host whose ChownGroup takes a while.
type slowGroup struct {
	*memHost
	takes time.Duration
}

func (h slowGroup) ChownGroup(context.Context, string, int64, bool) error {
	time.Sleep(h.takes)
	return nil
}

// TestEventsOfASlowGroup: after half a minute, and then each minute, an event says that the pod waits for
// its files.
func TestEventsOfASlowGroup(t *testing.T) {
	for takes, want := range map[time.Duration]int{29 * time.Second: 0, time.Minute: 1, 100 * time.Second: 2} {
		synctest.Test(t, func(t *testing.T) {
			h := newMemHost()
			h.put("/mnt/disk", node{mode: fs.ModeDir | 0o755})
			m, r := telling(t, h, bound(localSource("/mnt/disk")))
			m.cfg.Host = slowGroup{h, takes}
			p := testPod(claimVolume(false))
			p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr(int64(7))}
			prepare(t, m, p)
			time.Sleep(time.Hour)
			synctest.Wait()
			got := r.take()
			if len(got) != want || slices.ContainsFunc(got, func(e string) bool {
				return !strings.HasPrefix(e, "pod/p Warning VolumePermissionChangeInProgress the pod waits until the files in /mnt/disk have its fsGroup")
			}) {
				t.Errorf("after %s: %q", takes, got)
			}
		})
	}
}

// TestDirsError: directories that cannot be made are no fault of a volume.
func TestDirsError(t *testing.T) {
	h := newMemHost()
	h.fail["Make"] = host.ErrUnreachable
	_, err := newManager(t, h, newCluster()).Prepare(t.Context(), testPod(configMapVolume("cfg")))
	var dirs *DirsError
	if !errors.As(err, &dirs) || !errors.Is(err, host.ErrUnreachable) || len(Failures(err)) > 0 || !strings.HasPrefix(err.Error(), "make the directories of pod ") {
		t.Errorf("%v", err)
	}
}
