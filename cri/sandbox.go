package cri

import (
	"context"
	"errors"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var errEmptyAnswer = errors.New("the runtime's answer is empty")

// RunPodSandbox creates and starts a sandbox with its network, and returns its ID. handler is the
// RuntimeClass handler; "" is the default one.
func (c *Client) RunPodSandbox(ctx context.Context, config *runtimeapi.PodSandboxConfig, handler string) (string, error) {
	m := config.GetMetadata()
	object := m.GetNamespace() + "/" + m.GetName()
	r, err := c.runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: handler})
	if err != nil {
		return "", about(err, object)
	}
	if r.PodSandboxId == "" {
		return "", &Error{Method: "RunPodSandbox", Object: object, Err: errEmptyAnswer}
	}
	return r.PodSandboxId, nil
}

// StopPodSandbox kills what runs in the sandbox and releases its network. It succeeds if the
// sandbox is already stopped or does not exist.
func (c *Client) StopPodSandbox(ctx context.Context, id string) error {
	_, err := c.runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
	return unlessNotFound(about(err, id))
}

// RemovePodSandbox kills and removes the sandbox and its containers. It succeeds if the sandbox
// does not exist.
func (c *Client) RemovePodSandbox(ctx context.Context, id string) error {
	_, err := c.runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
	return unlessNotFound(about(err, id))
}

// PodSandboxStatus returns the status of one sandbox; IsNotFound if it does not exist.
func (c *Client) PodSandboxStatus(ctx context.Context, id string) (*runtimeapi.PodSandboxStatus, error) {
	r, err := c.runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
	if err != nil {
		return nil, about(err, id)
	}
	if r.Status == nil {
		return nil, &Error{Method: "PodSandboxStatus", Object: id, Err: errEmptyAnswer}
	}
	return r.Status, nil
}

// ListPodSandbox lists the sandboxes that match filter; nil matches all.
func (c *Client) ListPodSandbox(ctx context.Context, filter *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	r, err := c.runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: filter})
	if err != nil {
		return nil, err
	}
	return r.Items, nil
}
