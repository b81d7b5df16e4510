package volume

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

func ptr[T any](x T) *T { return &x }

// cluster fakes objects and tokens.
type cluster struct {
	mu         sync.Mutex
	configMaps map[string]*v1.ConfigMap
	secrets    map[string]*v1.Secret
	err        error
	token      string
	forgotten  []types.UID
	given      int                // tokens
	kept       map[types.UID]bool // pods with a token
	gate       chan struct{}      // not nil: ConfigMap waits for it
}

func (c *cluster) ConfigMap(ctx context.Context, _, name string) (*v1.ConfigMap, error) {
	if c.gate != nil {
		select {
		case <-c.gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return nil, c.err
	}
	if o := c.configMaps[name]; o != nil {
		return o, nil
	}
	return nil, apierrors.NewNotFound(v1.Resource("configmap"), name)
}

func (c *cluster) Secret(_ context.Context, _, name string) (*v1.Secret, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o := c.secrets[name]; o != nil {
		return o, nil
	}
	return nil, apierrors.NewNotFound(v1.Resource("secret"), name)
}

func (c *cluster) Token(_ context.Context, p *v1.Pod, audience string, _ int64) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.given++
	if c.kept == nil {
		c.kept = map[types.UID]bool{}
	}
	c.kept[p.UID] = true
	return c.token + "/" + string(p.UID) + "/" + audience, nil
}

func (c *cluster) Forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forgotten = append(c.forgotten, uid)
	delete(c.kept, uid)
}

func (c *cluster) setConfigMap(name, k, v string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.configMaps[name] = &v1.ConfigMap{Data: map[string]string{k: v}}
}

func newCluster() *cluster {
	return &cluster{
		token:      "SECRET-token",
		configMaps: map[string]*v1.ConfigMap{"cfg": {Data: map[string]string{"k": "v"}}},
		secrets:    map[string]*v1.Secret{"sec": {Data: map[string][]byte{"key": []byte("SECRET-data")}}},
	}
}

func newManager(t *testing.T, h *memHost, c *cluster) *Manager {
	t.Helper()
	m, err := New(Config{
		Host: h, Objects: c, Tokens: c, RootDir: "/root",
		Allocatable: func() v1.ResourceList { return v1.ResourceList{v1.ResourceMemory: resource.MustParse("1Gi")} },
	})
	testutil.Must(t, err)
	return m
}

func testPod(volumes ...v1.Volume) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u", Labels: map[string]string{"l": "1"}},
		Spec: v1.PodSpec{
			Containers: []v1.Container{{Name: "c"}}, InitContainers: []v1.Container{{Name: "i"}}, Volumes: volumes,
		},
	}
}

func named(name string, s v1.VolumeSource) v1.Volume { return v1.Volume{Name: name, VolumeSource: s} }

func configMapVolume(name string) v1.Volume {
	return named(name, v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: name}}})
}

func secretVolume(name string) v1.Volume {
	return named(name, v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: name}})
}

func tokenVolume() v1.Volume {
	return named("token", v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
		{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token"}},
	}}})
}

func labelsVolume() v1.Volume {
	return named("labels", v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Items: []v1.DownwardAPIVolumeFile{
		{Path: "labels", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.labels"}},
	}}})
}

func emptyDir(medium v1.StorageMedium, limit string) v1.Volume {
	e := &v1.EmptyDirVolumeSource{Medium: medium}
	if limit != "" {
		e.SizeLimit = ptr(resource.MustParse(limit))
	}
	return named("scratch"+strings.ToLower(string(medium)), v1.VolumeSource{EmptyDir: e})
}

func prepare(t *testing.T, m *Manager, p *v1.Pod) map[string]Mount {
	t.Helper()
	mounts, err := m.Prepare(t.Context(), p)
	testutil.Must(t, err)
	return mounts
}

func full() *v1.Pod {
	return testPod(configMapVolume("cfg"), secretVolume("sec"), tokenVolume(), labelsVolume(),
		emptyDir("", ""), emptyDir(v1.StorageMediumMemory, "1Mi"), named("etc", v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/etc"}}))
}

func TestPrepare(t *testing.T) {
	h := newMemHost()
	m := newManager(t, h, newCluster())
	mounts := prepare(t, m, full())
	const dir = "/root/pods/u/volumes/"
	for name, want := range map[string]Mount{
		"cfg":           {HostPath: dir + "kubernetes.io~configmap/cfg", ReadOnly: true, SELinux: true},
		"sec":           {HostPath: dir + "kubernetes.io~secret/sec", ReadOnly: true, SELinux: true},
		"token":         {HostPath: dir + "kubernetes.io~projected/token", ReadOnly: true, SELinux: true},
		"labels":        {HostPath: dir + "kubernetes.io~downward-api/labels", ReadOnly: true, SELinux: true},
		"scratch":       {HostPath: dir + "kubernetes.io~empty-dir/scratch", SELinux: true},
		"scratchmemory": {HostPath: dir + "kubernetes.io~empty-dir/scratchmemory", SELinux: true},
		"etc":           {HostPath: "/etc"},
	} {
		if mounts[name] != want {
			t.Errorf("%s = %+v, want %+v", name, mounts[name], want)
		}
	}
	if len(mounts) != 7 || len(m.Mounts("u")) != 7 {
		t.Errorf("%d mounts, %d kept", len(mounts), len(m.Mounts("u")))
	}
	if got := h.targets("/"); len(got) != 4 {
		t.Errorf("mounted: %v", got)
	}
	if o := h.mounts[dir+"kubernetes.io~empty-dir/scratchmemory"].Options; !slices.Equal(o, []string{"size=1048576"}) {
		t.Errorf("options of the emptyDir = %v", o)
	}
	if o := h.mounts[dir+"kubernetes.io~secret/sec"].Options; !slices.Equal(o, []string{"size=1073741824"}) {
		t.Errorf("options of the secret = %v", o)
	}
	if found := h.onDisk("SECRET"); found != nil {
		t.Errorf("a secret lies on disk: %v", found)
	}
	for p, mode := range map[string]fs.FileMode{
		dir + "kubernetes.io~empty-dir/scratch": 0o777, dir + "kubernetes.io~configmap/cfg": 0o777,
		"/root/pods/u/volumes": 0o750, "/root/pods/u/plugins": 0o750, "/root/pods/u/containers/c": 0o750, "/root/pods/u/containers/i": 0o750,
	} {
		if n := h.nodes[p]; n == nil || n.mode != fs.ModeDir|mode {
			t.Errorf("%s: %+v, want %v", p, n, mode)
		}
	}
	if h.nodes["/root/bowline/pods/u"] == nil {
		t.Error("no record")
	}
}

func TestAnEphemeralContainerGetsItsDirectory(t *testing.T) {
	h := newMemHost()
	m := newManager(t, h, newCluster())
	p := testPod()
	prepare(t, m, p)
	h.forgetCalls()
	p = p.DeepCopy()
	p.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "debug"}}}
	for range 2 {
		testutil.Must(t, makePodDirs(t.Context(), m, p))
	}
	if want := []string{"Make /root/pods/u/containers/debug"}; !slices.Equal(h.calls, want) {
		t.Errorf("calls = %v", h.calls)
	}
}

func TestDirectoriesThatFailedAreMadeLater(t *testing.T) {
	for _, method := range []string{"Make", "MkdirAll", "Mount", "WriteTree"} {
		h := newMemHost()
		m := newManager(t, h, newCluster())
		h.fail[method] = host.ErrUnreachable
		if _, err := m.Prepare(t.Context(), full()); !errors.Is(err, host.ErrUnreachable) {
			t.Errorf("%s: %v", method, err)
		}
		delete(h.fail, method)
		mounts := prepare(t, m, full())
		for name, mount := range mounts {
			if n := h.nodes[mount.HostPath]; name != "etc" && n == nil {
				t.Errorf("%s failed once: no %s", method, name)
			}
		}
		if h.nodes["/root/pods/u/containers/c"] == nil || h.nodes["/root/bowline/pods/u"] == nil {
			t.Errorf("%s failed once: the pod's directories are missing", method)
		}
	}
}

func TestTheRecordComesFirst(t *testing.T) {
	h := newMemHost()
	prepare(t, newManager(t, h, newCluster()), full())
	if first := h.calls[0]; !strings.HasPrefix(first, "Make /root/bowline/pods/u ") {
		t.Errorf("first change of the machine: %s", first)
	}
}

func TestAnOrdinaryPodCostsFewCalls(t *testing.T) {
	h := newMemHost()
	p := testPod(tokenVolume())
	p.Spec.InitContainers = nil
	m := newManager(t, h, newCluster())
	prepare(t, m, p)
	// The record and the pod's directories; one mount, one tree.
	if len(h.calls) != 3 {
		t.Errorf("%d calls: %v", len(h.calls), h.calls)
	}
	h.forgetCalls()
	for range 10 {
		testutil.Must(t, m.Refresh(t.Context(), p))
	}
	if len(h.calls) != 0 {
		t.Errorf("refreshing what did not change: %v", h.calls)
	}
}

// TestContentIsFetchedAhead: the API server is asked for a pod's token and configMap while the host makes
// the pod's directories.
func TestContentIsFetchedAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, c := newMemHost(), newCluster()
		m := newManager(t, h, c)
		given := -1
		h.before = func(method, _ string) {
			if method != "Make" {
				return
			}
			synctest.Wait()
			c.mu.Lock()
			defer c.mu.Unlock()
			given = c.given
		}
		prepare(t, m, testPod(configMapVolume("cfg"), tokenVolume()))
		if given != 1 {
			t.Errorf("%d tokens when the directories were made, want 1", given)
		}
	})
}

// TestDurationContainsTheFetch: the duration of a volume's mount begins with the fetch of its content, also
// when that runs while the host makes the pod's directories.
func TestDurationContainsTheFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, c := newMemHost(), newCluster()
		m := newManager(t, h, c)
		h.before = func(method, _ string) {
			if method == "Make" {
				time.Sleep(time.Second)
			}
		}
		took := make(chan time.Duration, 2)
		m.cfg.Observe = func(_, _ string, d time.Duration, _ error) { took <- d }
		image := v1.Volume{Name: "image", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "i"}}}
		for want, v := range map[time.Duration]v1.Volume{time.Second: tokenVolume(), 0: image} {
			p := testPod(v)
			p.UID = types.UID(want.String())
			prepare(t, m, p)
			if got := <-took; got != want {
				t.Errorf("the mount of %s took %s, want %s", v.Name, got, want)
			}
		}
	})
}

// A pod whose directories cannot be made does not wait for the API server.
func TestNoDirectoriesNoContent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, c := newMemHost(), newCluster()
		c.gate = make(chan struct{})
		h.fail["Make"] = errors.New("no space left on device")
		var dirs *DirsError
		if _, err := newManager(t, h, c).Prepare(t.Context(), testPod(configMapVolume("cfg"))); !errors.As(err, &dirs) {
			t.Errorf("%v", err)
		}
	})
}

// A Refresh that runs while its pod is released requests a token after the pod's tokens were
// forgotten. However it ends, no token of the pod is kept.
func TestRefreshDuringRelease(t *testing.T) {
	for name, cut := range map[string]bool{"which ends": false, "which is cut off": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, c := newMemHost(), newCluster()
				m := newManager(t, h, c)
				p := testPod(v1.Volume{Name: "cfg", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "cfg"}}}}, tokenVolume())
				p.Spec.InitContainers, p.Spec.Containers = nil, nil
				prepare(t, m, p)
				c.gate = make(chan struct{})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				done := make(chan struct{})
				go func() { defer close(done); _ = m.Refresh(ctx, p) }()
				synctest.Wait() // it waits for the configMap
				testutil.Must(t, m.Release(t.Context(), p.UID))
				c.mu.Lock()
				tokens := c.given
				c.mu.Unlock()
				if cut {
					cancel()
				}
				close(c.gate)
				<-done
				c.mu.Lock()
				defer c.mu.Unlock()
				if c.given == tokens {
					t.Error("no token was asked for after the release: the test shows nothing")
				}
				if c.kept[p.UID] {
					t.Error("a token of the pod is kept")
				}
			})
		})
	}
}

func TestPrepareAgainAndInANewProcess(t *testing.T) {
	h, c := newMemHost(), newCluster()
	p := full()
	p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr(int64(7))}
	m := newManager(t, h, c)
	first := prepare(t, m, p)
	// The container changes its emptyDirs as it likes.
	for _, name := range []string{"scratch", "scratchmemory"} {
		n := h.nodes[first[name].HostPath]
		n.mode, n.gid = fs.ModeDir|0o700, 99
	}
	for process := range 3 {
		if process > 0 {
			m = newManager(t, h, c)
		}
		for range 2 {
			again := prepare(t, m, p)
			for name := range first {
				if again[name] != first[name] {
					t.Errorf("%s moved to %+v", name, again[name])
				}
			}
		}
	}
	if n := h.count("Mount"); n != 4 {
		t.Errorf("%d mounts were made", n)
	}
	for _, name := range []string{"scratch", "scratchmemory"} {
		if n := h.nodes[first[name].HostPath]; n.mode != fs.ModeDir|0o700 || n.gid != 99 {
			t.Errorf("%s: the container's own mode and group are lost: %v %d", name, n.mode, n.gid)
		}
	}
}

func TestARebootOfTheMachine(t *testing.T) {
	h := newMemHost()
	m := newManager(t, h, newCluster())
	p := full()
	p.Labels["l"] = "1"
	prepare(t, m, p)
	h.reboot()
	// The refresh has new content, and must not write it to the disk.
	p.Labels["l"] = "2"
	m.cfg.Tokens.(*cluster).token = "SECRET-next"
	if err := m.Refresh(t.Context(), p); err == nil || len(Failures(err)) != 2 {
		t.Errorf("err = %v", err)
	}
	if found := h.onDisk("SECRET"); found != nil {
		t.Fatalf("a secret lies on disk: %v", found)
	}
	mounts := prepare(t, m, p)
	if n := len(h.targets("/")); n != 4 {
		t.Errorf("%d mounts", n)
	}
	for _, name := range []string{"sec", "token", "labels"} {
		if h.nodes[mounts[name].HostPath].tree == nil {
			t.Errorf("%s is empty", name)
		}
	}
	if found := h.onDisk("SECRET"); found != nil {
		t.Errorf("a secret lies on disk: %v", found)
	}
}

func TestFSGroup(t *testing.T) {
	h := newMemHost()
	p := full()
	p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr(int64(2000))}
	mounts := prepare(t, newManager(t, h, newCluster()), p)
	for name, mount := range mounts {
		n := h.nodes[mount.HostPath]
		if name == "etc" {
			if n != nil && n.gid != 0 {
				t.Error("the machine's own directory was given away")
			}
			continue
		}
		if n.gid != 2000 || n.ro != mount.ReadOnly {
			t.Errorf("%s: group %d, read-only %v", name, n.gid, n.ro)
		}
	}
	f := h.nodes[mounts["token"].HostPath].tree["token"]
	if f.Mode != 0o640 || f.Owner == nil || f.Owner.GID != 2000 || f.Owner.UID != -1 {
		t.Errorf("token = %v %+v", f.Mode, f.Owner)
	}
}

func TestRefresh(t *testing.T) {
	h, c := newMemHost(), newCluster()
	m := newManager(t, h, c)
	p := full()
	if err := m.Refresh(t.Context(), p); err != nil || len(h.calls) != 0 {
		t.Fatalf("refresh of a pod that was not prepared: %v, %v", err, h.calls)
	}
	mounts := prepare(t, m, p)
	tree := func(name string) host.Tree { return h.nodes[mounts[name].HostPath].tree }
	h.forgetCalls()

	c.setConfigMap("cfg", "k", "new")
	p = p.DeepCopy()
	p.Labels["l"] = "2"
	testutil.Must(t, m.Refresh(t.Context(), p))
	if got := string(tree("cfg")["k"].Data) + string(tree("labels")["labels"].Data); got != `newl="2"` {
		t.Errorf("content = %s", got)
	}
	if n := h.count("WriteTree"); n != 2 {
		t.Errorf("%d trees written for two changes", n)
	}

	// If the API server fails or the object is missing, the content stays.
	c.err = errors.New("away")
	err := m.Refresh(t.Context(), p)
	if f := Failures(err); len(f) != 1 || f[0].Volume != "cfg" || f[0].Reason != "FailedMount" {
		t.Errorf("err = %v", err)
	}
	if got := string(tree("cfg")["k"].Data); got != "new" {
		t.Errorf("content = %s", got)
	}
	// A failed write is retried although the objects are unchanged.
	c.err = nil
	c.setConfigMap("cfg", "k", "third")
	h.fail["WriteTree"] = host.ErrUnreachable
	if err := m.Refresh(t.Context(), p); !errors.Is(err, host.ErrUnreachable) {
		t.Errorf("err = %v", err)
	}
	delete(h.fail, "WriteTree")
	if err := m.Refresh(t.Context(), p); err != nil || string(tree("cfg")["k"].Data) != "third" {
		t.Errorf("%v, %s", err, tree("cfg")["k"].Data)
	}
}

func TestFailuresNameTheirVolumes(t *testing.T) {
	h := newMemHost()
	m := newManager(t, h, newCluster())
	p := testPod(configMapVolume("absent"), secretVolume("sec"), secretVolume("lost"),
		named("share", v1.VolumeSource{ISCSI: &v1.ISCSIVolumeSource{}}))
	_, err := m.Prepare(t.Context(), p)
	failures := Failures(err)
	var got []string
	for _, f := range failures {
		got = append(got, f.Reason+" "+f.Error())
	}
	want := []string{
		`FailedMount MountVolume.SetUp failed for volume "absent" : configmap "absent" not found`,
		`FailedMount MountVolume.SetUp failed for volume "lost" : secret "lost" not found`,
		`FailedMount MountVolume.SetUp failed for volume "share" : volumes of type iscsi are not supported by this node`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s", strings.Join(got, "\n"))
	}
	if failures[0].Unsupported() || !failures[2].Unsupported() {
		t.Error("kinds are mixed up")
	}
	if m.Mounts("u") != nil {
		t.Error("mounts of a pod that is not ready")
	}
	if h.nodes["/root/pods/u/volumes/kubernetes.io~secret/lost"] != nil {
		t.Error("mounted before its object was there")
	}
	// Once that is fixed, the other volumes are not set up twice.
	p.Spec.Volumes = p.Spec.Volumes[:2]
	m.cfg.Objects.(*cluster).setConfigMap("absent", "k", "v")
	prepare(t, m, p)
	if n := h.count("Mount"); n != 1 {
		t.Errorf("%d mounts", n)
	}
}

func TestNestedMountPoints(t *testing.T) {
	h := newMemHost()
	p := testPod(configMapVolume("cfg"), secretVolume("sec"))
	p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "cfg", MountPath: "/etc/app"}, {Name: "sec", MountPath: "/etc/app/tls"}}
	mounts := prepare(t, newManager(t, h, newCluster()), p)
	if n := h.nodes[mounts["cfg"].HostPath+"/tls"]; n == nil || n.mode != fs.ModeDir|0o755 {
		t.Errorf("mount point = %+v", n)
	}
}

func TestMemorySize(t *testing.T) {
	m := newManager(t, newMemHost(), newCluster())
	limited := func(limits ...string) *v1.Pod {
		p := &v1.Pod{}
		for _, l := range limits {
			c := v1.Container{}
			if l != "" {
				c.Resources.Limits = v1.ResourceList{v1.ResourceMemory: resource.MustParse(l)}
			}
			p.Spec.Containers = append(p.Spec.Containers, c)
		}
		return p
	}
	podLevel := limited("")
	podLevel.Spec.Resources = &v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceMemory: resource.MustParse("30Mi")}}
	for name, c := range map[string]struct {
		p     *v1.Pod
		limit string
		want  int64
	}{
		"node":                   {limited(""), "", 1 << 30},
		"pod":                    {limited("10Mi", "20Mi"), "", 30 << 20},
		"one has no limit":       {limited("10Mi", ""), "", 1 << 30},
		"pod level":              {podLevel, "", 30 << 20},
		"volume":                 {limited("10Mi"), "1Mi", 1 << 20},
		"volume beyond the pod":  {limited("10Mi"), "20Mi", 10 << 20},
		"volume beyond the node": {limited(""), "2Gi", 1 << 30},
		"zero is none":           {limited("10Mi"), "0", 10 << 20},
	} {
		var limit *resource.Quantity
		if c.limit != "" {
			limit = ptr(resource.MustParse(c.limit))
		}
		if got := m.memorySize(c.p, limit); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func TestNoSwapSupported(t *testing.T) {
	for v, want := range map[string]bool{"6.4.0": true, "6.3.9": false, "5.15.0-1": false, "7.0": true, "6.12-rc1": true, "6.10.2": true, "": false, "x.y": false} {
		if NoSwapSupported(v) != want {
			t.Errorf("%q: %v", v, !want)
		}
	}
}

func TestOfOnePodOneAtATime(t *testing.T) {
	h := newMemHost()
	m := newManager(t, h, newCluster())
	p := full()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { prepare(t, m, p) })
		wg.Go(func() {
			if err := m.Refresh(t.Context(), p); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait() // memHost refuses a second mount on one target
	testutil.Must(t, m.Release(t.Context(), "u"))
	if len(m.pods)+len(m.mounts) != 0 {
		t.Errorf("%d pods, %d mounts are remembered", len(m.pods), len(m.mounts))
	}
}

func TestReleaseDoesNotWaitForARefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, c := newMemHost(), newCluster()
		m := newManager(t, h, c)
		p := full()
		prepare(t, m, p)
		c.gate = make(chan struct{})
		done := make(chan error)
		go func() { done <- m.Refresh(t.Context(), p) }()
		synctest.Wait()
		testutil.Must(t, m.Release(t.Context(), "u"))
		h.forgetCalls()
		c.setConfigMap("cfg", "k", "new")
		close(c.gate)
		testutil.Must(t, <-done)
		if len(h.calls) != 0 {
			t.Errorf("a refresh wrote after the release: %v", h.calls)
		}
		if len(m.pods) != 0 {
			t.Error("the pod is remembered")
		}
	})
}

func TestBadNamesAreRefused(t *testing.T) {
	h := newMemHost()
	m := newManager(t, h, newCluster())
	for _, uid := range []types.UID{"", ".", "..", "a/b", "../../etc"} {
		p := testPod()
		p.UID = uid
		if _, err := m.Prepare(t.Context(), p); err == nil {
			t.Errorf("prepared UID %q", uid)
		}
		if err := m.Release(t.Context(), uid); err == nil {
			t.Errorf("released UID %q", uid)
		}
	}
	p := testPod(named("../x", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}))
	if _, err := m.Prepare(t.Context(), p); err == nil {
		t.Error("prepared volume ../x")
	}
	p = testPod()
	p.Spec.Containers[0].Name = ".."
	if err := makePodDirs(t.Context(), m, p); err == nil {
		t.Error("made directories of container ..")
	}
	for _, c := range h.calls {
		t.Errorf("the machine was asked: %s", c)
	}
}

func TestConfig(t *testing.T) {
	good := func() Config {
		c := newCluster()
		return Config{Host: newMemHost(), Objects: c, Tokens: c, RootDir: "/root", Allocatable: func() v1.ResourceList { return nil }}
	}
	for name, spoil := range map[string]func(*Config){
		"Host": func(c *Config) { c.Host = nil }, "Objects": func(c *Config) { c.Objects = nil }, "Tokens": func(c *Config) { c.Tokens = nil },
		"RootDir": func(c *Config) { c.RootDir = "var/lib" }, "Allocatable": func(c *Config) { c.Allocatable = nil },
	} {
		c := good()
		spoil(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: %v", name, err)
		}
	}
	c := good()
	c.RootDir = "/"
	if _, err := New(c); err == nil {
		t.Error("the root of the machine is accepted")
	}
}

func TestPodDirIsOfTheLayout(t *testing.T) {
	if got := PodDir("/var/lib/kubelet", "u"); got != "/var/lib/kubelet/pods/u" {
		t.Error(got)
	}
	if got := path.Dir(RecordDir("/var/lib/kubelet")); got != "/var/lib/kubelet/bowline" {
		t.Error(got)
	}
}

// makePodDirs makes the pod's directories, as Prepare does first.
func makePodDirs(ctx context.Context, m *Manager, p *v1.Pod) error {
	ps, err := m.lock(ctx, p.UID)
	if err != nil {
		return err
	}
	defer m.unlock(ps)
	return m.ensurePodDirs(ctx, p, ps)
}
