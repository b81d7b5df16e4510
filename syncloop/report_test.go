package syncloop

import (
	"maps"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

// TestAwaits: the status says what a container waits for, once that is slow or has failed.
func TestAwaits(t *testing.T) {
	now := time.Date(2026, 5, 1, 9, 0, 0, 0, time.UTC)
	flight1 := func(kind plan.OpKind, container string, ago time.Duration) *flight {
		return &flight{op: plan.Operation{Kind: kind, Container: container}, since: now.Add(-ago)}
	}
	sidecar := v1.Container{Name: "side", Image: "s:1", RestartPolicy: ptr.To(v1.ContainerRestartPolicyAlways)}
	p := &v1.Pod{Spec: v1.PodSpec{
		InitContainers: []v1.Container{sidecar, {Name: "init", Image: "i:1"}},
		Containers:     []v1.Container{{Name: "app", Image: "a:1"}, {Name: "web", Image: "w:1"}},
	}}
	ran := func(name string, s pod.ContainerState, ago time.Duration) pod.Container {
		return pod.Container{Name: name, State: s, StartedAt: now.Add(-ago)}
	}
	all := func(message string) map[string]string {
		return map[string]string{"side": message, "init": message, "app": message, "web": message}
	}
	for name, c := range map[string]struct {
		flights  []*flight
		backoff  map[string]plan.Backoff
		observed []pod.Container
		want     map[string]string
		wake     time.Duration // from now; 0: none
	}{
		"nothing": {want: map[string]string{}},
		"not yet slow": {
			flights: []*flight{flight1(plan.OpVolumes, "", 4*time.Second), flight1(plan.OpPull, "app", 7*time.Second)},
			want:    map[string]string{}, wake: 3 * time.Second,
		},
		"volumes": {flights: []*flight{flight1(plan.OpVolumes, "", slow)}, want: all("the pod's volumes are being prepared")},
		"sandbox": {flights: []*flight{flight1(plan.OpSandbox, "", slow)}, want: all("the pod's sandbox is being made")},
		"an image": {
			flights: []*flight{flight1(plan.OpPull, "app", slow)},
			want:    map[string]string{"app": `its image "a:1" is being pulled`},
		},
		"the first init container's image": {
			flights:  []*flight{flight1(plan.OpPull, "init", slow)},
			observed: []pod.Container{ran("side", pod.StateRunning, time.Hour)},
			want: map[string]string{"init": `its image "i:1" is being pulled`,
				"app": `init container "init" comes first: its image "i:1" is being pulled`,
				"web": `init container "init" comes first: its image "i:1" is being pulled`},
		},
		"an init container": {
			observed: []pod.Container{ran("side", pod.StateRunning, time.Hour), ran("init", pod.StateRunning, slow)},
			want:     map[string]string{"app": `init container "init" comes first, and runs`, "web": `init container "init" comes first, and runs`},
		},
		"a young init container": {
			observed: []pod.Container{ran("side", pod.StateRunning, time.Hour), ran("init", pod.StateRunning, time.Second)},
			want:     map[string]string{}, wake: slow - time.Second,
		},
		"what failed": {
			backoff: map[string]plan.Backoff{plan.VolumesKey: {Reason: "ContainerCreating", Message: `configmap "greeting" not found`}},
			flights: []*flight{flight1(plan.OpSandbox, "", slow)},
			want:    all(`configmap "greeting" not found`),
		},
		"what differs each time": {
			backoff: map[string]plan.Backoff{plan.SandboxKey: {Message: `sandbox 0123456789abcdef01: no network`}},
			want:    all(`sandbox ...: no network`),
		},
		"what is there waits for nothing": {
			flights:  []*flight{flight1(plan.OpSandbox, "", slow)},
			observed: []pod.Container{ran("side", pod.StateExited, 0), ran("init", pod.StateExited, 0), ran("app", pod.StateExited, 0)},
			want:     map[string]string{"web": "the pod's sandbox is being made"},
		},
	} {
		a := awaited{pod: p, observed: pod.Observed{Containers: c.observed}, flights: map[plan.Key]*flight{}, ledger: &plan.Ledger{Names: map[string]plan.NameRecord{}}, now: now}
		for key, b := range c.backoff {
			a.ledger.Names[key] = plan.NameRecord{Backoff: b}
		}
		for _, f := range c.flights {
			a.flights[f.op.Key()] = f
		}
		if got := a.messages(); !maps.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		switch {
		case c.wake == 0 && !a.wake.IsZero(), c.wake > 0 && !a.wake.Equal(now.Add(c.wake)):
			t.Errorf("%s: wakes at %s, want %s from now", name, a.wake, c.wake)
		}
	}
}
