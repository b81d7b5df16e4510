package pleg

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
)

// hostile is a world that returns statuses as large as a test sets them.
type hostile struct {
	*world
	status func(*runtimeapi.ContainerStatus)
}

func (h hostile) ContainerStatus(ctx context.Context, id string) (*runtimeapi.ContainerStatus, error) {
	st, err := h.world.ContainerStatus(ctx, id)
	if err == nil && h.status != nil {
		h.status(st)
	}
	return st, err
}

func (h hostile) generator(t *testing.T, a *budget.Account) *Generator {
	t.Helper()
	g, err := New(Config{Runtime: h, Files: h, Owner: "me", Budget: a, IsNotFound: func(err error) bool { return errors.Is(err, errNotFound) }})
	testutil.Must(t, err)
	return g
}

func exceeded(t *testing.T, a *budget.Account, err error, want budget.Kind) {
	t.Helper()
	var e *budget.ExceededError
	if !errors.As(err, &e) || e.Kind != want || a.Err() == nil {
		t.Errorf("want budget %v exceeded, got %v", want, err)
	}
}

// TestInventedPods: if a runtime lists endlessly many pods with our stamp, we do not request the
// status of each.
func TestInventedPods(t *testing.T) {
	w, a := newWorld(), budget.New(budget.Limits{})
	for i := range 1025 {
		w.add(fmt.Sprint("u", i), "c", runtimeapi.ContainerState_CONTAINER_RUNNING)
	}
	g := hostile{world: w}.generator(t, a)
	exceeded(t, a, g.Relist(t.Context()), budget.Pods)
	if w.calls["ContainerStatus"] != 0 || len(g.Cache().Known()) != 0 {
		t.Errorf("%d statuses, %d pods known", w.calls["ContainerStatus"], len(g.Cache().Known()))
	}
}

// TestLargeStatuses: the cache keeps only the used parts of each status, and in total no more than
// the budget allows.
func TestLargeStatuses(t *testing.T) {
	w, a := newWorld(), budget.New(budget.Limits{})
	w.add("u", "c", runtimeapi.ContainerState_CONTAINER_RUNNING)
	h := hostile{w, func(st *runtimeapi.ContainerStatus) {
		st.Message = strings.Repeat("m", 1<<20)
		st.Annotations["a"] = strings.Repeat("a", 1<<20)
		st.Annotations[pod.AnnotationHash] = "h"
	}}
	g := h.generator(t, a)
	testutil.Must(t, g.Relist(t.Context()))
	c := g.Cache().Get("u").Containers[0]
	if len(c.Message) > maxRuntimeMessage+3 || c.Annotations["a"] != "" || c.Annotations[pod.AnnotationHash] != "h" || c.SpecHash != "h" {
		t.Errorf("%d bytes of a message, annotations %d", len(c.Message), len(c.Annotations))
	}

	h.status = func(st *runtimeapi.ContainerStatus) { st.LogPath = strings.Repeat("x", 900<<10) }
	for i := range 40 {
		w.add(fmt.Sprint("v", i), "c", runtimeapi.ContainerState_CONTAINER_RUNNING)
	}
	g = h.generator(t, a)
	exceeded(t, a, g.Relist(t.Context()), budget.Memory)
	if g.cache.size > 8<<20 {
		t.Errorf("%d bytes are kept", g.cache.size)
	}
}

// TestSizeFollowsTheCache: the counted size shrinks when observations are replaced or removed.
func TestSizeFollowsTheCache(t *testing.T) {
	w := newWorld()
	w.add("u", "c", runtimeapi.ContainerState_CONTAINER_RUNNING)
	g := hostile{world: w}.generator(t, nil)
	for range 3 {
		testutil.Must(t, g.Relist(t.Context()))
		g.cache.staleOne(pod.Ref{UID: "u"}, g.cache.NextSeq(), "why")
	}
	if g.cache.size == 0 {
		t.Error("nothing is counted")
	}
	w.sandboxes, w.containers = nil, nil
	if err := g.Relist(t.Context()); err != nil || g.cache.size != 0 {
		t.Errorf("%d bytes after everything went (%v)", g.cache.size, err)
	}
}

// TestLabelsWithoutAStamp: labels of megabytes are not ours, whatever owner they carry.
func TestLabelsWithoutAStamp(t *testing.T) {
	w := newWorld()
	w.add("u", "c", runtimeapi.ContainerState_CONTAINER_RUNNING)
	w.add(strings.Repeat("u", 1<<20), "c", runtimeapi.ContainerState_CONTAINER_RUNNING)
	g := hostile{world: w}.generator(t, nil)
	testutil.Must(t, g.Relist(t.Context()))
	if known := g.Cache().Known(); len(known) != 1 || g.Cache().Foreign() != 1 {
		t.Errorf("%d pods, %d foreign sandboxes", len(known), g.Cache().Foreign())
	}
}

// TestEndlessEvents: events with unknown IDs are dropped beyond a limit, and a stream that ends as
// soon as it opens is reopened with a growing back-off.
func TestEndlessEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		opens := 0
		g, err := New(Config{Runtime: w, Files: w, Owner: "me", IsNotFound: func(error) bool { return false },
			Hints: func(context.Context) (<-chan Hint, error) {
				opens++
				c := make(chan Hint, 10000)
				for i := range 10000 {
					c <- Hint{ID: fmt.Sprint(opens, "-", i)}
				}
				close(c)
				return c, nil
			}})
		testutil.Must(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		testutil.Must(t, g.Run(ctx))
		if opens > 20 {
			t.Errorf("the stream was opened %d times", opens)
		}
	})
}

// panicky panics when the containers are listed.
type panicky struct{ *world }

func (panicky) ListContainers(context.Context, *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	panic("a list that cannot be")
}

// TestAPanicOfALookEndsTheLook: a panic becomes an error of the look, and is reported to the budget
// account.
func TestAPanicOfALookEndsTheLook(t *testing.T) {
	w, a := newWorld(), budget.New(budget.Limits{})
	g, err := New(Config{Runtime: panicky{w}, Files: w, Owner: "me", Budget: a, IsNotFound: func(error) bool { return false }})
	testutil.Must(t, err)
	if err := g.Relist(t.Context()); err == nil {
		t.Error("the look succeeded")
	}
	<-a.Exceeded()
}

// TestLongListsAreRelistedLessOften: a host that lists more than any node has does not keep a core
// busy that other hosts share, and a list that fails changes nothing.
func TestLongListsAreRelistedLessOften(t *testing.T) {
	w := newWorld()
	g := w.generator(t)
	for items, want := range map[int64]time.Duration{0: 1, 2000: 1, 5000: 3, 17_000: 9} {
		g.listed.Store(items)
		if got := g.pause(nil, time.Now()); got != want*g.cfg.Relist {
			t.Errorf("%d items: %s", items, got)
		}
	}
	g.listed.Store(5000)
	w.err = errors.New("the list fails")
	if err := g.Relist(t.Context()); err == nil {
		t.Fatal("the relist succeeded")
	}
	if got := g.pause(nil, time.Now()); got != 3*g.cfg.Relist {
		t.Errorf("a list that failed changed the pause to %s", got)
	}
}

// huge is a world in which the status of each container is too large.
type huge struct{ *world }

func (huge) ContainerStatus(context.Context, string) (*runtimeapi.ContainerStatus, error) {
	return nil, fmt.Errorf("the call: %w", &budget.ExceededError{Kind: budget.StatusBytes})
}

// TestStatusThatIsTooLarge: a pod can make the runtime's status of its container too large to read.
// The pod is seen all the same, so that it can be deleted, and nothing is said about the host.
func TestStatusThatIsTooLarge(t *testing.T) {
	w, a := newWorld(), budget.New(budget.Limits{})
	w.add("u", "c", runtimeapi.ContainerState_CONTAINER_RUNNING)
	w.add("v", "c", runtimeapi.ContainerState_CONTAINER_EXITED)
	g, err := New(Config{Runtime: huge{w}, Files: w, Owner: "me", Budget: a, IsNotFound: func(err error) bool { return errors.Is(err, errNotFound) }})
	testutil.Must(t, err)
	testutil.Must(t, g.Relist(t.Context()))
	u, v := g.Cache().Get("u"), g.Cache().Get("v")
	if len(u.Containers) != 1 || u.Containers[0].State != pod.StateRunning || u.Containers[0].Name != "c" || a.Err() != nil {
		t.Errorf("%+v, %v", u, a.Err())
	}
	if len(v.Containers) != 1 || v.Containers[0].State != pod.StateExited || v.Containers[0].ExitCode != 137 || v.Containers[0].Message == "" {
		t.Errorf("%+v", v)
	}
}

// TestKeptOfOnePod: what a pod's containers report about themselves is kept within the bound of one
// pod: messages of all instances, and groups that an image adds.
func TestKeptOfOnePod(t *testing.T) {
	w := newWorld()
	for i := range 20 {
		w.add("u", fmt.Sprint("c", i), runtimeapi.ContainerState_CONTAINER_RUNNING)
	}
	h := hostile{w, func(st *runtimeapi.ContainerStatus) {
		st.StopSignal = 9999
		st.Message = strings.Repeat("ä", 4<<10)
		st.User = &runtimeapi.ContainerUser{Linux: &runtimeapi.LinuxContainerUser{SupplementalGroups: make([]int64, 60_000)}}
	}}
	g := h.generator(t, nil)
	testutil.Must(t, g.Relist(t.Context()))
	o, total := g.Cache().Get("u"), 0
	for i := range o.Containers {
		total += len(o.Containers[i].Message)
		if n := len(o.Containers[i].User.SupplementalGroups); n != spec.MaxGroups {
			t.Errorf("%d groups", n)
		}
		if s := o.Containers[i].StopSignal; s != "" {
			t.Errorf("the stop signal 9999 is %q", s)
		}
	}
	if len(o.Containers) != 20 || total > spec.MaxMessages || total == 0 {
		t.Errorf("%d containers, %d bytes of messages", len(o.Containers), total)
	}
}
