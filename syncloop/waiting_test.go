package syncloop_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// together holds each of a set of calls until all of them have been made. A caller that makes them
// one after the other runs into a timeout.
type together struct {
	mu     sync.Mutex
	wanted int
	all    chan struct{}
}

func newTogether(n int) *together { return &together{wanted: n, all: make(chan struct{})} }

func (g *together) meet(ctx context.Context) error {
	g.mu.Lock()
	if g.wanted--; g.wanted == 0 {
		close(g.all)
	}
	g.mu.Unlock()
	select {
	case <-g.all:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Minute):
		return errors.New("the others were not called beside this one")
	}
}

// TestPullsBesideTheSandbox: the images of a pod are pulled concurrently, and concurrently with its
// sandbox.
func TestPullsBesideTheSandbox(t *testing.T) {
	w := up(t)
	g := newTogether(3)
	w.setHook(func(ctx context.Context, label string, call func(context.Context) error) error {
		if label == "cri/PullImage" || label == "cri/RunPodSandbox" {
			if err := g.meet(ctx); err != nil {
				t.Errorf("%s: %v", label, err)
			}
		}
		return call(ctx)
	})
	w.createReady(with(newPod("web"), func(p *v1.Pod) {
		p.Spec.Containers = append(p.Spec.Containers, newContainer("side"))
		for i, image := range []string{"registry.example/one:1", "registry.example/two:1"} {
			p.Spec.Containers[i].Image, p.Spec.Containers[i].ImagePullPolicy = image, v1.PullAlways
		}
	}))
}

// TestSlowSibling: no container waits for a sibling that is slow to stop or to start.
func TestSlowSibling(t *testing.T) {
	t.Parallel()
	t.Run("stop", func(t *testing.T) {
		w := up(t)
		w.createReady(with(newPod("web"), func(p *v1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, newContainer("side"))
		}))
		g := newTogether(2)
		w.setHook(func(ctx context.Context, label string, call func(context.Context) error) error {
			if label == "cri/StopContainer" {
				if err := g.meet(ctx); err != nil {
					t.Errorf("%s: %v", label, err)
				}
			}
			return call(ctx)
		})
		w.end(30, "web")
	})
	t.Run("pull", func(t *testing.T) {
		w := up(t)
		w.createReady(newPod("first")) // pulls the image that app needs
		pulling := make(chan struct{})
		var once sync.Once
		w.setHook(func(ctx context.Context, label string, call func(context.Context) error) error {
			if label == "cri/PullImage" {
				once.Do(func() { close(pulling) })
				<-ctx.Done() // the call never returns
				return ctx.Err()
			}
			return call(ctx)
		})
		w.api.create(with(newPod("web"), func(p *v1.Pod) {
			slow := newContainer("slow")
			slow.Image, slow.ImagePullPolicy = "registry.example/slow:1", v1.PullAlways
			p.Spec.Containers = append(p.Spec.Containers, slow)
		}))
		<-pulling
		w.until("app runs beside it", func() bool { return w.rt.Count(fake.OpStart, "app") == 2 })
		w.end(30, "web", "first")
	})
}

// TestStatusSaysWhatIsAwaited: the container status names a volume that cannot be prepared.
func TestStatusSaysWhatIsAwaited(t *testing.T) {
	w := up(t)
	w.api.create(with(newPod("web"), func(p *v1.Pod) {
		p.Spec.Volumes = []v1.Volume{{Name: "late", VolumeSource: v1.VolumeSource{
			ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "late"}}}}}
	}))
	w.until("the status names the configMap", func() bool {
		list := w.api.pod("web").Status.ContainerStatuses
		if len(list) == 0 || list[0].State.Waiting == nil {
			return false
		}
		wait := list[0].State.Waiting
		return wait.Reason == "ContainerCreating" && strings.Contains(wait.Message, `"late" not found`)
	})
	w.end(1, "web")
}

// A container whose status the runtime never returns does not affect other pods: they start,
// restart and end, also in a new process. It is managed again when the runtime answers.
func TestAStatusThatHangsLeavesOtherPodsAlone(t *testing.T) {
	w := up(t)
	w.api.create(newPod("stuck"))
	w.api.create(newPod("other"))
	w.untilReady("stuck")
	w.untilReady("other")

	id, held := w.instance("stuck", "app"), make(chan struct{})
	w.rt.Inject("ContainerStatus", fake.Fault{Hold: held, Times: -1, Match: func(r any) bool {
		q, ok := r.(*runtimeapi.ContainerStatusRequest)
		return ok && q.ContainerId == id
	}})
	testutil.Must(t, w.rt.Exit(id, 1))
	testutil.Must(t, w.rt.Exit(w.instance("other", "app"), 1))
	w.until("the other pod's container is restarted", func() bool {
		p := w.api.pod("other")
		return container(p, "app").RestartCount == 1 && ready(p)
	})
	w.down()
	w.up()
	w.createReady(newPod("new"))
	if now := w.instance("stuck", "app"); now != id {
		t.Errorf("the container in doubt was replaced by %s", now)
	}
	w.rt.ClearFaults()
	close(held)
	w.until("the stuck pod's container is restarted", func() bool {
		p := w.api.pod("stuck")
		return container(p, "app").RestartCount == 1 && ready(p)
	})
}

// Until the API server has the final status, the remains on the host are the only trace of a pod
// that ended. For a static pod they always are.
func TestFinishedOnceTheAPIServerKnows(t *testing.T) {
	w := newParallelWorld(t)
	w.manifests = t.TempDir()
	once := func(p *v1.Pod) { p.Spec.RestartPolicy = v1.RestartPolicyNever }
	w.write("static.yaml", with(newPod("static", "exit 0"), once), "")
	w.up()
	phase := func(name string) v1.PodPhase {
		if p := w.api.pod(name); p != nil {
			return p.Status.Phase
		}
		return ""
	}
	w.until("the static pod has ended", func() bool { return phase("static-node") == v1.PodSucceeded })
	p := w.api.create(with(newPod("job", "exit 0"), once))
	w.api.setDown(true)
	l := w.node.loop
	w.until("it has ended", func() bool { return w.runs() == 2 && l.Known(p.UID) && l.State(p.UID).Ended() })
	if l.Finished(p.UID) {
		t.Error("it counts as finished, and the API server would have it run")
	}
	w.api.setDown(false)
	w.until("the API server knows", func() bool { return phase("job") == v1.PodSucceeded && l.Finished(p.UID) })
	static, _ := w.node.sources.StaticPods()
	if len(static) != 1 || l.Finished(static[0].UID) {
		t.Errorf("the static pod of %d counts as finished, and would run again after a restart", len(static))
	}
}
