package node

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/bowline-k8s/bowline/notify"
)

// Each signal causes one list of this node's pods. A failed list is repeated without another signal.
func TestCatchUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}})
		// The pause between two lists does not synchronize the test with catchUp.
		var fails atomic.Bool
		var selector atomic.Value
		var seen atomic.Int32
		fails.Store(true)
		client.PrependReactor("list", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			selector.Store(a.(clienttesting.ListAction).GetListRestrictions().Fields.String())
			if fails.Load() {
				return true, nil, errors.New("not yet")
			}
			return false, nil, nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		c := notify.New()
		done := make(chan error, 1)
		go func() {
			done <- catchUp(ctx, c, client.CoreV1(), "box-1", func(*v1.Pod) { seen.Add(1) })
		}()
		c.Send()
		synctest.Wait()
		if n := seen.Load(); n != 0 {
			t.Errorf("saw %d pods in a reading that failed", n)
		}
		fails.Store(false)
		time.Sleep(catchUpPause)
		synctest.Wait()
		if n := seen.Load(); n != 1 || selector.Load() != "spec.nodeName=box-1" {
			t.Errorf("saw %d pods, selected by %q", n, selector.Load())
		}
		time.Sleep(time.Minute)
		c.Send()
		synctest.Wait()
		if n := seen.Load(); n != 2 {
			t.Errorf("saw %d pods after another word", n)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
