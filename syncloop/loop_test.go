package syncloop_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/cri/fake"
)

func TestPodRunsAndIsDeleted(t *testing.T) {
	t.Parallel()
	w := up(t)
	w.api.create(with(newPod("web"), func(p *v1.Pod) {
		p.Spec.Containers = append(p.Spec.Containers, newContainer("side"))
	}))
	p := w.untilReady("web")
	if p.Status.Phase != v1.PodRunning || p.Status.PodIP == "" || p.Status.HostIP != "192.0.2.1" {
		t.Errorf("status %+v", p.Status)
	}
	for _, event := range []string{"Normal Pulling", "Normal Pulled", "Normal Created", "Normal Started"} {
		if !w.event(event) {
			t.Errorf("no event %q", event)
		}
	}
	w.api.delete("web", 5)
	w.untilGone()
	if n := w.rt.Count(fake.OpStart, ""); n != 2 {
		t.Errorf("%d starts for 2 containers", n)
	}
	if kills := w.rt.Count(fake.OpKill, ""); kills != 0 {
		t.Errorf("%d containers were killed that end on SIGTERM", kills)
	}
	if !w.event("Normal Killing Stopping container app") {
		t.Error("no Killing event")
	}
}
