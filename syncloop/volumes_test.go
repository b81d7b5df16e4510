package syncloop_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/host/local"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/syncloop/objects"
	"github.com/bowline-k8s/bowline/syncloop/tokens"
	"github.com/bowline-k8s/bowline/syncloop/volume"
)

// mountsOf returns the mounts that the runtime received for the pod's container.
func (w *world) mountsOf(t *testing.T, name, container string) map[string]*runtimeapi.Mount {
	t.Helper()
	list, err := w.node.client.ListContainers(context.Background(), nil)
	testutil.Must(t, err)
	out := map[string]*runtimeapi.Mount{}
	for _, c := range list {
		if c.Metadata.Name != container || c.Labels["io.kubernetes.pod.name"] != name {
			continue
		}
		s, err := w.node.client.ContainerStatus(context.Background(), c.Id)
		testutil.Must(t, err)
		for _, m := range s.Mounts {
			out[m.ContainerPath] = m
		}
	}
	return out
}

// TestImageVolume: the image of an image volume is pulled with the same reasons and messages as a
// container's own, and the runtime is asked to mount it.
func TestImageVolume(t *testing.T) {
	w := up(t)
	isModel := func(request any) bool {
		r, ok := request.(*runtimeapi.PullImageRequest)
		return ok && strings.Contains(r.Image.Image, "model")
	}
	w.rt.Inject("PullImage", fake.Fault{Match: isModel, Before: status.Error(codes.Unknown, "no such image")})
	w.api.create(with(newPod("web"), func(p *v1.Pod) {
		p.Spec.Volumes = []v1.Volume{{Name: "model", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{
			Reference: "registry.example/model:1", PullPolicy: v1.PullIfNotPresent}}}}
		p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "model", MountPath: "/whole"}, {Name: "model", MountPath: "/part", SubPath: "a/b"}}
		p.Spec.Containers = append(p.Spec.Containers, newContainer("without"))
	}))
	w.until("the status says why", func() bool { return waitingReason(w.api.pod("web"), "app") == "ErrImagePull" })
	w.wantEvent(`Warning Failed Failed to pull image "registry.example/model:1"`)
	testutil.Within(w.t, time.Minute, "it runs after the back-off", func() bool { return ready(w.api.pod("web")) })
	mounts := w.mountsOf(t, "web", "app")
	for path, part := range map[string]string{"/whole": "", "/part": "a/b"} {
		m := mounts[path]
		if m == nil || m.HostPath != "" || !m.Readonly || m.ImageSubPath != part || m.Image.GetUserSpecifiedImage() != "registry.example/model:1" || m.Image.GetImage() == "" {
			t.Errorf("%s is mounted as %+v", path, m)
		}
	}
	if len(w.mountsOf(t, "web", "without")) == 0 || w.mountsOf(t, "web", "without")["/whole"] != nil {
		t.Error("who does not mount it has it")
	}
	w.end(1, "web")
}

// TestSubPathMount: the runtime gets the path where the subPath is mounted, not the path inside the
// volume.
func TestSubPathMount(t *testing.T) {
	w := up(t)
	p := w.api.create(with(newPod("web"), func(p *v1.Pod) {
		p.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
		p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "v", MountPath: "/all"}, {Name: "v", MountPath: "/part", SubPath: "a"}}
	}))
	w.untilReady("web")
	if got := w.mountsOf(t, "web", "app")["/part"].GetHostPath(); !strings.HasSuffix(got, "/pods/"+string(p.UID)+"/volume-subpaths/v/app/1") {
		t.Errorf("mounted is %q", got)
	}
	w.end(1, "web")
	if left, err := w.host.ListMounts(t.Context(), w.dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// issuer answers TokenRequests with tokens that contain their expiry.
type issuer struct {
	corev1client.ServiceAccountInterface
	mu   sync.Mutex
	n    int
	fail bool
}

func (i *issuer) ServiceAccounts(string) corev1client.ServiceAccountInterface { return i }

func (i *issuer) CreateToken(_ context.Context, _ string, r *authenticationv1.TokenRequest, _ metav1.CreateOptions) (*authenticationv1.TokenRequest, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.fail {
		return nil, status.Error(codes.Unavailable, "no answer")
	}
	i.n++
	end := time.Now().Add(time.Duration(*r.Spec.ExpirationSeconds) * time.Second)
	r = r.DeepCopy()
	r.Status = authenticationv1.TokenRequestStatus{Token: end.Format(time.RFC3339Nano), ExpirationTimestamp: metav1.NewTime(end)}
	return r, nil
}

// TestATokenIsRefreshedBeforeItEnds: the token in a container's file is valid at any time, from a
// worker's regular volume refresh alone, even if the API server is unavailable for a while.
func TestATokenIsRefreshedBeforeItEnds(t *testing.T) {
	h, err := local.New(local.Config{})
	testutil.Must(t, err)
	m := &machine{Host: h, cgroups: map[string]bool{}}
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		api := &issuer{}
		tok, err := tokens.New(tokens.Config{Client: api})
		testutil.Must(t, err)
		obj, err := objects.New(objects.Config{Client: newAPI(t).client})
		testutil.Must(t, err)
		v, err := volume.New(volume.Config{Host: m, Objects: obj, Tokens: tok, RootDir: dir, Allocatable: func() v1.ResourceList { return nil }})
		testutil.Must(t, err)
		life := int64(600) // the shortest that the API allows
		p := with(newPod("web"), func(p *v1.Pod) {
			p.Namespace, p.UID = "ns", "u"
			p.Spec.Volumes = []v1.Volume{{Name: "token", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
				{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: &life}}}}}}}
		})
		mounts, err := v.Prepare(t.Context(), p)
		testutil.Must(t, err)
		// A worker refreshes every 1 to 1.5 minutes; this is the slowest.
		var least = time.Duration(life) * time.Second
		for minute := range 60 {
			api.mu.Lock()
			api.fail = minute%20 == 8 // for a while that covers a refresh
			api.mu.Unlock()
			time.Sleep(90 * time.Second)
			data, err := os.ReadFile(mounts["token"].HostPath + "/token")
			testutil.Must(t, err)
			end, err := time.Parse(time.RFC3339Nano, string(data))
			testutil.Must(t, err)
			least = min(least, time.Until(end))
			_ = v.Refresh(t.Context(), p) // fails while the API server is unavailable
		}
		if least <= 0 {
			t.Errorf("a token was found %s after its end", -least)
		}
		if api.n < 8 || api.n > 14 {
			t.Errorf("%d tokens were asked for in 90 minutes", api.n)
		}
		t.Logf("%d tokens in 90 minutes; the oldest found had %s left", api.n, least)
		testutil.Must(t, v.Release(t.Context(), p.UID))
	})
}

// A changed label reaches the volume that shows it at once, long before the next regular refresh.
func TestLabelsReachTheirVolume(t *testing.T) {
	w := up(t)
	p := w.createReady(with(newPod("web"), func(p *v1.Pod) {
		p.Labels = map[string]string{"colour": "red"}
		p.Spec.Volumes = []v1.Volume{{Name: "down", VolumeSource: v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{
			Items: []v1.DownwardAPIVolumeFile{{Path: "labels", FieldRef: &v1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.labels"}}}}}}}
		p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "down", MountPath: "/down"}}
	}))
	file := filepath.Join(w.dir, "root", "pods", string(p.UID), "volumes", "kubernetes.io~downward-api", "down", "labels")
	shows := func(colour string) func() bool {
		return func() bool {
			data, err := os.ReadFile(file)
			return err == nil && strings.Contains(string(data), `colour="`+colour+`"`)
		}
	}
	w.until("the file shows the first label", shows("red"))
	w.api.update("web", func(p *v1.Pod) { p.Labels["colour"] = "blue" })
	testutil.Within(w.t, 30*time.Second, "the file shows the new label", shows("blue"))
	w.end(1, "web")
}

// A pod whose volume is in use when it ends keeps its API object, and an event names the mount and
// the process that uses it. When the volume is free, the pod goes away.
func TestAMountInUseKeepsThePodTerminating(t *testing.T) {
	w := up(t)
	w.createReady(with(newPod("db"), func(p *v1.Pod) {
		p.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}}}
	}))
	dir := "/pods/" + string(w.api.pod("db").UID) + "/volumes/kubernetes.io~empty-dir/v"
	w.host.inUse.Store(true)
	w.api.delete("db", 1)
	w.until("an event tells of the mount", func() bool {
		for _, e := range w.warnings() {
			if strings.HasPrefix(e, "Warning FailedUnMount ") && strings.Contains(e, dir+" (ext4 of /dev/sdb) is in use by process 42 (postgres)") {
				return true
			}
		}
		return false
	})
	if w.api.pod("db") == nil {
		t.Fatal("the API object went before its volumes")
	}
	w.host.inUse.Store(false)
	w.untilGone()
}
