package syncloop

import (
	"fmt"
	"regexp"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

// slow is how long something takes before the status says that it is waited for: what is
// sooner over is not worth a request.
const slow = 10 * time.Second

// awaited is what a container that has not been made yet waits for, as its status says.
type awaited struct {
	pod      *v1.Pod
	observed pod.Observed
	flights  map[plan.Key]*flight
	backoff  map[string]plan.Backoff
	now      time.Time
	// wake is when something that is under way will have become slow; zero: nothing is.
	wake time.Time
}

// messages by container, for those that have something to say.
func (a *awaited) messages() map[string]string {
	out := map[string]string{}
	common := a.common()
	for _, list := range [][]v1.Container{a.pod.Spec.InitContainers, a.pod.Spec.Containers} {
		for i := range list {
			c := &list[i]
			switch {
			case a.instance(c.Name) != nil:
			case a.slowly(plan.OpPull, c.Name):
				out[c.Name] = fmt.Sprintf("its image %q is being pulled", c.Image)
			case common != "":
				out[c.Name] = common
			}
		}
	}
	return out
}

// common is what every container that has not been made waits for: what has failed, and
// is tried again, and else what is slow.
func (a *awaited) common() string {
	volumes, sandbox := a.slowly(plan.OpVolumes, ""), a.slowly(plan.OpSandbox, "")
	for _, key := range []string{plan.VolumesKey, plan.SandboxKey} {
		if b, ok := a.backoff[key]; ok && b.Message != "" {
			return identifier.ReplaceAllString(b.Message, "...")
		}
	}
	switch {
	case volumes:
		return "the pod's volumes are being prepared"
	case sandbox:
		return "the pod's sandbox is being made"
	}
	for i := range a.pod.Spec.InitContainers {
		c := &a.pod.Spec.InitContainers[i]
		n := a.instance(c.Name)
		switch {
		case n == nil && a.slowly(plan.OpPull, c.Name):
			return fmt.Sprintf("init container %q comes first: its image %q is being pulled", c.Name, c.Image)
		case n == nil:
			return "" // what it waits for is its own to say
		case c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways:
		case n.State == pod.StateRunning && a.since(n.StartedAt):
			return fmt.Sprintf("init container %q comes first, and runs", c.Name)
		case n.State == pod.StateRunning:
			return ""
		}
	}
	return ""
}

// identifier is what is another one at each attempt, and tells nobody anything: a status
// that held it would be written again and again.
var identifier = regexp.MustCompile(`[0-9a-f]{12,}`)

func (a *awaited) instance(name string) *pod.Container {
	for i := range a.observed.Containers {
		if a.observed.Containers[i].Name == name {
			return &a.observed.Containers[i]
		}
	}
	return nil
}

// slowly: an operation is under way, and has been for long.
func (a *awaited) slowly(kind plan.OpKind, container string) bool {
	for _, f := range a.flights {
		if f.op.Kind == kind && f.op.Container == container {
			return a.since(f.since)
		}
	}
	return false
}

// since tells whether something that began then is slow by now.
func (a *awaited) since(t time.Time) bool {
	due := t.Add(slow)
	if !due.After(a.now) {
		return true
	}
	if a.wake.IsZero() || due.Before(a.wake) {
		a.wake = due
	}
	return false
}

// awaits are the messages of this moment, and when the next one may be due; zero: none is.
func (w *worker) awaits(now time.Time, o pod.Observed) (messages map[string]string, wake time.Time) {
	if w.phase != pod.Syncing || o.Stale != "" {
		return nil, time.Time{}
	}
	a := awaited{pod: w.pod, observed: o, flights: w.flights, backoff: w.ledger.Backoff, now: now}
	messages = a.messages()
	return messages, a.wake
}
