package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// Each word is one reading of this node's pods; a reading that fails ends nothing.
func TestCatchUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}})
		fails, selector := true, ""
		client.PrependReactor("list", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			selector = a.(clienttesting.ListAction).GetListRestrictions().Fields.String()
			if fails {
				return true, nil, errors.New("not yet")
			}
			return false, nil, nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		var seen []string
		c := make(nudge, 1)
		done := make(chan error, 1)
		go func() {
			done <- catchUp(ctx, c, client.CoreV1(), "box-1", func(p *v1.Pod) { seen = append(seen, p.Name) })
		}()
		c.poke()
		synctest.Wait()
		if len(seen) != 0 {
			t.Errorf("saw %v in a reading that failed", seen)
		}
		fails = false
		c.poke()
		synctest.Wait()
		if len(seen) != 1 || seen[0] != "p" || selector != "spec.nodeName=box-1" {
			t.Errorf("saw %v, selected by %q", seen, selector)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
