package node

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/features"
)

// TestRestartPeriods: the gates of crashed containers choose their pauses as in a kubelet, where the
// configured longest pause wins over the reduced one.
func TestRestartPeriods(t *testing.T) {
	cfg := &config.Host{}
	cfg.CrashLoopBackOff.MaxContainerRestartPeriod.Duration = 5 * time.Minute
	for _, c := range []struct {
		reduced, configured bool
		first, most         time.Duration
	}{
		{false, true, 0, 5 * time.Minute},
		{true, true, time.Second, 5 * time.Minute},
		{true, false, time.Second, time.Minute},
		{false, false, 0, 0},
	} {
		gates, _ := features.New(map[string]bool{"ReduceDefaultCrashLoopBackOffDecay": c.reduced, "KubeletCrashLoopBackOffMax": c.configured})
		if first, most := restartPeriods(cfg, gates); first != c.first || most != c.most {
			t.Errorf("%+v: %v, %v", c, first, most)
		}
	}
}

// TestPodView: a gate that is off hides its fields from the node, as a kubelet ignores them, and the object
// of the informer stays as it is.
func TestPodView(t *testing.T) {
	always, never, signal := v1.ContainerRestartPolicyAlways, v1.ContainerRestartPolicyNever, v1.SIGINT
	rules := []v1.ContainerRestartRule{{Action: v1.ContainerRestartRuleActionRestart}}
	file := []v1.EnvVar{{Name: "A", ValueFrom: &v1.EnvVarSource{FileKeyRef: &v1.FileKeySelector{Key: "a"}}}, {Name: "B", Value: "b"}}
	p := &v1.Pod{Spec: v1.PodSpec{
		InitContainers: []v1.Container{{Name: "sidecar", RestartPolicy: &always}, {Name: "init", RestartPolicy: &never}},
		Containers: []v1.Container{{Name: "main", RestartPolicy: &always, RestartPolicyRules: rules, Env: file,
			Lifecycle: &v1.Lifecycle{StopSignal: &signal}}},
		EphemeralContainers: []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "shell", Env: file}}},
	}}
	kept := p.DeepCopy()
	see := func(set map[string]bool) *v1.Pod {
		gates, faults := features.New(set)
		if len(faults) > 0 {
			t.Fatal(faults)
		}
		return podView(gates)(p)
	}
	if got := see(map[string]bool{"ContainerStopSignals": true}); got != p {
		t.Error("with all gates on, the pod is copied")
	}
	off := see(map[string]bool{"ContainerRestartRules": false, "RestartAllContainersOnContainerExits": false, "EnvFiles": false})
	inits, main, shell := off.Spec.InitContainers, off.Spec.Containers[0], off.Spec.EphemeralContainers[0]
	if inits[0].RestartPolicy == nil || inits[1].RestartPolicy != nil || main.RestartPolicy != nil || main.RestartPolicyRules != nil {
		t.Errorf("without restart rules: %+v, %+v", inits, main)
	}
	if main.Lifecycle.StopSignal != nil {
		t.Error("the stop signal is seen by default")
	}
	if main.Env[0].ValueFrom == nil || main.Env[0].ValueFrom.FileKeyRef != nil || main.Env[1].Value != "b" || shell.Env[0].ValueFrom.FileKeyRef != nil {
		t.Errorf("without files of variables: %+v, %+v", main.Env, shell.Env)
	}
	if !equality.Semantic.DeepEqual(p, kept) {
		t.Error("the pod of the informer has changed")
	}
}
