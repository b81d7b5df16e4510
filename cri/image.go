package cri

import (
	"context"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// pullLongest limits a pull whose context has no deadline. The runtime itself aborts a pull that
// makes no progress.
const pullLongest = 2 * time.Hour

// PullImage pulls an image and returns the reference for creating containers (containerd: the
// image's ID). auth and sandbox may be nil.
func (c *Client) PullImage(ctx context.Context, image *runtimeapi.ImageSpec, auth *runtimeapi.AuthConfig, sandbox *runtimeapi.PodSandboxConfig) (string, error) {
	ctx, cancel := bounded(ctx, pullLongest)
	defer cancel()
	r, err := c.images.PullImage(ctx, &runtimeapi.PullImageRequest{Image: image, Auth: auth, SandboxConfig: sandbox})
	if err != nil {
		return "", about(err, image.GetImage())
	}
	if r.ImageRef == "" {
		return "", &Error{Method: "PullImage", Object: image.GetImage(), Err: errEmptyAnswer}
	}
	return r.ImageRef, nil
}

// ImageStatus returns one image, or nil and no error if it does not exist.
func (c *Client) ImageStatus(ctx context.Context, image *runtimeapi.ImageSpec) (*runtimeapi.Image, error) {
	r, err := c.images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: image})
	if err != nil {
		return nil, unlessNotFound(about(err, image.GetImage()))
	}
	return r.Image, nil
}

// ListImages lists every image.
func (c *Client) ListImages(ctx context.Context) ([]*runtimeapi.Image, error) {
	r, err := c.images.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		return nil, err
	}
	return r.Images, nil
}

// RemoveImage removes an image by name or ID. It succeeds if the image does not exist.
func (c *Client) RemoveImage(ctx context.Context, image *runtimeapi.ImageSpec) error {
	_, err := c.images.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: image})
	return unlessNotFound(about(err, image.GetImage()))
}

// ImageFsInfo returns the usage of the image file systems, in bytes and inodes.
func (c *Client) ImageFsInfo(ctx context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
	return c.images.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
}
