package syncloop_test

import (
	"runtime"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/cri/fake"
)

// ours returns the stacks of the goroutines that run code of the loop or its parts.
func ours() []string {
	buf := make([]byte, 4<<20)
	var out []string
	for _, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(g, "testing.") { // the test's own
			continue
		}
		if strings.Contains(g, "bowline/syncloop") || strings.Contains(g, "bowline/cri.") {
			out = append(out, g)
		}
	}
	return out
}

// After Run has returned none of its goroutines is left, whatever was under way. This test runs
// alone, so that it sees only its own goroutines.
func TestNothingIsLeftRunning(t *testing.T) {
	w := newWorld(t, fake.Config{})
	hold := make(chan struct{})
	w.rt.Inject("StartContainer", fake.Fault{Hold: hold})
	w.rt.Inject("StopContainer", fake.Fault{Hold: hold})
	w.up()
	w.api.create(newPod("starting"))
	w.until("a start is under way", func() bool { return w.rt.Calls("StartContainer") > 0 })
	w.api.create(with(newPod("stopping"), func(p *v1.Pod) {
		p.Spec.Containers[0].ReadinessProbe = &v1.Probe{ProbeHandler: execOf("exit 0"), PeriodSeconds: 1, TimeoutSeconds: 1, FailureThreshold: 1, SuccessThreshold: 1}
	}))
	w.api.create(with(newPod("waiting"), func(p *v1.Pod) {
		p.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "missing"}}}}
		p.Spec.ImagePullSecrets = []v1.LocalObjectReference{{Name: "missing"}}
	}))
	w.untilReady("stopping")
	w.api.delete("stopping", 30)
	w.until("a stop is under way", func() bool { return w.rt.Calls("StopContainer") > 0 })
	w.until("a volume waits for its secret", func() bool { return w.event("Warning FailedMount") })
	w.down()
	var left []string
	w.until("nothing of ours runs", func() bool { left = ours(); return len(left) == 0 })
	if t.Failed() {
		t.Log(strings.Join(left, "\n\n"))
	}
	close(hold)
	w.up()
	w.end(1, w.api.names()...)
}
