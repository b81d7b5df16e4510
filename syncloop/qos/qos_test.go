package qos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/syncloop/gc/gcpolicy"
)

// world is a host's cgroups and a node's pods.
type world struct {
	mu sync.Mutex // held by readers and by change

	pods     []*v1.Pod
	unseen   bool
	driver   string
	children map[string][]string
	writes   []string
	fail     map[string]error // by the path that is written
	listErr  error
	events   []string
}

func (w *world) EnsureCgroup(_ context.Context, path string, r host.CgroupResources) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.fail[path]; err != nil {
		return err
	}
	w.writes = append(w.writes, fmt.Sprintf("%s shares %d memory %d", path, r.CPUShares, r.MemoryBytes))
	return nil
}

func (w *world) ListCgroups(_ context.Context, path string) ([]string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.children[path], w.listErr
}

// took returns the writes since the last call.
func (w *world) took() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer func() { w.writes = nil }()
	return strings.Join(w.writes, "; ")
}

// change changes the host or the node.
func (w *world) change(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

func (w *world) has() []*v1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pods
}

func (w *world) driverNow() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.driver
}

func burstable(uid, cpu string) *v1.Pod {
	p := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{
		Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}}}}}}
	p.UID = types.UID(uid)
	return p
}

// run runs f in a synctest bubble with a running Manager of w, after its first check.
func run(t *testing.T, w *world, f func()) {
	synctest.Test(t, func(t *testing.T) {
		m, err := New(Config{
			Host: w, Pods: w.has, Seen: func() bool { return !w.unseen }, UID: gcpolicy.CgroupUID,
			Known: func(uid types.UID) bool {
				return slices.ContainsFunc(w.has(), func(p *v1.Pod) bool { return p.UID == uid })
			},
			All:    func() spec.PodsShare { return spec.PodsShare{MilliCPU: 2000, MemoryBytes: 4 << 30} },
			Driver: w.driverNow,
			Event:  func(kind, reason, _ string) { w.events = append(w.events, kind+" "+reason) },
		})
		testutil.Must(t, err)
		stop := testutil.Go(t.Context(), m.Run)
		synctest.Wait()
		f()
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// after lets time pass, with everything that is due in it.
func after(d time.Duration) { time.Sleep(d + time.Millisecond); synctest.Wait() }

const (
	top   = "/kubepods shares 2048 memory 4294967296; "
	least = "; /kubepods/besteffort shares 2 memory 0"
)

func TestParentsFollowThePods(t *testing.T) {
	w := &world{}
	run(t, w, func() {
		want := func(what, writes string) {
			t.Helper()
			if got := w.took(); got != writes {
				t.Errorf("%s: wrote %q, want %q", what, got, writes)
			}
		}
		want("at the start", top+"/kubepods/burstable shares 2 memory 0"+least)
		w.change(func() { w.pods = []*v1.Pod{burstable("a", "1"), burstable("b", "500m")} })
		after(Period)
		want("two pods came", top+"/kubepods/burstable shares 1536 memory 0"+least)
		after(time.Minute)
		want("nothing changed", "")
		w.change(func() {
			w.pods = w.pods[:1]
			w.children = map[string][]string{"/kubepods/burstable": {"poda", "other"}, "/kubepods": {"burstable", "besteffort"}}
		})
		after(Period)
		want("one went", top+"/kubepods/burstable shares 1024 memory 0"+least)
		after(again)
		want("from time to time", top+"/kubepods/burstable shares 1024 memory 0"+least)
	})
	if !slices.Equal(w.events, []string{"Normal NodeAllocatableEnforced"}) {
		t.Errorf("events: %v", w.events)
	}
}

// TestParentsFollowTheDriver: a runtime that was restarted with the other cgroup driver, for
// example after a boot into the other cgroup version, has its pods below other parents.
func TestParentsFollowTheDriver(t *testing.T) {
	w := &world{driver: "cgroupfs"}
	run(t, w, func() {
		w.took()
		w.change(func() { w.driver = "systemd" })
		after(Period)
		const want = "/kubepods.slice shares 2048 memory 4294967296; /kubepods.slice/kubepods-burstable.slice shares 2 memory 0; /kubepods.slice/kubepods-besteffort.slice shares 2 memory 0"
		if got := w.took(); got != want {
			t.Errorf("wrote %q, want %q", got, want)
		}
	})
}

func TestParentsThatCannotBeSet(t *testing.T) {
	busy := errors.New("device or resource busy")
	t.Run("the others are, and it is tried again", func(t *testing.T) {
		w := &world{fail: map[string]error{"/kubepods": busy}}
		run(t, w, func() {
			after(retry - time.Second)
			if got := w.took(); strings.Count(got, "burstable") != 1 || strings.Count(got, "besteffort") != 1 {
				t.Errorf("wrote %q", got)
			}
			w.change(func() { w.fail = nil })
			after(retry)
			if got := w.took(); !strings.HasPrefix(got, top) {
				t.Errorf("wrote %q", got)
			}
		})
		if !slices.Equal(w.events, []string{"Warning FailedNodeAllocatableEnforcement", "Normal NodeAllocatableEnforced"}) {
			t.Errorf("events: %v", w.events)
		}
	})
	t.Run("the machine is away: at the next look", func(t *testing.T) {
		w := &world{listErr: host.ErrUnreachable}
		run(t, w, func() {
			after(time.Minute)
			w.change(func() { w.listErr = nil })
			after(Period)
			if got := w.took(); !strings.HasPrefix(got, top) {
				t.Errorf("wrote %q", got)
			}
		})
		if !slices.Equal(w.events, []string{"Normal NodeAllocatableEnforced"}) {
			t.Errorf("events: %v", w.events)
		}
	})
	t.Run("no source of pods has been seen", func(t *testing.T) {
		w := &world{unseen: true}
		run(t, w, func() {
			after(time.Hour)
			if got := w.took(); got != "" {
				t.Errorf("wrote %q", got)
			}
		})
	})
	t.Run("pods of another driver: nothing is written", func(t *testing.T) {
		for parent, name := range map[string]string{"/kubepods": "podforeign", "/kubepods/burstable": "podforeign", "/kubepods/besteffort": "podforeign"} {
			w := &world{children: map[string][]string{parent: {name}}}
			run(t, w, func() {
				after(10 * time.Minute)
				if got := w.took(); got != "" {
					t.Errorf("wrote %q beside %s", got, parent)
				}
				w.change(func() { w.children = nil }) // it was removed
				after(retry)
				if got := w.took(); !strings.HasPrefix(got, top) {
					t.Errorf("wrote %q", got)
				}
			})
			if !slices.Equal(w.events, []string{"Normal NodeAllocatableEnforced"}) {
				t.Errorf("events: %v", w.events)
			}
		}
	})
}
