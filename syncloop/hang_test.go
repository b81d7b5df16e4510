package syncloop_test

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri/fake"
)

// A container whose status the runtime never returns does not affect other pods: they start,
// restart and end, also in a new process. It is managed again when the runtime answers.
func TestAStatusThatHangsLeavesOtherPodsAlone(t *testing.T) {
	t.Parallel()
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
	if err := w.rt.Exit(id, 1); err != nil {
		t.Fatal(err)
	}
	if err := w.rt.Exit(w.instance("other", "app"), 1); err != nil {
		t.Fatal(err)
	}
	w.until("the other pod's container is restarted", func() bool {
		p := w.api.pod("other")
		return container(p, "app").RestartCount == 1 && ready(p)
	})
	w.down()
	w.up()
	w.api.create(newPod("new"))
	w.untilReady("new")
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
