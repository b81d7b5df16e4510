package main

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/host"
)

// links are a machine's links and files.
type links map[string]string

func (l links) Stat(_ context.Context, p string) (host.FileInfo, error) {
	target, ok := l[p]
	switch {
	case !ok:
		return host.FileInfo{}, fs.ErrNotExist
	case target != "":
		return host.FileInfo{Mode: fs.ModeSymlink | 0o777, Target: target}, nil
	}
	return host.FileInfo{Mode: 0o755}, nil
}

func TestRealPath(t *testing.T) {
	m := links{"/var": "", "/var/run": "../run", "/run": "", "/run/c.sock": "", "/var/lib": "", "/var/lib/kubelet": "/data/./kubelet/", "/data": "",
		"/data/kubelet": "real", "/data/real": "", "/loop": "/loop", "/up": "../../../run"}
	for p, want := range map[string]string{
		"/run/c.sock":             "/run/c.sock",
		"/var/run/c.sock":         "/run/c.sock",
		"/var/lib/kubelet":        "/data/real",
		"/var/lib/kubelet/a/b":    "/data/real/a/b",
		"/var/lib/none/../x":      "/var/lib/x",
		"/up/c.sock":              "/run/c.sock",
		"/var/run/containerd/new": "/run/containerd/new",
	} {
		if got, err := realPath(t.Context(), m, p); got != want || err != nil {
			t.Errorf("%s is %s (%v), want %s", p, got, err, want)
		}
	}
	if got, err := realPath(t.Context(), m, "/loop/x"); err == nil {
		t.Errorf("a loop led to %s", got)
	}
}

func nodeWith(cidrs ...string) *v1.Node {
	n := &v1.Node{}
	if len(cidrs) > 0 {
		n.Spec.PodCIDR, n.Spec.PodCIDRs = cidrs[0], cidrs
	}
	return n
}

// The newest network reaches the runtime, once, and again while it is refused.
func TestPodNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := make(podNetwork, 1)
		c.offer(nodeWith()) // the cluster has not given one
		c.offer(nodeWith("10.0.0.0/24"))
		c.offer(nodeWith("10.0.1.0/24", "fd00::/64"))
		ctx, cancel := context.WithCancel(t.Context())
		var away atomic.Bool
		away.Store(true)
		var mu sync.Mutex
		var calls []string
		told := func() []string {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(calls)
		}
		done := make(chan error)
		go func() {
			done <- c.deliver(ctx, func(_ context.Context, cidr string) error {
				mu.Lock()
				calls = append(calls, cidr)
				mu.Unlock()
				if away.Load() {
					return errors.New("the runtime is away")
				}
				return nil
			})
		}()
		synctest.Wait()
		time.Sleep(2*networkRetry + 1)
		synctest.Wait()
		if got := told(); len(got) != 3 || got[0] != "10.0.1.0/24,fd00::/64" {
			t.Fatalf("refused, the runtime was told %v, want the newest three times", got)
		}
		away.Store(false)
		time.Sleep(time.Hour)
		c.offer(nodeWith("10.0.1.0/24", "fd00::/64"))
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := told(); len(got) != 4 {
			t.Errorf("taken, the network was told again: %v", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// Images are listed at the start, soon after pulls, and now and then; a runtime
// that is away leaves them as they were.
func TestWatchImages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		pulled := make(nudge, 1)
		var lists, sets atomic.Int32
		var away atomic.Bool
		done := make(chan error)
		go func() {
			done <- watchImages(ctx, pulled,
				func(context.Context) ([]*runtimeapi.Image, error) {
					lists.Add(1)
					if away.Load() {
						return nil, errors.New("away")
					}
					return []*runtimeapi.Image{{RepoTags: []string{"a:1"}, Size: 1}}, nil
				},
				func(images []v1.ContainerImage) {
					sets.Add(1)
					if len(images) != 1 || images[0].Names[0] != "a:1" {
						t.Errorf("the node shows %v", images)
					}
				})
		}()
		check := func(when string, wantLists, wantSets int32) {
			t.Helper()
			synctest.Wait()
			if l, s := lists.Load(), sets.Load(); l != wantLists || s != wantSets {
				t.Errorf("%s: %d lists and %d shown, want %d and %d", when, l, s, wantLists, wantSets)
			}
		}
		check("at the start", 1, 1)
		events := imageEvents{podEvents{record.NewFakeRecorder(10)}, pulled}
		p := &v1.Pod{}
		events.Event(p, "c", v1.EventTypeNormal, "Pulling", "")
		time.Sleep(imagesPause)
		check("while an image is being pulled", 1, 1)
		for range 3 {
			events.Event(p, "c", v1.EventTypeNormal, "Pulled", "")
		}
		time.Sleep(2 * imagesPause)
		check("after three pulls at once", 2, 2)
		away.Store(true)
		time.Sleep(imagesPeriod)
		check("with the runtime away", 3, 2)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
