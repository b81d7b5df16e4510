package syncloop_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri/fake"
)

// A container whose status the runtime never returns does not affect other pods: they start,
// restart and end, also in a new process. It is managed again when the runtime answers.
func TestAStatusThatHangsLeavesOtherPodsAlone(t *testing.T) {
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

// Until the API server has the final status, the remains on the host are the only trace of a pod
// that ended. For a static pod they always are.
func TestFinishedOnceTheAPIServerKnows(t *testing.T) {
	w := newParallelWorld(t)
	w.manifests = t.TempDir()
	once := func(p *v1.Pod) { p.Spec.RestartPolicy = v1.RestartPolicyNever }
	w.write("static.yaml", with(newPod("static", "exit 0"), once), "")
	w.up()
	phase := func(name string) v1.PodPhase {
		if p := w.api.pod(name); p != nil {
			return p.Status.Phase
		}
		return ""
	}
	w.until("the static pod has ended", func() bool { return phase("static-node") == v1.PodSucceeded })
	p := w.api.create(with(newPod("job", "exit 0"), once))
	w.api.setDown(true)
	l := w.node.loop
	w.until("it has ended", func() bool { return w.runs() == 2 && l.Known(p.UID) && l.State(p.UID).Ended() })
	if l.Finished(p.UID) {
		t.Error("it counts as finished, and the API server would have it run")
	}
	w.api.setDown(false)
	w.until("the API server knows", func() bool { return phase("job") == v1.PodSucceeded && l.Finished(p.UID) })
	static, _ := w.node.sources.StaticPods()
	if len(static) != 1 || l.Finished(static[0].UID) {
		t.Errorf("the static pod of %d counts as finished, and would run again after a restart", len(static))
	}
}
