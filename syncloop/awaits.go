package syncloop

import (
	"fmt"
	"regexp"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

// slow is how long an operation takes before the status mentions it. Shorter waits are not worth an
// API request.
const slow = 10 * time.Second

// awaited finds what a container that has not been created is waiting for, for its status.
type awaited struct {
	pod      *v1.Pod
	observed pod.Observed
	flights  map[plan.Key]*flight
	ledger   *plan.Ledger
	now      time.Time
	// wake is when the next operation under way becomes slow; zero: none does.
	wake time.Time
}

// messages returns the message of each container that has one.
func (a *awaited) messages() map[string]string {
	out := map[string]string{}
	common := a.common()
	for c := range pod.Containers(&a.pod.Spec) {
		switch {
		case a.observed.Newest(c.Name) != nil:
		case a.slowly(plan.OpPull, c.Name):
			out[c.Name] = fmt.Sprintf("its image %q is being pulled", c.Image)
		case common != "":
			out[c.Name] = common
		}
	}
	return out
}

// common returns what all containers that have not been created wait for: first an operation that
// failed and is retried, then a slow one.
func (a *awaited) common() string {
	volumes, sandbox := a.slowly(plan.OpVolumes, ""), a.slowly(plan.OpSandbox, "")
	for _, key := range []string{plan.VolumesKey, plan.SandboxKey} {
		if b := a.ledger.Backoff(key); b.Message != "" {
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
		n := a.observed.Newest(c.Name)
		switch {
		case n == nil && a.slowly(plan.OpPull, c.Name):
			return fmt.Sprintf("init container %q comes first: its image %q is being pulled", c.Name, c.Image)
		case n == nil:
			return "" // its own message says what it waits for
		case pod.Sidecar(c):
		case n.State == pod.StateRunning && a.since(n.StartedAt):
			return fmt.Sprintf("init container %q comes first, and runs", c.Name)
		case n.State == pod.StateRunning:
			return ""
		}
	}
	return ""
}

// identifier matches IDs that differ at each attempt and are of no use to the reader. A status that
// contained them would be rewritten at each attempt.
var identifier = regexp.MustCompile(`[0-9a-f]{12,}`)

// slowly reports whether an operation has been under way for long.
func (a *awaited) slowly(kind plan.OpKind, container string) bool {
	for _, f := range a.flights {
		if f.op.Kind == kind && f.op.Container == container {
			return a.since(f.since)
		}
	}
	return false
}

// since reports whether an operation that began at t is slow by now.
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

// awaits returns the current messages, and when the next one may be due; zero: none is.
func (w *worker) awaits(now time.Time, o pod.Observed) (messages map[string]string, wake time.Time) {
	if w.phase != pod.Syncing || o.Stale != "" {
		return nil, time.Time{}
	}
	a := awaited{pod: w.pod, observed: o, flights: w.flights, ledger: &w.ledger, now: now}
	messages = a.messages()
	return messages, a.wake
}
