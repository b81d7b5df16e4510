package node

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/features"
	"github.com/bowline-k8s/bowline/pod"
)

// restartPeriods returns the pause before the second restart of a container that crashes, and the longest
// one; 0 is the loop's default. What the user sets counts, as with a kubelet.
func restartPeriods(cfg *config.Host, gates features.Gates) (first, most time.Duration) {
	if gates.Enabled(features.ReduceDefaultCrashLoopBackOffDecay) {
		first, most = time.Second, time.Minute
	}
	if gates.Enabled(features.KubeletCrashLoopBackOffMax) {
		most = cfg.CrashLoopBackOff.MaxContainerRestartPeriod.Duration
	}
	return first, most
}

// podView returns the function that removes from a pod what a kubelet ignores while a gate is off. None of
// these fields is a reason to replace a running container.
func podView(gates features.Gates) func(*v1.Pod) *v1.Pod {
	v := view{
		rules:   gates.Enabled(features.ContainerRestartRules),
		signals: gates.Enabled(features.ContainerStopSignals),
		files:   gates.Enabled(features.EnvFiles),
	}
	return v.of
}

// view says which fields of containers the node sees.
type view struct{ rules, signals, files bool }

// of copies the pod only if it has something to hide, because this runs at each event.
func (v view) of(p *v1.Pod) *v1.Pod {
	for c := range pod.AllContainers(&p.Spec) {
		if v.hides(&p.Spec, c) {
			out := p.DeepCopy()
			for c := range pod.AllContainers(&out.Spec) {
				v.hide(&out.Spec, c)
			}
			return out
		}
	}
	return p
}

func (v view) hides(s *v1.PodSpec, c *v1.Container) bool {
	return !v.rules && (len(c.RestartPolicyRules) > 0 || ownPolicy(s, c)) ||
		!v.signals && c.Lifecycle != nil && c.Lifecycle.StopSignal != nil ||
		!v.files && slices.ContainsFunc(c.Env, fromFile)
}

func (v view) hide(s *v1.PodSpec, c *v1.Container) {
	if !v.rules {
		if ownPolicy(s, c) {
			c.RestartPolicy = nil
		}
		c.RestartPolicyRules = nil
	}
	if !v.signals && c.Lifecycle != nil {
		c.Lifecycle.StopSignal = nil
	}
	for i := range c.Env {
		if !v.files && fromFile(c.Env[i]) {
			c.Env[i].ValueFrom.FileKeyRef = nil // without a source, the variable is empty
		}
	}
}

// ownPolicy reports whether the container has a restart policy that does not make it a sidecar.
func ownPolicy(s *v1.PodSpec, c *v1.Container) bool {
	initial := slices.ContainsFunc(s.InitContainers, func(i v1.Container) bool { return i.Name == c.Name })
	return c.RestartPolicy != nil && !(initial && pod.Sidecar(c))
}

func fromFile(e v1.EnvVar) bool { return e.ValueFrom != nil && e.ValueFrom.FileKeyRef != nil }
