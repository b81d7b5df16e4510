package pleg

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
)

// hang makes the status call of one container wait for the caller's deadline, as a stuck shim does.
func (w *world) hang(id string) {
	w.hung = func(ctx context.Context, asked string) error {
		if asked != id {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(30 * time.Second):
			return errors.New("no answer within the deadline")
		}
	}
}

// A status call that never answers concerns one pod: the relist succeeds and the other pods are
// seen, whether the pod was seen before or not.
func TestAStatusThatHangsConcernsOnePod(t *testing.T) {
	for _, known := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			w.add("1", "c", runtimeapi.ContainerState_CONTAINER_RUNNING)
			w.add("2", "c", runtimeapi.ContainerState_CONTAINER_RUNNING)
			g := w.generator(t)
			if known {
				testutil.Must(t, g.Relist(t.Context()))
			}
			w.hang("c-1")
			w.mu.Lock()
			for _, c := range w.containers {
				c.State = runtimeapi.ContainerState_CONTAINER_EXITED
			}
			w.mu.Unlock()
			stop := testutil.Go(t.Context(), g.Run)
			time.Sleep(5 * time.Second)
			synctest.Wait()
			if o := g.Cache().Get("2"); o.Stale != "" || o.Newest("c") == nil || o.Newest("c").State != pod.StateExited {
				t.Errorf("the other pod after 5 s: %+v", o)
			}
			time.Sleep(5 * time.Minute)
			synctest.Wait()
			if ok, last := g.Healthy(time.Now()); !ok {
				t.Errorf("one pod made the node unhealthy: last relist %v ago", time.Since(last))
			}
			if o := g.Cache().Get("1"); o.Stale == "" {
				t.Errorf("the pod whose status hangs is decided on: %+v", o)
			}
			if o := g.Cache().Get("2"); o.Stale != "" || time.Since(o.At) > 10*time.Second {
				t.Errorf("the other pod after 5 min, seen %v ago: %+v", time.Since(o.At), o)
			}
			if err := stop(); err != nil {
				t.Error(err)
			}
			synctest.Wait()
		})
	}
}

// A status call that fails because the runtime goes away concerns every pod: everything is stale,
// and nothing is dead.
func TestAStatusThatFailsWithTheRuntimeConcernsAll(t *testing.T) {
	w := newWorld()
	w.add("1", "c", runtimeapi.ContainerState_CONTAINER_RUNNING)
	w.add("2", "c", runtimeapi.ContainerState_CONTAINER_RUNNING)
	g := w.generator(t)
	testutil.Must(t, g.Relist(t.Context()))
	w.containers[0].State = runtimeapi.ContainerState_CONTAINER_EXITED
	w.hung = func(context.Context, string) error {
		w.counting.Lock()
		defer w.counting.Unlock()
		w.err = errors.New("connection refused")
		return w.err
	}
	if err := g.Relist(t.Context()); err == nil {
		t.Error("the relist hid that the runtime went away")
	}
	for _, uid := range []types.UID{"1", "2"} {
		if o := g.Cache().Get(uid); o.Stale == "" || o.Newest("c").State != pod.StateRunning {
			t.Errorf("pod %s: %+v", uid, o)
		}
	}
}
