package syncloop

import (
	"context"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

// minimumStop is the least that the runtime gives a container to end
// (minimumGracePeriodInSeconds of a kubelet): where its preStop hook has used the grace
// up, and where a deletion, an eviction or a probe gives it less. A stop without any grace
// is a kill that the planner has decided on.
const minimumStop = 2 * time.Second

// stop ends a container: the preStop hook within the grace, then the runtime's
// stop with what remains.
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

// faults are the kubelet's words for what a container did wrong, by the cause of its stop.
var faults = map[plan.StopCause]string{
	plan.StopDefinition:    "definition changed",
	plan.StopStartupProbe:  "failed startup probe",
	plan.StopLivenessProbe: "failed liveness probe",
	plan.StopResize:        "resize requires restart",
}

// killing is the kubelet's message for a stop: what the container did wrong, without
// a probe's output, or that it is being stopped.
func killing(p *v1.Pod, op plan.Operation) string {
	fault, ok := faults[op.Cause]
	switch {
	case op.Cause == plan.StopPostStart:
		return "FailedPostStartHook"
	case !ok:
		return "Stopping container " + op.Container
	case slices.ContainsFunc(p.Spec.InitContainers, func(c v1.Container) bool { return c.Name == op.Container }):
		return "Init container " + op.Container + " " + fault
	}
	message := "Container " + op.Container + " " + fault
	policy := v1.ContainerRestartPolicy(p.Spec.RestartPolicy)
	if c := containerOf(p, op.Container); c != nil && c.RestartPolicy != nil {
		policy = *c.RestartPolicy
	}
	if policy != v1.ContainerRestartPolicyNever && op.Cause != plan.StopResize {
		message += ", will be restarted"
	}
	return message
}

// preStop runs the hook for at most grace; its failure only earns an event.
func (j *job) preStop(ctx context.Context, grace time.Duration) {
	c := containerOf(j.pod, j.op.Container)
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

// removeContainer removes a dead container. Its log and the link to it stay for
// the garbage collection.
func (j *job) removeContainer(ctx context.Context) error {
	done, err := j.loop.removals.Take(ctx, j.pod.DeletionTimestamp == nil) // a pod that lives waits for it
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
