package syncloop_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/cri/fake"
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
	w.api.create(with(newPod("web"), func(p *v1.Pod) {
		p.Spec.Containers = append(p.Spec.Containers, newContainer("side"))
		for i, image := range []string{"registry.example/one:1", "registry.example/two:1"} {
			p.Spec.Containers[i].Image, p.Spec.Containers[i].ImagePullPolicy = image, v1.PullAlways
		}
	}))
	w.untilReady("web")
}

// TestSlowSibling: no container waits for a sibling that is slow to stop or to start.
func TestSlowSibling(t *testing.T) {
	t.Parallel()
	t.Run("stop", func(t *testing.T) {
		w := up(t)
		w.api.create(with(newPod("web"), func(p *v1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, newContainer("side"))
		}))
		w.untilReady("web")
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
		w.api.create(newPod("first")) // pulls the image that app needs
		w.untilReady("first")
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
