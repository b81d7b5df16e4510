package node

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/notify"
)

func nodeWith(cidrs ...string) *v1.Node {
	n := &v1.Node{}
	if len(cidrs) > 0 {
		n.Spec.PodCIDR, n.Spec.PodCIDRs = cidrs[0], cidrs
	}
	return n
}

// The runtime gets the newest network once, and again while it refuses it.
func TestPodNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := make(podNetwork, 1)
		c.offer(nodeWith()) // the cluster has not assigned one
		c.offer(nodeWith("10.0.0.0/24"))
		c.offer(nodeWith("10.0.1.0/24", "fd00::/64"))
		ctx, cancel := context.WithCancel(t.Context())
		var away atomic.Bool
		away.Store(true)
		var mu sync.Mutex
		var calls []string
		reported := func() []string {
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
		if got := reported(); len(got) != 3 || got[0] != "10.0.1.0/24,fd00::/64" {
			t.Fatalf("refused, the runtime got %v, want the newest three times", got)
		}
		away.Store(false)
		time.Sleep(time.Hour)
		c.offer(nodeWith("10.0.1.0/24", "fd00::/64"))
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := reported(); len(got) != 4 {
			t.Errorf("taken, the network was sent again: %v", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// Images are listed at startup, soon after pulls, and periodically. While the runtime is away the
// last list stays.
func TestWatchImages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		pulled := notify.New()
		var lists, sets atomic.Int32
		var away atomic.Bool
		done := make(chan error)
		go func() {
			done <- watchImages(ctx, pulled, -1,
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
