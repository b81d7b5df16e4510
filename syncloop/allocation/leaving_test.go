package allocation

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/admit"
)

// TestPodsDeletedByForce: a pod that was deleted by force takes no room on the node, as with a
// kubelet, but the runtime still has it. When it has too many of them, new pods wait; static ones do
// not.
func TestPodsDeletedByForce(t *testing.T) {
	run(t, nil, func(t *testing.T, n *node) {
		most := int(spec.BoundsOf(10).Pods)
		for i := range most {
			uid := types.UID(fmt.Sprint("p", i))
			if a := n.asks(string(uid), "1m", nil); !a.Decided || a.Rejection != nil {
				t.Fatalf("%d: %+v", i, a)
			}
			n.touch(uid, true)
			delete(n.pods, uid)
		}
		if a := n.asks("static", "1m", func(p *v1.Pod) { p.Annotations = map[string]string{pod.AnnotationSource: "file"} }); !a.Decided {
			t.Errorf("a static pod waits: %+v", a)
		}
		if a := n.asks("new", "1m", nil); a.Decided {
			t.Fatalf("%+v", a)
		}
		n.touch("p0", false)
		n.touch("p1", false)
		<-time.After(2 * retryPeriod)
		synctest.Wait()
		if a := n.last("new"); !a.Decided || a.Rejection != nil {
			t.Errorf("%+v", a)
		}
	})
}

// TestPodTooLarge: the manager rejects a pod whose metadata the node cannot list, and counts what the
// runtime still has of pods that are gone.
func TestPodTooLarge(t *testing.T) {
	run(t, nil, func(t *testing.T, n *node) {
		containers := func(many int) func(*v1.Pod) {
			return func(p *v1.Pod) {
				p.Spec.Containers = make([]v1.Container, many)
				for i := range p.Spec.Containers {
					p.Spec.Containers[i].Name = fmt.Sprint("c", i)
				}
			}
		}
		if a := n.asks("large", "1m", containers(5000)); a.Rejection == nil || a.Rejection.Reason != admit.ReasonTooLarge {
			t.Errorf("%+v", a)
		}
		for i := range 5 {
			uid := types.UID(fmt.Sprint("gone", i))
			if a := n.asks(string(uid), "1m", containers(49)); a.Rejection != nil {
				t.Fatalf("%+v", a.Rejection)
			}
			n.touch(uid, true)
			delete(n.pods, uid)
		}
		if a := n.asks("next", "1m", containers(6)); a.Rejection == nil || a.Rejection.Reason != admit.ReasonTooLarge {
			t.Errorf("%+v", a)
		}
	})
}
