package cri

import (
	"context"
	"errors"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// stopMargin is the time that a StopContainer may take beyond its grace period: the SIGKILL, the exit and
// the runtime's bookkeeping on a loaded host.
const stopMargin = time.Minute

// CreateContainer creates a container in the sandbox and returns its ID. It does not start it.
func (c *Client) CreateContainer(ctx context.Context, sandboxID string, config *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig) (string, error) {
	r, err := c.runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId: sandboxID, Config: config, SandboxConfig: sandbox,
	})
	object := config.GetMetadata().GetName()
	if err != nil {
		return "", about(err, object)
	}
	if r.ContainerId == "" {
		return "", &Error{Method: "CreateContainer", Object: object, Err: errEmptyAnswer}
	}
	return r.ContainerId, nil
}

// StartContainer starts a created container.
func (c *Client) StartContainer(ctx context.Context, id string) error {
	_, err := c.runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id})
	return about(err, id)
}

// StopContainer sends the stop signal and, after the grace period, SIGKILL; 0 kills at once. It
// returns when the container has stopped, and succeeds if it had already stopped or does not exist.
// If ctx ends during the grace period, the SIGKILL may never be sent: call it again with the
// remaining time. The CRI counts whole seconds; fractions are rounded up.
func (c *Client) StopContainer(ctx context.Context, id string, grace time.Duration) error {
	grace = max(grace, 0)
	ctx, cancel := context.WithTimeout(ctx, grace+stopMargin)
	defer cancel()
	_, err := c.runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: seconds(grace)})
	return unlessNotFound(about(err, id))
}

// RemoveContainer removes the container, and kills it first if it runs. It succeeds if the
// container does not exist.
func (c *Client) RemoveContainer(ctx context.Context, id string) error {
	remove := func() error {
		_, err := c.runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id})
		return unlessNotFound(about(err, id))
	}
	err := remove()
	if !hasKind(err, KindFailed) {
		return err
	}
	// containerd's CRI refuses while the container has a task, and cannot end a task that it
	// considers ended.
	ended, endErr := c.endTask(containerdContext(ctx), id)
	switch {
	case ended:
		return remove()
	case IsUnimplemented(endErr):
		return err
	}
	return errors.Join(err, endErr)
}

// ListContainers lists the containers that match filter; nil matches all.
func (c *Client) ListContainers(ctx context.Context, filter *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	r, err := c.runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: filter})
	if err != nil {
		return nil, err
	}
	return r.Containers, nil
}

// ContainerStatus returns the status of one container; IsNotFound if it does not exist.
func (c *Client) ContainerStatus(ctx context.Context, id string) (*runtimeapi.ContainerStatus, error) {
	r, err := c.runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		return nil, about(err, id)
	}
	if r.Status == nil {
		return nil, &Error{Method: "ContainerStatus", Object: id, Err: errEmptyAnswer}
	}
	return r.Status, nil
}

// UpdateContainerResources changes the resource limits of a container in place.
func (c *Client) UpdateContainerResources(ctx context.Context, id string, resources *runtimeapi.ContainerResources) error {
	_, err := c.runtime.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{
		ContainerId: id, Linux: resources.GetLinux(), Windows: resources.GetWindows(),
	})
	return about(err, id)
}

// CheckpointContainer writes a checkpoint of a running container to the file at path on the host. It
// needs CRIU there. A timeout of 0 is the runtime's own.
func (c *Client) CheckpointContainer(ctx context.Context, id, path string, timeout time.Duration) error {
	limit := timeout
	if limit <= 0 {
		limit = action
	}
	ctx, cancel := context.WithTimeout(ctx, limit+stopMargin)
	defer cancel()
	_, err := c.runtime.CheckpointContainer(ctx, &runtimeapi.CheckpointContainerRequest{ContainerId: id, Location: path, Timeout: seconds(timeout)})
	return about(err, id)
}

// ReopenContainerLog makes the runtime open a new file at the container's log path, after the old
// one was renamed.
func (c *Client) ReopenContainerLog(ctx context.Context, id string) error {
	_, err := c.runtime.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: id})
	return about(err, id)
}

// seconds rounds up, so that no grace period or timeout becomes shorter than requested, or zero,
// which the CRI reads as "at once" or "never".
func seconds(d time.Duration) int64 {
	return int64((d + time.Second - 1) / time.Second)
}

// ListContainerStats returns the usage of the running containers of a sandbox, or of all running
// containers if sandboxID is empty.
func (c *Client) ListContainerStats(ctx context.Context, sandboxID string) ([]*runtimeapi.ContainerStats, error) {
	req := &runtimeapi.ListContainerStatsRequest{}
	if sandboxID != "" {
		req.Filter = &runtimeapi.ContainerStatsFilter{PodSandboxId: sandboxID}
	}
	r, err := c.runtime.ListContainerStats(ctx, req)
	if err != nil {
		return nil, about(err, sandboxID)
	}
	return r.Stats, nil
}

// ListPodSandboxStats returns the usage of every ready sandbox. Some runtimes do not implement it.
func (c *Client) ListPodSandboxStats(ctx context.Context) ([]*runtimeapi.PodSandboxStats, error) {
	r, err := c.runtime.ListPodSandboxStats(ctx, &runtimeapi.ListPodSandboxStatsRequest{})
	if err != nil {
		return nil, err
	}
	return r.Stats, nil
}
