package syncloop_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/cri/fake"
)

// Until the API server has the final status, the remains on the host are the only trace of a pod
// that ended. For a static pod they always are.
func TestFinishedOnceTheAPIServerKnows(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fake.Config{})
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
