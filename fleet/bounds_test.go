package fleet

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/cri/lying"
	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/admit"
)

var stamp = strings.Repeat("c", 36) + "/" + strings.Repeat("n", 253)

// worst returns a pod with n containers, the longest names, and everything that a user can inflate.
func worst(i, n int) *v1.Pod {
	uid := fmt.Sprintf("%036d", i)
	grace := int64(1) << 40
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: strings.Repeat("p", 253), Namespace: strings.Repeat("s", 63), UID: types.UID(uid),
		Labels: map[string]string{}, Annotations: map[string]string{"large": strings.Repeat("<", 15<<10)},
		DeletionGracePeriodSeconds: &grace}}
	p.Spec.TerminationGracePeriodSeconds = &grace
	for k := range 3000 {
		p.Labels[fmt.Sprint(k)], p.Annotations[fmt.Sprint(k)] = "", ""
	}
	for c := range n {
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{
			Name: fmt.Sprintf("%063d", c), Image: strings.Repeat("i", 521), TerminationMessagePath: strings.Repeat("/", 4096),
			TerminationMessagePolicy: v1.TerminationMessageFallbackToLogsOnError,
			Lifecycle:                preStop(strings.Repeat("<", 900)),
		})
	}
	return p
}

func preStop(argument string) *v1.Lifecycle {
	return &v1.Lifecycle{PreStop: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{argument}}}}
}

// answers are what the runtime answers about pods.
type answers struct {
	sandboxes  runtimeapi.ListPodSandboxResponse
	containers runtimeapi.ListContainersResponse
}

// add adds a pod with as many sandboxes and containers as can exist of it: those beyond one of each
// container are instances of the one with the longest annotations.
func (a *answers) add(t *testing.T, p *v1.Pod) {
	t.Helper()
	m := spec.Machine{Owner: stamp, CgroupVersion: 2, CgroupDriver: "systemd", RootDir: "/var/lib/kubelet", PodLogsDir: "/var/log/pods"}
	n := spec.ContainersOf(&p.Spec)
	id := strings.Repeat("f", 64)
	for i := range spec.Instances(n) {
		config, err := spec.Sandbox(p, m, uint32(i))
		testutil.Must(t, err)
		if i >= spec.FullSandboxes {
			spec.Bare(config)
		}
		a.sandboxes.Items = append(a.sandboxes.Items, &runtimeapi.PodSandbox{Id: id, Metadata: config.Metadata, CreatedAt: 1 << 62,
			Labels: config.Labels, Annotations: config.Annotations, RuntimeHandler: strings.Repeat("h", 63)})
	}
	var largest *runtimeapi.Container
	size := 0
	for c := range pod.AllContainers(&p.Spec) {
		config, err := spec.Container(p, c, m, spec.ContainerInput{Attempt: 1 << 31, Crashes: 1 << 31, ImageRef: "sha256:" + id})
		testutil.Must(t, err)
		image := &runtimeapi.ImageSpec{Image: config.Image.Image, UserSpecifiedImage: c.Image}
		one := &runtimeapi.Container{Id: id, PodSandboxId: id, Metadata: config.Metadata, Image: image, ImageRef: strings.Repeat("r", 330), ImageId: "sha256:" + id,
			State: runtimeapi.ContainerState_CONTAINER_EXITED, CreatedAt: 1 << 62, Labels: config.Labels, Annotations: config.Annotations}
		a.containers.Containers = append(a.containers.Containers, one)
		total := 0
		for k, v := range config.Annotations {
			total += 200 + len(k) + len(v)
		}
		if total > size {
			largest, size = one, total
		}
	}
	for range spec.Instances(n) - n {
		a.containers.Containers = append(a.containers.Containers, largest)
	}
}

// ask reads the answers through a client with these limits.
func ask(t *testing.T, l budget.Limits, a *answers) map[budget.Kind]budget.Use {
	t.Helper()
	r, account := lying.New(), budget.New(l)
	r.Answer("ListPodSandbox", lying.Message(&a.sandboxes))
	r.Answer("ListContainers", lying.Message(&a.containers))
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	testutil.Must(t, err)
	t.Cleanup(r.Serve(listener))
	c, err := cri.Connect(t.Context(), cri.Config{Budget: account, Dial: func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}})
	testutil.Must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	if _, err := c.ListPodSandbox(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if _, err := c.ListContainers(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if account.Err() != nil {
		t.Errorf("the host would be quarantined: %v", account.Err())
	}
	uses := map[budget.Kind]budget.Use{}
	for _, u := range account.Uses() {
		uses[u.Kind] = u
	}
	return uses
}

// TestWorstAdmittedPods: the lists of a full node stay within its budgets, whatever its admitted pods
// are. A list of 10,000 such pods takes gigabytes, so it is added up from the lists of single pods.
func TestWorstAdmittedPods(t *testing.T) {
	unlimited := budget.Limits{ReplyBytes: 1 << 30, Memory: 1 << 30}
	var small, large answers
	small.add(t, worst(1, spec.ShareContainers))
	large.add(t, worst(2, spec.MaxContainers))
	ofSmall, ofLarge := ask(t, unlimited, &small), ask(t, unlimited, &large)
	for _, maxPods := range []int32{1, 110, 250, 10_000} {
		bounds, limits := spec.BoundsOf(int64(maxPods)), limitsOf(maxPods)
		for _, k := range []budget.Kind{budget.ReplyBytes, budget.Items, budget.Memory} {
			pool := bounds.ContainerPool / (spec.MaxContainers - spec.ShareContainers)
			worst := (bounds.Pods-pool)*ofSmall[k].HighWater + pool*ofLarge[k].HighWater
			if worst > limits.Of(k) {
				t.Errorf("%d pods: %v of %d, the limit is %d", maxPods, k, worst, limits.Of(k))
			}
			if least := (budget.Limits{}).Of(k); limits.Of(k) < least {
				t.Errorf("%d pods: the limit of %v is %d", maxPods, k, limits.Of(k))
			}
		}
		if limits.Pods < bounds.Pods || limits.Items < bounds.HostMounts {
			t.Errorf("%d pods: %+v, %+v", maxPods, limits, bounds)
		}
	}
}

// TestPodsThatFilledTheLists: none of these valid pods gets its host quarantined: each is rejected, or
// the lists with as many of them as a node admits are within its budgets.
func TestPodsThatFilledTheLists(t *testing.T) {
	many := func(n int, c v1.Container) *v1.Pod {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns"}}
		for i := range n {
			c.Name, c.Image = fmt.Sprint("c", i), "i"
			p.Spec.Containers = append(p.Spec.Containers, c)
		}
		return p
	}
	mounts := many(1, v1.Container{VolumeMounts: make([]v1.VolumeMount, 7100)})
	large := many(1, v1.Container{})
	large.Labels, large.Annotations = map[string]string{}, map[string]string{"a": strings.Repeat("x", 15<<10)}
	for i := range 2000 {
		large.Labels[fmt.Sprint(i)] = "l"
	}
	for name, tc := range map[string]struct {
		pod      *v1.Pod
		maxPods  int32
		rejected bool
	}{
		"thousands of volume mounts":                   {mounts, 110, true},
		"preStop hooks that JSON makes longer":         {many(128, v1.Container{Lifecycle: preStop(strings.Repeat("<", 5200))}), 110, false},
		"more containers with such hooks":              {many(270, v1.Container{Lifecycle: preStop(strings.Repeat("<", 5200))}), 110, true},
		"an allocation of thousands of containers":     {many(5000, v1.Container{}), 110, true},
		"labels and annotations of a node of 200 pods": {large, 200, false},
	} {
		t.Run(name, func(t *testing.T) {
			var all answers
			var running []*v1.Pod
			for i := range spec.BoundsOf(int64(tc.maxPods)).Pods {
				p := tc.pod.DeepCopy()
				p.UID = types.UID(fmt.Sprint(i))
				if r := admit.Size(p, running, int64(tc.maxPods)); r != nil {
					if r.Reason != admit.ReasonTooLarge || r.Message == "" || tc.rejected != (i == 0) {
						t.Fatalf("pod %d: %+v", i, r)
					}
					break
				}
				running = append(running, p)
			}
			var one answers
			if len(running) > 0 {
				one.add(t, running[0])
			}
			for range running { // they differ in their UIDs only
				all.sandboxes.Items = append(all.sandboxes.Items, one.sandboxes.Items...)
				all.containers.Containers = append(all.containers.Containers, one.containers.Containers...)
			}
			if tc.rejected != (len(running) == 0) {
				t.Fatalf("%d are admitted", len(running))
			}
			ask(t, limitsOf(tc.maxPods), &all)
		})
	}
}
