package cri

import (
	"context"
	"errors"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// stopMargin is what a StopContainer may take beyond its grace: the SIGKILL,
// the exit and its bookkeeping on a loaded machine.
const stopMargin = time.Minute

// CreateContainer makes a container in the sandbox and returns its ID. Nothing
// runs yet.
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

// StopContainer sends the stop signal and, after grace, SIGKILL; 0 kills at
// once. It returns when the container has stopped, and succeeds where it has
// stopped before or does not exist. Cut off by ctx in mid-grace, the SIGKILL may
// never be sent: issue it again with what remains. The CRI counts whole
// seconds; a fraction is rounded up.
func (c *Client) StopContainer(ctx context.Context, id string, grace time.Duration) error {
	grace = max(grace, 0)
	ctx, cancel := context.WithTimeout(ctx, grace+stopMargin)
	defer cancel()
	_, err := c.runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: seconds(grace)})
	return unlessNotFound(about(err, id))
}

// RemoveContainer removes the container, killing it first if it runs. It
// succeeds where the container does not exist.
func (c *Client) RemoveContainer(ctx context.Context, id string) error {
	remove := func() error {
		_, err := c.runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id})
		return unlessNotFound(about(err, id))
	}
	err := remove()
	if !hasKind(err, KindFailed) {
		return err
	}
	// containerd's CRI refuses while there is a task, and cannot end one that it
	// takes for ended.
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

// ContainerStatus tells all of one container; IsNotFound if it does not exist.
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

// UpdateContainerResources changes the limits of a container in place.
func (c *Client) UpdateContainerResources(ctx context.Context, id string, resources *runtimeapi.ContainerResources) error {
	_, err := c.runtime.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{
		ContainerId: id, Linux: resources.GetLinux(), Windows: resources.GetWindows(),
	})
	return about(err, id)
}

// ReopenContainerLog makes the runtime write on at the container's log path,
// after the old file was renamed away.
func (c *Client) ReopenContainerLog(ctx context.Context, id string) error {
	_, err := c.runtime.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: id})
	return about(err, id)
}

// seconds rounds up, so that no grace or time-out becomes shorter than asked,
// nor zero, which the CRI reads as "at once" or "never".
func seconds(d time.Duration) int64 {
	return int64((d + time.Second - 1) / time.Second)
}

// ListContainerStats tells what the running containers of a sandbox use, or, with an empty
// sandboxID, all of them.
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

// ListPodSandboxStats tells what every ready sandbox uses. A runtime may not know it.
func (c *Client) ListPodSandboxStats(ctx context.Context) ([]*runtimeapi.PodSandboxStats, error) {
	r, err := c.runtime.ListPodSandboxStats(ctx, &runtimeapi.ListPodSandboxStatsRequest{})
	if err != nil {
		return nil, err
	}
	return r.Stats, nil
}
