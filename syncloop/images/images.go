// Package images makes container images present: pull policies, credentials,
// one pull in flight an image, bounded parallelism, back-off.
package images

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri"
)

// Runtime is what images asks of the container runtime; *cri.Client has it.
type Runtime interface {
	// ImageStatus returns nil without an error if the image is absent.
	ImageStatus(ctx context.Context, image *runtimeapi.ImageSpec) (*runtimeapi.Image, error)
	PullImage(ctx context.Context, image *runtimeapi.ImageSpec, auth *runtimeapi.AuthConfig, sandbox *runtimeapi.PodSandboxConfig) (ref string, err error)
}

// Events records what people look for with kubectl describe. container is the
// name of the container that the event is about; kind is v1.EventTypeNormal or
// v1.EventTypeWarning. It must not block.
type Events interface {
	Event(p *v1.Pod, container, kind, reason, message string)
}

// Config of a Manager.
type Config struct {
	Runtime Runtime // required
	Events  Events  // nil: none are recorded
	// MaxParallel pulls at once; 0 is no limit, 1 is one after the other.
	MaxParallel int
	// BackoffBase and BackoffMax: 10 s and 300 s by default.
	BackoffBase, BackoffMax time.Duration
	// Files and RecordPath are where it is kept who may use which image. Without them
	// every pod may use every image that is there.
	Files      Files
	RecordPath string
	// Providers have credentials that are tried after those of pull secrets; nil: there
	// are none.
	Providers Providers
	// Verify is NeverVerifyPreloadedImages by default; Allowed are the names for
	// NeverVerifyAllowlistedImages.
	Verify  Verification
	Allowed []string
	// Transport says whether an error of Runtime means that it was not reached, so
	// that nothing is known: neither back-off nor an event follows. cri.IsTransport
	// by default.
	Transport func(error) bool
}

func (c *Config) validate() error {
	if c.Runtime == nil {
		return errors.New("images: Config.Runtime is required")
	}
	if c.MaxParallel < 0 {
		return fmt.Errorf("images: Config.MaxParallel is %d; it must not be negative", c.MaxParallel)
	}
	if c.BackoffBase <= 0 {
		c.BackoffBase = 10 * time.Second
	}
	if c.BackoffMax <= 0 {
		c.BackoffMax = 300 * time.Second
	}
	if c.BackoffMax < c.BackoffBase {
		return fmt.Errorf("images: Config.BackoffMax %v is less than BackoffBase %v", c.BackoffMax, c.BackoffBase)
	}
	if (c.Files == nil) != (c.RecordPath == "") {
		return errors.New("images: Config.Files and Config.RecordPath belong together")
	}
	if c.Verify == "" {
		c.Verify = NeverVerifyPreloadedImages
	}
	if c.Transport == nil {
		c.Transport = cri.IsTransport
	}
	return nil
}

// Result is an image that is present.
type Result struct {
	// Ref is what to create a container with: what the runtime returned from the
	// pull (containerd: the image's ID), or the ID of an image that was there.
	Ref string
	// ID is the image's ID, empty if the runtime did not tell after a pull.
	ID     string
	Image  *runtimeapi.Image // nil if the runtime did not tell after a pull
	Pulled bool              // by this call, or by another one that it waited for
}

// The reasons of an Error, which are the container's waiting reasons.
const (
	ReasonPull        = "ErrImagePull"
	ReasonBackOff     = "ImagePullBackOff"
	ReasonNeverPull   = "ErrImageNeverPull"
	ReasonInvalidName = "InvalidImageName"
	ReasonInspect     = "ImageInspectError"
	ReasonRegistry    = "RegistryUnavailable"
	ReasonSignature   = "SignatureValidationFailed"
)

// Error is why an image is not there.
type Error struct {
	Reason  string // one of the above
	Message string // for the container's status
	Err     error  // the runtime's, or nil
	// Until is when a pull may be tried again; zero where no back-off runs.
	Until time.Time
}

func (e *Error) Error() string { return e.Message }
func (e *Error) Unwrap() error { return e.Err }

// policy is the container's pull policy; where it has none, Always for the tag
// latest and IfNotPresent for others.
func policy(c *v1.Container, r Reference) v1.PullPolicy {
	switch {
	case c.ImagePullPolicy != "":
		return c.ImagePullPolicy
	case r.Tag == "latest" && r.Digest == "":
		return v1.PullAlways
	}
	return v1.PullIfNotPresent
}
