// Package images makes container images present on a host: pull policies, credentials, one pull in
// flight per image, bounded parallelism, back-off.
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

// Runtime is the part of *cri.Client that images needs.
type Runtime interface {
	// ImageStatus returns nil without an error if the image is absent.
	ImageStatus(ctx context.Context, image *runtimeapi.ImageSpec) (*runtimeapi.Image, error)
	PullImage(ctx context.Context, image *runtimeapi.ImageSpec, auth *runtimeapi.AuthConfig, sandbox *runtimeapi.PodSandboxConfig) (ref string, err error)
}

// Events records what users see with kubectl describe. container is the name of the container that
// the event is about; kind is v1.EventTypeNormal or v1.EventTypeWarning. Event must not block.
type Events interface {
	Event(p *v1.Pod, container, kind, reason, message string)
}

// Config configures a Manager.
type Config struct {
	Runtime Runtime // required
	Events  Events  // nil: none are recorded
	// MaxParallel bounds concurrent pulls; 0 is no limit, 1 is one after the other.
	MaxParallel int
	// PullQPS and PullBurst limit how many pulls start per second, and in a burst; a pull beyond them
	// waits. If PullQPS is 0 there is no limit.
	PullQPS, PullBurst int
	// BackoffBase and BackoffMax are 10 s and 300 s by default.
	BackoffBase, BackoffMax time.Duration
	// Files and RecordPath say where the records are kept of which pods may use which image.
	// Without them every pod may use every image that is present.
	Files      Files
	RecordPath string
	// Providers have credentials that are tried after those of pull secrets; nil: there are none.
	Providers Providers
	// Verify is NeverVerifyPreloadedImages by default; Allowed are the image names for
	// NeverVerifyAllowlistedImages.
	Verify  Verification
	Allowed []string
	// Ensured is called for each call of Ensure: with the pull policy, whether the image was present,
	// and whether it had to be pulled; nil means that the call failed before that was known. Checked is
	// called for each check whether a pod may use a present image, Pulled for each pull that succeeded,
	// with the image's size (0: unknown) and the duration including waiting. They may be nil.
	Ensured func(policy v1.PullPolicy, present, pull *bool)
	Checked func(Check)
	Pulled  func(size uint64, took time.Duration)
	// Transport reports whether an error of Runtime means that the runtime did not answer. The result
	// of the call is then unknown: no back-off and no event follows. The default is cri.IsTransport.
	Transport func(error) bool
}

func (c *Config) validate() error {
	if c.Runtime == nil {
		return errors.New("images: Config.Runtime is required")
	}
	if c.MaxParallel < 0 {
		return fmt.Errorf("images: Config.MaxParallel is %d; it must not be negative", c.MaxParallel)
	}
	if c.PullQPS < 0 || c.PullQPS > 0 && c.PullBurst < 1 {
		return fmt.Errorf("images: Config.PullQPS is %d and PullBurst %d; with a limit, at least one pull may begin", c.PullQPS, c.PullBurst)
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
	if c.Ensured == nil {
		c.Ensured = func(v1.PullPolicy, *bool, *bool) {}
	}
	if c.Checked == nil {
		c.Checked = func(Check) {}
	}
	if c.Pulled == nil {
		c.Pulled = func(uint64, time.Duration) {}
	}
	return nil
}

// Check is the result of a check whether a pod may use a present image, in the kubelet's words.
type Check string

const (
	CheckNotNeeded Check = "credentialPolicyAllowed"
	CheckFound     Check = "credentialRecordFound"
	CheckMustPull  Check = "mustAuthenticate"
	CheckFailed    Check = "error"
)

// Result is an image that is present.
type Result struct {
	// Ref is the image reference to create a container with: what the runtime returned from the
	// pull (containerd: the image's ID), or the ID of an image that was already present.
	Ref string
	// ID is the image's ID, empty if it could not be read after a pull.
	ID     string
	Image  *runtimeapi.Image // nil if its status could not be read after a pull
	Pulled bool              // by this call, or by another call that it waited for
}

// The reasons of an Error are the container's waiting reasons.
const (
	ReasonPull        = "ErrImagePull"
	ReasonBackOff     = "ImagePullBackOff"
	ReasonNeverPull   = "ErrImageNeverPull"
	ReasonInvalidName = "InvalidImageName"
	ReasonInspect     = "ImageInspectError"
	ReasonRegistry    = "RegistryUnavailable"
	ReasonSignature   = "SignatureValidationFailed"
)

// Error is why an image is not available.
type Error struct {
	Reason  string // one of the constants above
	Message string // for the container's status
	Err     error  // the cause, or nil
	// Until is when a pull may be retried; zero without a back-off.
	Until time.Time
}

func (e *Error) Error() string { return e.Message }
func (e *Error) Unwrap() error { return e.Err }

// policy is the container's pull policy. The default is Always for the tag latest, else
// IfNotPresent.
func policy(c *v1.Container, r Reference) v1.PullPolicy {
	switch {
	case c.ImagePullPolicy != "":
		return c.ImagePullPolicy
	case r.Tag == "latest" && r.Digest == "":
		return v1.PullAlways
	}
	return v1.PullIfNotPresent
}
