package syncloop

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/images"
	"github.com/bowline-k8s/bowline/syncloop/plan"
	"github.com/bowline-k8s/bowline/syncloop/pleg"
	"github.com/bowline-k8s/bowline/syncloop/volume"
)

// job is one operation with all that it needs, copied from the worker when it began, because the
// worker continues meanwhile.
type job struct {
	loop     *Loop
	pod      *v1.Pod
	op       plan.Operation
	observed pod.Observed
	podIPs   []string
	ledger   plan.Ledger
	users    *pod.IDRange // ID range of a pod with a user namespace; else nil
	// image is set by OpPull, for the OpStart that follows.
	image *pulled
	// sandbox is the ID of the sandbox that OpSandbox made.
	sandbox string
}

// changed names the sandbox or container that the operation has changed, for the observation after
// it.
func (j *job) changed(out plan.Outcome) pleg.Changed {
	switch j.op.Kind {
	case plan.OpSandbox:
		return pleg.Changed{Sandbox: j.sandbox}
	case plan.OpStart:
		return pleg.Changed{Container: out.ContainerID}
	case plan.OpStop:
		return pleg.Changed{Container: j.op.ID}
	case plan.OpStopSandbox:
		return pleg.Changed{Sandbox: j.op.ID}
	}
	return pleg.Changed{}
}

// reasonError is an error with the reason of the container's waiting state.
type reasonError struct {
	reason string
	err    error
}

func (e *reasonError) Error() string { return e.err.Error() }
func (e *reasonError) Unwrap() error { return e.err }

func because(reason string, err error) error { return &reasonError{reason, err} }

// logFailure logs that the operation failed. Each kind has a message, by which people and alerts find
// it.
func (j *job) logFailure(log klog.Logger, err error, values ...any) {
	switch j.op.Kind {
	case plan.OpVolumes:
		log.Error(err, "Failed to prepare the pod's volumes", values...)
	case plan.OpSandbox:
		log.Error(err, "Failed to run the pod's sandbox", values...)
	case plan.OpPull:
		log.Error(err, "Failed to pull the container's image", values...)
	case plan.OpHook:
		log.Error(err, "Failed to run the container's postStart hook", values...)
	case plan.OpStart:
		log.Error(err, "Failed to start the container", values...)
	case plan.OpStop:
		log.Error(err, "Failed to stop the container", values...)
	case plan.OpStopSandbox:
		log.Error(err, "Failed to stop the pod's sandbox", values...)
	case plan.OpRemoveContainer:
		log.Error(err, "Failed to remove the container", values...)
	case plan.OpRemoveSandbox:
		log.Error(err, "Failed to remove the pod's sandbox", values...)
	case plan.OpRelease:
		log.Error(err, "Failed to release the pod's volumes", values...)
	case plan.OpResize:
		log.Error(err, "Failed to resize the pod", values...)
	default:
		log.Error(err, "Failed to execute an unknown operation", values...)
	}
}

// run executes the operation and returns its outcome. Errors are handled here, once: logged,
// recorded as an event, and turned into the outcome.
func (j *job) run(ctx context.Context) plan.Outcome {
	log := klog.FromContext(ctx)
	log.V(4).Info("Beginning an operation", "op", j.op.Kind, "container", j.op.Container, "id", j.op.ID, "why", j.op.Reason)
	out, began := plan.Outcome{Operation: j.op}, time.Now()
	var err error
	switch j.op.Kind {
	case plan.OpVolumes:
		err = j.prepareVolumes(ctx)
	case plan.OpSandbox:
		err = j.runSandbox(ctx)
	case plan.OpPull:
		err = j.pull(ctx)
	case plan.OpHook:
		err = j.hook(ctx, &out)
	case plan.OpStart:
		err = j.start(ctx, &out)
	case plan.OpStop:
		err = j.stop(ctx, &out)
	case plan.OpStopSandbox:
		err = j.loop.cfg.Runtime.StopPodSandbox(ctx, j.op.ID)
	case plan.OpRemoveContainer:
		err = j.removeContainer(ctx)
	case plan.OpRemoveSandbox:
		err = j.removeSandbox(ctx)
	case plan.OpRelease:
		err = j.release(ctx)
	case plan.OpResize:
		err = j.resize(ctx, &out)
		j.loop.cfg.Metrics.resized(time.Since(began), err)
	default:
		err = fmt.Errorf("unknown operation %d", j.op.Kind)
	}
	out.At = time.Now()
	if err == nil {
		log.V(j.level()).Info("Finished an operation", "op", j.op.Kind, "container", j.op.Container, "why", j.op.Reason, "took", out.At.Sub(began).Round(time.Millisecond))
		j.loop.cfg.Metrics.operation(j.pod, out, nil)
		return out
	}
	var img *images.Error // it may wrap an error that looks like a lost connection to the runtime
	if ctx.Err() != nil || !errors.As(err, &img) && cri.IsTransport(err) || errors.Is(err, host.ErrUnreachable) {
		out.Transport = true
	}
	out.Err, out.Reason = j.words(err), j.reason(err)
	j.loop.cfg.Metrics.operation(j.pod, out, err)
	if ctx.Err() == nil {
		j.logFailure(log, err, hint.With(err, "op", j.op.Kind, "container", j.op.Container, "id", j.op.ID, "reason", out.Reason)...)
		j.record(out, err)
	}
	return out
}

// level is the verbosity of the line about the operation. Those that tell a pod's story have 2; the others
// precede or follow one of these.
func (j *job) level() int {
	switch j.op.Kind {
	case plan.OpSandbox, plan.OpHook, plan.OpStart, plan.OpStop, plan.OpResize:
		return 2
	case plan.OpPull:
		if j.observed.Newest(j.op.Container) == nil { // else it is there since the first start
			return 2
		}
	}
	return 3
}

// words returns the error message for users. If the runtime refused to make or start something, it
// is the runtime's own message, as a kubelet passes it on. It is shortened, because it is kept for
// long.
func (j *job) words(err error) string { return budget.Text(j.uncut(err)) }

func (j *job) uncut(err error) string {
	message, coded, ok := cri.ErrorText(err)
	var r *reasonError
	switch {
	case !ok:
	case j.op.Kind == plan.OpSandbox:
		return coded
	case errors.As(err, &r) && (r.reason == "CreateContainerError" || r.reason == "RunContainerError"):
		return message
	}
	return hint.Text(err)
}

// reason returns the waiting reason that the error carries, or else that of the operation.
func (j *job) reason(err error) string {
	var r *reasonError
	var img *images.Error
	switch {
	case errors.As(err, &r):
		return r.reason
	case errors.As(err, &img):
		return img.Reason
	}
	switch j.op.Kind {
	case plan.OpVolumes:
		return "ContainerCreating"
	case plan.OpSandbox:
		return "CreatePodSandboxError"
	case plan.OpStart, plan.OpHook:
		return "RunContainerError"
	case plan.OpResize:
		return v1.PodReasonError
	}
	return ""
}

// record records the events that a kubelet records. Package images records its own.
func (j *job) record(out plan.Outcome, err error) {
	var img *images.Error
	if errors.As(err, &img) {
		return
	}
	if dirs := (*volume.DirsError)(nil); j.op.Kind == plan.OpVolumes && !errors.As(err, &dirs) {
		j.loop.failedVolumes(j.pod, err)
		return
	}
	if container, reason, message := j.eventOf(out, err); reason != "" {
		j.loop.event(j.pod, container, v1.EventTypeWarning, reason, message)
	}
}

// eventOf returns the event of a failed operation, and the container that it is about; an empty reason
// means that there is none.
func (j *job) eventOf(out plan.Outcome, err error) (container, reason, message string) {
	var claims *claimsError
	var cgroup *cgroupError
	switch {
	case errors.As(err, &claims):
		return "", "FailedPrepareDynamicResources", "Failed to prepare dynamic resources: " + out.Err
	case errors.As(err, &cgroup):
		return "", "FailedCreatePodContainer", "unable to ensure pod container exists: " + out.Err
	}
	switch j.op.Kind {
	case plan.OpVolumes:
		return "", "Failed", "error making pod data directories: " + out.Err
	case plan.OpSandbox:
		return "", "FailedCreatePodSandBox", "Failed to create pod sandbox: " + out.Err
	case plan.OpStart:
		if out.Reason != postStartHookError { // postStart has recorded it
			return j.op.Container, "Failed", "Error: " + out.Err
		}
	case plan.OpRelease:
		if errors.Is(err, host.ErrBusy) {
			return "", "FailedUnMount", "the pod stays until its volumes are unmounted: " + out.Err
		}
	case plan.OpStop, plan.OpStopSandbox:
		return "", "FailedKillPod", "error killing pod: " + out.Err
	}
	return "", "", ""
}

// failedVolumes records an event for each volume that could not be set up or refreshed, or one for the
// pod if the error is of no single volume.
func (l *Loop) failedVolumes(p *v1.Pod, err error) {
	failures := volume.Failures(err)
	for _, f := range failures {
		l.event(p, "", v1.EventTypeWarning, f.Reason, budget.Text(hint.Text(f)))
	}
	if len(failures) == 0 {
		l.event(p, "", v1.EventTypeWarning, volume.ReasonFailedMount, budget.Text("Unable to attach or mount volumes: "+hint.Text(err)))
	}
}

// machine returns the host, as input of the specs.
func (j *job) machine() spec.Machine {
	m := j.loop.machine()
	m.UserNamespace = j.users
	m.RecursiveReadOnly = j.loop.recursiveReadOnly(j.observed)
	return m
}
