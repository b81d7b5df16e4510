package volume

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// bindings are a cluster's claims and persistent volumes.
type bindings struct {
	claims  map[string]*v1.PersistentVolumeClaim
	volumes map[string]*v1.PersistentVolume
	labels  map[string]string
	err     error
	reads   int
}

func (b *bindings) PersistentVolumeClaim(_ context.Context, _, name string) (*v1.PersistentVolumeClaim, error) {
	b.reads++
	if b.err != nil {
		return nil, b.err
	}
	if c := b.claims[name]; c != nil {
		return c, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "persistentvolumeclaims"}, name)
}

func (b *bindings) PersistentVolume(_ context.Context, name string) (*v1.PersistentVolume, error) {
	if v := b.volumes[name]; v != nil {
		return v, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "persistentvolumes"}, name)
}

func (b *bindings) Node(context.Context) (*v1.Node, error) {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: b.labels}}, nil
}

// bound has a claim "c" that is bound to a persistent volume "pv" with this source.
func bound(source v1.PersistentVolumeSource) *bindings {
	return &bindings{
		labels: map[string]string{"kubernetes.io/hostname": "n"},
		claims: map[string]*v1.PersistentVolumeClaim{"c": {ObjectMeta: metav1.ObjectMeta{Name: "c", UID: "1"},
			Spec: v1.PersistentVolumeClaimSpec{VolumeName: "pv"}, Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound}}},
		volumes: map[string]*v1.PersistentVolume{"pv": {ObjectMeta: metav1.ObjectMeta{Name: "pv"},
			Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: source, ClaimRef: &v1.ObjectReference{UID: "1"}}}},
	}
}

func claimVolume(readOnly bool) v1.Volume {
	return named("data", v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "c", ReadOnly: readOnly}})
}

func claimManager(t *testing.T, h Host, b *bindings) *Manager {
	t.Helper()
	c := newCluster()
	m, err := New(Config{Host: h, Objects: c, Tokens: c, Claims: b, RootDir: "/root",
		Allow:       func(*v1.Pod, string, *v1.PersistentVolume, bool) error { return nil },
		Allocatable: func() v1.ResourceList { return nil }})
	testutil.Must(t, err)
	return m
}

func localSource(path string) v1.PersistentVolumeSource {
	return v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: path}}
}

func TestClaimOfALocalVolume(t *testing.T) {
	h := newMemHost()
	h.put("/mnt/disk", node{mode: fs.ModeDir | 0o755})
	b := bound(localSource("/mnt/disk"))
	b.volumes["pv"].Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{
		{MatchExpressions: []v1.NodeSelectorRequirement{{Key: "kubernetes.io/hostname", Operator: v1.NodeSelectorOpIn, Values: []string{"n"}}}}}}}
	p := testPod(claimVolume(false))
	p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr(int64(7))}
	const dir = "/root/pods/u/volumes/kubernetes.io~local-volume/pv"
	m := claimManager(t, h, b)
	want := Mount{HostPath: dir, SELinux: true}
	if got := prepare(t, m, p)["data"]; got != want {
		t.Errorf("mount = %+v", got)
	}
	if got := h.mounts[dir]; got == nil || got.Source != "/mnt/disk" || got.Type != "bind" || len(got.Options) > 0 {
		t.Errorf("mounted is %+v", got)
	}
	if n := h.nodes["/mnt/disk"]; n.gid != 7 || n.ro {
		t.Errorf("the directory is %+v", n)
	}
	// Neither the API server nor the host is asked again, and another process adopts the mount.
	b.reads = 0
	h.forgetCalls()
	prepare(t, m, p)
	if b.reads > 0 || h.count("Mount") > 0 {
		t.Errorf("%d reads, calls %q", b.reads, h.calls)
	}
	if got := prepare(t, claimManager(t, h, b), p)["data"]; got != want || h.count("Mount") > 0 || h.count("ChownGroup") > 0 {
		t.Errorf("adopted: %+v, calls %q", got, h.calls)
	}
	h.reboot()
	if prepare(t, m, p); h.mounts[dir] == nil {
		t.Error("after a reboot it is not mounted")
	}
	if err := m.Release(t.Context(), p.UID); err != nil || len(h.mounts) > 0 || h.nodes["/mnt/disk"] == nil {
		t.Errorf("released: %v, mounted %v", err, h.mounts)
	}

	p = testPod(claimVolume(true))
	if got := prepare(t, m, p)["data"]; !got.ReadOnly {
		t.Errorf("mount = %+v", got)
	}
	if got := h.mounts[dir]; got == nil || len(got.Options) != 1 || got.Options[0] != "ro" {
		t.Errorf("mounted is %+v", got)
	}
}

// TestFSGroupChangePolicy: with OnRootMismatch, nothing below a root with the right group and mode
// is changed.
func TestFSGroupChangePolicy(t *testing.T) {
	right := fs.ModeDir | fs.ModeSetgid | 0o770
	for _, c := range []struct {
		policy v1.PodFSGroupChangePolicy
		mode   fs.FileMode
		gid    int64
		calls  int
	}{
		{v1.FSGroupChangeOnRootMismatch, right, 7, 0},
		{v1.FSGroupChangeOnRootMismatch, right | 0o777, 7, 0},
		{v1.FSGroupChangeOnRootMismatch, right, 8, 1},
		{v1.FSGroupChangeOnRootMismatch, right &^ fs.ModeSetgid, 7, 1},
		{v1.FSGroupChangeOnRootMismatch, fs.ModeDir | fs.ModeSetgid | 0o750, 7, 1},
		{v1.FSGroupChangeAlways, right, 7, 1},
	} {
		h := newMemHost()
		h.put("/mnt/disk", node{mode: c.mode, gid: c.gid})
		p := testPod(claimVolume(false))
		p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr(int64(7)), FSGroupChangePolicy: &c.policy}
		prepare(t, claimManager(t, h, bound(localSource("/mnt/disk"))), p)
		if got := h.count("ChownGroup"); got != c.calls {
			t.Errorf("%+v: %d calls", c, got)
		}
	}
}

func TestClaimOfAHostPath(t *testing.T) {
	h := newMemHost()
	h.put("/data", node{mode: fs.ModeDir | 0o755})
	kind := v1.HostPathDirectory
	b := bound(v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/data", Type: &kind}})
	if got := prepare(t, claimManager(t, h, b), testPod(claimVolume(true)))["data"]; got != (Mount{HostPath: "/data", ReadOnly: true}) {
		t.Errorf("mount = %+v", got)
	}
	// The claim of an ephemeral volume belongs to the pod.
	p := testPod(named("data", v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}))
	b.claims[p.Name+"-data"] = b.claims["c"]
	m := claimManager(t, h, b)
	if _, err := m.Prepare(t.Context(), p); err == nil || !strings.Contains(err.Error(), "pod is not owner") {
		t.Errorf("a claim of someone else: %v", err)
	}
	b.claims["c"].OwnerReferences = []metav1.OwnerReference{{UID: p.UID, Controller: ptr(true)}}
	if got := prepare(t, m, p)["data"]; got.HostPath != "/data" {
		t.Errorf("mount = %+v", got)
	}
}

func TestClaimOfADevice(t *testing.T) {
	h := newMemHost()
	h.put("/dev/sdx", node{mode: fs.ModeDevice | 0o660})
	h.put("/dev/tty9", node{mode: fs.ModeDevice | fs.ModeCharDevice | 0o660})
	b := bound(localSource("/dev/sdx"))
	block := v1.PersistentVolumeBlock
	b.volumes["pv"].Spec.VolumeMode = &block
	p := testPod(claimVolume(true))
	p.Spec.Containers[0].VolumeDevices = []v1.VolumeDevice{{Name: "data", DevicePath: "/dev/x"}}
	if got := prepare(t, claimManager(t, h, b), p)["data"]; got != (Mount{Device: "/dev/sdx", ReadOnly: true}) {
		t.Errorf("mount = %+v", got)
	}
	for at, want := range map[string]string{"/dev/tty9": "is not a block device", "/dev/none": "does not exist"} {
		b.volumes["pv"].Spec.Local.Path = at
		if _, err := claimManager(t, h, b).Prepare(t.Context(), p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", at, err)
		}
	}
}

func TestClaimsThatCannotBeHad(t *testing.T) {
	now := metav1.Now()
	block := v1.PersistentVolumeBlock
	for want, change := range map[string]func(*bindings, *v1.Pod){
		"failed to fetch PVC from API server":         func(b *bindings, _ *v1.Pod) { delete(b.claims, "c") },
		"PVC is being deleted":                        func(b *bindings, _ *v1.Pod) { b.claims["c"].DeletionTimestamp = &now },
		"error processing PVC ns/c: PVC is not bound": func(b *bindings, _ *v1.Pod) { b.claims["c"].Status.Phase = v1.ClaimPending },
		"empty pvc.Spec.VolumeName":                   func(b *bindings, _ *v1.Pod) { b.claims["c"].Spec.VolumeName = "" },
		"failed to fetch PV pv":                       func(b *bindings, _ *v1.Pod) { delete(b.volumes, "pv") },
		"not yet bound to the claim":                  func(b *bindings, _ *v1.Pod) { b.volumes["pv"].Spec.ClaimRef = nil },
		"does not point to claim.UID":                 func(b *bindings, _ *v1.Pod) { b.volumes["pv"].Spec.ClaimRef.UID = "2" },
		`path "/mnt/none" does not exist`:             func(b *bindings, _ *v1.Pod) { b.volumes["pv"].Spec.Local.Path = "/mnt/none" },
		`path "/mnt/file" is not a directory`:         func(b *bindings, _ *v1.Pod) { b.volumes["pv"].Spec.Local.Path = "/mnt/file" },
		"must not contain '..'":                       func(b *bindings, _ *v1.Pod) { b.volumes["pv"].Spec.Local.Path = "/mnt/../etc" },
		"a persistent volume of type iscsi": func(b *bindings, _ *v1.Pod) {
			b.volumes["pv"].Spec.PersistentVolumeSource = v1.PersistentVolumeSource{ISCSI: &v1.ISCSIPersistentVolumeSource{}}
		},
		"has volumeMode Block, but is specified in volumeMounts": func(b *bindings, _ *v1.Pod) { b.volumes["pv"].Spec.VolumeMode = &block },
		"has volumeMode Filesystem, but is specified in volumeDevices": func(_ *bindings, p *v1.Pod) {
			p.Spec.Containers[0].VolumeDevices = []v1.VolumeDevice{{Name: "data", DevicePath: "/dev/x"}}
		},
		"storage node affinity check failed: no matching NodeSelectorTerms": func(b *bindings, _ *v1.Pod) {
			b.volumes["pv"].Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{
				{MatchExpressions: []v1.NodeSelectorRequirement{{Key: "kubernetes.io/hostname", Operator: v1.NodeSelectorOpIn, Values: []string{"another"}}}}}}}
		},
	} {
		t.Run(want, func(t *testing.T) {
			h := newMemHost()
			h.put("/mnt/disk", node{mode: fs.ModeDir | 0o755})
			h.put("/mnt/file", node{mode: 0o644})
			b, p := bound(localSource("/mnt/disk")), testPod(claimVolume(false))
			p.Namespace = "ns"
			p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "data", MountPath: "/data"}}
			change(b, p)
			_, err := claimManager(t, h, b).Prepare(t.Context(), p)
			failures := Failures(err)
			if len(failures) != 1 || failures[0].Volume != "data" || failures[0].Reason != ReasonFailedMount || !strings.Contains(err.Error(), want) {
				t.Errorf("err = %v", err)
			}
			if len(h.mounts) > 0 {
				t.Errorf("mounted: %v", h.mounts)
			}
		})
	}
	// A deleted claim that the finalizer protects can still be used.
	h := newMemHost()
	h.put("/mnt/disk", node{mode: fs.ModeDir | 0o755})
	b := bound(localSource("/mnt/disk"))
	b.claims["c"].DeletionTimestamp, b.claims["c"].Finalizers = &now, []string{protectionFinalizer}
	prepare(t, claimManager(t, h, b), testPod(claimVolume(false)))
	// An error of the API server says nothing about the claim.
	b.err = host.ErrUnreachable
	if _, err := claimManager(t, h, b).Prepare(t.Context(), testPod(claimVolume(false))); !errors.Is(err, host.ErrUnreachable) {
		t.Errorf("err = %v", err)
	}
}

// The error is the kubelet's for a driver that is not registered with it.
func TestVolumesOfCSIDrivers(t *testing.T) {
	const want = "driver name disk.example not found in the list of registered CSI drivers"
	for name, v := range map[string]v1.Volume{
		"inline":  named("data", v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "disk.example"}}),
		"claimed": claimVolume(false),
	} {
		h := newMemHost()
		m := claimManager(t, h, bound(v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: "disk.example"}}))
		_, err := m.Prepare(t.Context(), testPod(v))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
		if err := m.Release(t.Context(), testPod(v).UID); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A pod has a volume if it was set up for it: by its mount, or by the record of a path of the host.
// The same name is not enough if the path, kind or mode differs.
func TestWhetherThePodHasTheVolume(t *testing.T) {
	block := v1.PersistentVolumeBlock
	type volume struct {
		source v1.PersistentVolumeSource
		mode   *v1.PersistentVolumeMode
	}
	hostPath := func(p string) volume {
		return volume{source: v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: p}}}
	}
	directory, disk := volume{source: localSource("/mnt/disk")}, volume{source: localSource("/dev/sdb"), mode: &block}
	share := volume{source: v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{Server: "nas", Path: "/srv"}}}
	for name, c := range map[string]struct {
		first, then volume
		has         bool
	}{
		"hostPath":                     {hostPath("/a"), hostPath("/a"), true},
		"another hostPath":             {hostPath("/a"), hostPath("/"), false},
		"local":                        {directory, directory, true},
		"local, whatever it names now": {directory, volume{source: localSource("/")}, true}, // the mount stays
		"device":                       {disk, disk, true},
		"another device":               {disk, volume{source: localSource("/dev/sda"), mode: &block}, false},
		"NFS":                          {share, share, true},
		"hostPath for NFS":             {share, hostPath("/"), false},
		"hostPath for local":           {directory, hostPath("/mnt/disk"), false},
		"local for NFS":                {share, directory, false},
		"NFS for local":                {directory, share, false},
		"a device for a directory":     {volume{source: localSource("/dev/sdb")}, disk, false},
		"a hostPath for a device":      {disk, hostPath("/dev/sdb"), false},
	} {
		h := newMemHost()
		h.put("/mnt/disk", node{mode: fs.ModeDir | 0o755})
		for _, d := range []string{"/dev/sda", "/dev/sdb"} {
			h.put(d, node{mode: fs.ModeDevice | 0o660})
		}
		h.run = func([]string) host.Result { return host.Result{Stdout: []byte("TYPE=ext4\n")} }
		var said []bool
		set := func(v volume) {
			b := bound(v.source)
			b.volumes["pv"].Spec.VolumeMode = v.mode
			m := claimManager(t, h, b)
			m.cfg.Allow = func(_ *v1.Pod, _ string, _ *v1.PersistentVolume, has bool) error {
				said = append(said, has)
				return nil
			}
			if _, err := m.Prepare(t.Context(), testPod(claimVolume(false))); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		set(c.first)
		set(c.then)
		if len(said) != 2 || said[0] || said[1] != c.has {
			t.Errorf("%s: the pod has it: %v, want [false %v]", name, said, c.has)
		}
	}

	h := newMemHost()
	b := bound(hostPath("/").source)
	m := claimManager(t, h, b)
	m.cfg.Allow = func(*v1.Pod, string, *v1.PersistentVolume, bool) error { return errors.New("no") }
	for range 2 { // a refused volume is not recorded
		if _, err := m.Prepare(t.Context(), testPod(claimVolume(false))); err == nil || h.nodes["/root/pods/u/plugins/bowline.io~claims/data"] != nil {
			t.Errorf("refused: %v", err)
		}
	}
}

// Without Allow the policy of the host's owner would not apply to persistent volumes, and every pod
// could reach every path of the host through one.
func TestClaimsNeedAllow(t *testing.T) {
	h, c := newMemHost(), newCluster()
	cfg := Config{Host: h, Objects: c, Tokens: c, RootDir: "/root", Allocatable: func() v1.ResourceList { return nil }}
	if _, err := New(cfg); err != nil {
		t.Errorf("without claims: %v", err)
	}
	cfg.Claims = &bindings{}
	if m, err := New(cfg); err == nil {
		t.Errorf("%p takes claims without a policy", m)
	}
}
