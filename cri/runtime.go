package cri

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Version returns the runtime's name and version.
func (c *Client) Version(ctx context.Context) (*runtimeapi.VersionResponse, error) {
	return c.runtime.Version(ctx, &runtimeapi.VersionRequest{})
}

// Status returns the conditions RuntimeReady and NetworkReady; with verbose also the runtime's own
// information (its configuration, the last CNI error).
func (c *Client) Status(ctx context.Context, verbose bool) (*runtimeapi.StatusResponse, error) {
	return c.runtime.Status(ctx, &runtimeapi.StatusRequest{Verbose: verbose})
}

// RuntimeConfig returns the runtime's cgroup driver; IsUnimplemented on old runtimes.
func (c *Client) RuntimeConfig(ctx context.Context) (*runtimeapi.RuntimeConfigResponse, error) {
	return c.runtime.RuntimeConfig(ctx, &runtimeapi.RuntimeConfigRequest{})
}

// UpdateRuntimeConfig passes the node's pod CIDRs, separated by commas, to the runtime's network.
func (c *Client) UpdateRuntimeConfig(ctx context.Context, podCIDR string) error {
	_, err := c.runtime.UpdateRuntimeConfig(ctx, &runtimeapi.UpdateRuntimeConfigRequest{
		RuntimeConfig: &runtimeapi.RuntimeConfig{NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: podCIDR}},
	})
	return about(err, podCIDR)
}
