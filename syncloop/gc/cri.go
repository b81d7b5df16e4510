package gc

import (
	"context"
	"path"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/gc/gcpolicy"
)

// ContainerLogsDir is where log collectors look for container logs.
const ContainerLogsDir = "/var/log/containers"

// CRI is the Runtime of a CRI client.
type CRI struct {
	Client *cri.Client
	Files  host.Host
	Offset func() time.Duration
	// Logs is the root directory of the pod logs on the host.
	Logs string

	// ListAll returns all sandboxes and containers of the runtime.
	ListAll func(context.Context) ([]*runtimeapi.PodSandbox, []*runtimeapi.Container, error)
}

func (r CRI) List(ctx context.Context) ([]gcpolicy.Sandbox, []gcpolicy.Container, error) {
	sandboxes, containers, err := r.ListAll(ctx)
	if err != nil {
		return nil, nil, err
	}
	var outS []gcpolicy.Sandbox
	for _, s := range sandboxes {
		out := gcpolicy.Sandbox{ID: s.Id, UID: types.UID(s.Labels[pod.LabelPodUID]), Owner: s.Labels[pod.LabelOwner],
			State: gcpolicy.Dead, CreatedAt: time.Unix(0, s.CreatedAt).Add(-r.Offset())}
		if s.State == runtimeapi.PodSandboxState_SANDBOX_READY {
			out.State = gcpolicy.Running
		}
		outS = append(outS, out)
	}
	var outC []gcpolicy.Container
	for _, c := range containers {
		out := gcpolicy.Container{ID: c.Id, Name: c.Labels[pod.LabelContainerName], UID: types.UID(c.Labels[pod.LabelPodUID]),
			Owner: c.Labels[pod.LabelOwner], SandboxID: c.PodSandboxId, State: gcpolicy.Dead,
			CreatedAt: time.Unix(0, c.CreatedAt).Add(-r.Offset()), LogPath: logPath(r.Logs, c)}
		switch c.State {
		case runtimeapi.ContainerState_CONTAINER_CREATED:
			out.State = gcpolicy.Created
		case runtimeapi.ContainerState_CONTAINER_RUNNING:
			out.State = gcpolicy.Running
		case runtimeapi.ContainerState_CONTAINER_UNKNOWN:
			out.State = gcpolicy.Unknown
		}
		outC = append(outC, out)
	}
	return outS, outC, nil
}

// logPath returns the log file of a container. The CRI list response does not contain it, so it is
// derived from the container's labels and attempt.
func logPath(logs string, c *runtimeapi.Container) string {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: c.Labels[pod.LabelPodNamespace], Name: c.Labels[pod.LabelPodName], UID: types.UID(c.Labels[pod.LabelPodUID]),
	}}
	name := c.Labels[pod.LabelContainerName]
	if p.Namespace == "" || p.Name == "" || p.UID == "" || name == "" || c.Metadata == nil {
		return "" // no pod's container
	}
	return path.Join(spec.LogDir(spec.Machine{PodLogsDir: logs}, p), spec.LogPath(name, c.Metadata.Attempt))
}

func (r CRI) RemoveContainer(ctx context.Context, id string) error {
	if err := r.Client.RemoveContainer(ctx, id); err != nil && !cri.IsNotFound(err) {
		return err
	}
	return nil
}

func (r CRI) RemoveRemnants(ctx context.Context, uid types.UID, minAge time.Duration) (bool, error) {
	younger, err := r.Client.RemoveLeaked(ctx, uid, time.Now().Add(r.Offset()-minAge))
	return younger > 0, err
}

func (r CRI) RemoveSandbox(ctx context.Context, id string) error {
	if err := r.Client.StopPodSandbox(ctx, id); err != nil && !cri.IsNotFound(err) {
		return err
	}
	if err := r.Client.RemovePodSandbox(ctx, id); err != nil && !cri.IsNotFound(err) {
		return err
	}
	return nil
}
