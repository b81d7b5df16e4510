package syncloop

import (
	"testing"

	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/pod"
)

// Whether a mount may be recursively read-only depends on the handler of the pod's newest sandbox.
func TestRecursiveReadOnlyFollowsTheHandler(t *testing.T) {
	l := &Loop{cfg: Config{Machine: func() spec.Machine { return spec.Machine{} }, RecursiveReadOnly: func(h string) bool { return h == "runc" }}}
	for handler, want := range map[string]bool{"runc": true, "kata": false} {
		o := pod.Observed{Sandboxes: []pod.Sandbox{{RuntimeHandler: handler}, {RuntimeHandler: "runc"}}}
		j := &job{loop: l, observed: o}
		if got := j.machine().RecursiveReadOnly; got != want {
			t.Errorf("handler %s: %v", handler, got)
		}
	}
}
