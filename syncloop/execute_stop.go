package syncloop

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

// minimumStop is the shortest grace period that the runtime gets for a container, like
// minimumGracePeriodInSeconds of a kubelet. It applies if the preStop hook has used up the grace
// period, or if a deletion, an eviction or a probe sets a shorter one. A stop with grace 0 is a
// kill that the planner has decided on.
const minimumStop = 2 * time.Second

// stop runs the preStop hook within the grace period, then stops the container with what remains of
// it.
func (j *job) stop(ctx context.Context, out *plan.Outcome) error {
	grace := j.op.Grace
	j.loop.event(j.pod, j.op.Container, v1.EventTypeNormal, "Killing", killing(j.pod, j.op))
	if j.op.PreStop && grace > 0 {
		began := time.Now()
		j.preStop(ctx, grace)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		out.Hooked = true
		grace = max(grace-time.Since(began), minimumStop)
	}
	if grace > 0 {
		grace = max(grace, minimumStop)
	}
	if err := j.loop.cfg.Runtime.StopContainer(ctx, j.op.ID, grace); err != nil && !cri.IsNotFound(err) {
		return fmt.Errorf("stop container %q: %w", j.op.Container, err)
	}
	return nil
}

// faults has the kubelet's description of a container's fault, by the cause of its stop.
var faults = map[plan.StopCause]string{
	plan.StopDefinition:    "definition changed",
	plan.StopStartupProbe:  "failed startup probe",
	plan.StopLivenessProbe: "failed liveness probe",
	plan.StopResize:        "resize requires restart",
}

// killing returns the kubelet's Killing message: the fault, without a probe's output, or that the
// container is being stopped.
func killing(p *v1.Pod, op plan.Operation) string {
	fault, ok := faults[op.Cause]
	switch {
	case op.Cause == plan.StopPostStart:
		return "FailedPostStartHook"
	case !ok:
		return "Stopping container " + op.Container
	case pod.IsInit(&p.Spec, op.Container):
		return "Init container " + op.Container + " " + fault
	}
	message := "Container " + op.Container + " " + fault
	policy := v1.ContainerRestartPolicy(p.Spec.RestartPolicy)
	if c := pod.Find(pod.AllContainers(&p.Spec), op.Container); c != nil && c.RestartPolicy != nil {
		policy = *c.RestartPolicy
	}
	if policy != v1.ContainerRestartPolicyNever && op.Cause != plan.StopResize {
		message += ", will be restarted"
	}
	return message
}

// preStop runs the hook for at most grace. If it fails, an event is all that follows.
func (j *job) preStop(ctx context.Context, grace time.Duration) {
	c := pod.Find(pod.AllContainers(&j.pod.Spec), j.op.Container)
	if c == nil || c.Lifecycle == nil || c.Lifecycle.PreStop == nil {
		return
	}
	hookCtx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	message, err := j.loop.cfg.Hooks.Run(hookCtx, j.pod, j.op.ID, c, c.Lifecycle.PreStop, first(j.podIPs))
	if err != nil && ctx.Err() == nil {
		j.loop.event(j.pod, c.Name, v1.EventTypeWarning, "FailedPreStopHook", message)
	}
}

// removeContainer removes a dead container. Its log and the link to it stay until garbage
// collection.
func (j *job) removeContainer(ctx context.Context) error {
	done, err := j.loop.removals.Take(ctx, j.pod.DeletionTimestamp == nil) // urgent if the pod lives on and waits for it
	if err != nil {
		return err
	}
	defer done()
	err = j.loop.cfg.Runtime.RemoveContainer(ctx, j.op.ID)
	if err != nil && !cri.IsNotFound(err) {
		return fmt.Errorf("remove container %q: %w", j.op.Container, err)
	}
	return nil
}
