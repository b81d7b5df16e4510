package linkpull

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/distribution/reference"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/linkpull/oci"
	"github.com/bowline-k8s/bowline/linkpull/registry"
	"github.com/bowline-k8s/bowline/linkpull/store"
)

const (
	// shownTime is how long the CRI may take to list an image that containerd has: it learns of it by an event.
	shownTime  = 30 * time.Second
	shownPause = 100 * time.Millisecond
)

// CRI is the part of *cri.Client that Runtime needs, and images.Runtime (syncloop/images).
type CRI interface {
	ImageStatus(ctx context.Context, image *runtimeapi.ImageSpec) (*runtimeapi.Image, error)
	PullImage(ctx context.Context, image *runtimeapi.ImageSpec, auth *runtimeapi.AuthConfig,
		sandbox *runtimeapi.PodSandboxConfig) (ref string, err error)
}

// RuntimeConfig configures a Runtime.
type RuntimeConfig struct {
	Mode Mode // required
	CRI  CRI  // of the host; required
	// Puller is required unless Mode is Host.
	Puller   *Puller
	Platform oci.Platform // of the host
	// Progress is called while an image, named as in the pod, is pulled over the link; see Request. It may be
	// nil.
	Progress func(image string, done, total int64)
	// Now is the wall clock; nil: time.Now.
	Now func() time.Time
}

// Runtime is a CRI whose images come over the link where that is configured, or needed. Its methods are safe
// for concurrent use.
type Runtime struct {
	config RuntimeConfig
	memory memory
}

// NewRuntime returns a Runtime.
func NewRuntime(c RuntimeConfig) (*Runtime, error) {
	switch {
	case c.Mode != Host && c.Mode != Link && c.Mode != Auto:
		return nil, fmt.Errorf("linkpull: RuntimeConfig.Mode is %q; it must be host, link or auto", c.Mode)
	case c.CRI == nil || c.Puller == nil && c.Mode != Host:
		return nil, errors.New("linkpull: RuntimeConfig.CRI is required, and Puller unless Mode is host")
	}
	if c.Progress == nil {
		c.Progress = func(string, int64, int64) {}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Runtime{config: c}, nil
}

// ImageStatus is that of the CRI.
func (r *Runtime) ImageStatus(ctx context.Context, image *runtimeapi.ImageSpec) (*runtimeapi.Image, error) {
	return r.config.CRI.ImageStatus(ctx, image)
}

// PullImage pulls an image and returns its ID. The error is that of the CRI, or of Pull; or it has both, with
// the kind and the code of the CRI's.
func (r *Runtime) PullImage(ctx context.Context, image *runtimeapi.ImageSpec, auth *runtimeapi.AuthConfig,
	sandbox *runtimeapi.PodSandboxConfig) (string, error) {
	host := registryOf(image.GetImage())
	if r.config.Mode == Link || r.config.Mode == Auto && r.memory.unreached(host, r.config.Now()) {
		return r.overLink(ctx, image, auth)
	}
	ref, err := r.config.CRI.PullImage(ctx, image, auth, sandbox)
	if r.config.Mode == Host || !networkMayHelp(err) || ctx.Err() != nil {
		return ref, err
	}
	ref, linked := r.overLink(ctx, image, auth)
	switch {
	case linked == nil:
		r.memory.helped(host, r.config.Now())
		return ref, nil
	case cri.IsTransport(linked), ctx.Err() != nil:
		return "", linked
	case errors.Is(linked, store.ErrNoContentStore):
		return "", err
	}
	return "", &bothError{err, linked}
}

// overLink pulls the image, and waits until the CRI lists it: a container that is created earlier would fail.
func (r *Runtime) overLink(ctx context.Context, image *runtimeapi.ImageSpec, auth *runtimeapi.AuthConfig) (
	string, error) {
	name := image.GetImage()
	progress := func(done, total int64) { r.config.Progress(name, done, total) }
	request := Request{Image: name, Platform: r.config.Platform, Progress: progress}
	if auth != nil {
		request.Auth = &registry.Auth{Username: auth.GetUsername(), Password: auth.GetPassword()}
	}
	result, err := r.config.Puller.Pull(ctx, request)
	if err != nil {
		return "", err
	}
	return r.shown(ctx, image, result)
}

// shown waits until the CRI lists an image, and returns its ID.
func (r *Runtime) shown(ctx context.Context, image *runtimeapi.ImageSpec, result Result) (string, error) {
	deadline := time.NewTimer(shownTime)
	defer deadline.Stop()
	for {
		found, err := r.config.CRI.ImageStatus(ctx, image)
		if err != nil {
			return "", err
		}
		if found.GetId() == string(result.ID) {
			return found.GetId(), nil
		}
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-deadline.C:
			return "", &Error{Reason: ReasonPull, Image: image.GetImage(), Err: errNotShown}
		case <-time.After(shownPause):
		}
	}
}

var errNotShown = errors.New("the CRI does not list the image that was written to containerd")

// registryOf returns the registry of an image; empty if its name is invalid.
func registryOf(image string) string {
	ref, err := reference.ParseDockerRef(image)
	if err != nil {
		return ""
	}
	return reference.Domain(ref)
}
