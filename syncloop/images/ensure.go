package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/flowcontrol"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/host"
)

// Manager makes images present. Its methods are safe for concurrent use. It has no goroutine of its
// own: a pull's goroutine ends at the latest with the last call that waits for it.
type Manager struct {
	cfg   Config
	slots chan struct{}           // nil without a limit
	rate  flowcontrol.RateLimiter // nil without a limit
	// records is nil without Config.Files.
	records *records

	mu      sync.Mutex
	flights map[string]*flight // by flightKey
	backoff backoff
}

// New returns a Manager.
func New(c Config) (*Manager, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	m := &Manager{cfg: c, flights: map[string]*flight{}, backoff: newBackoff(c.BackoffBase, c.BackoffMax)}
	if c.MaxParallel > 0 {
		m.slots = make(chan struct{}, c.MaxParallel)
	}
	if c.PullQPS > 0 {
		m.rate = flowcontrol.NewTokenBucketRateLimiter(float32(c.PullQPS), c.PullBurst)
	}
	if c.Files != nil {
		m.records = newRecords(c.Files, c.RecordPath)
	}
	return m, nil
}

// Ensure makes the image of c present according to its pull policy. The error is an *Error, or that
// of the context or the transport; after the latter two the result of the pull is unknown, and no failure counts.
func (m *Manager) Ensure(ctx context.Context, p *v1.Pod, c *v1.Container, pullSecrets []v1.Secret) (Result, error) {
	result, err := m.ensure(ctx, p, c, pullSecrets)
	var fault *Error
	if errors.As(err, &fault) {
		m.event(p, c, v1.EventTypeWarning, "Failed", "Error: "+fault.Reason)
	}
	return result, err
}

func (m *Manager) ensure(ctx context.Context, p *v1.Pod, c *v1.Container, pullSecrets []v1.Secret) (Result, error) {
	ref, err := Parse(c.Image)
	if err != nil {
		message := fmt.Sprintf("Failed to apply default image tag %q: %v", c.Image, err)
		m.event(p, c, v1.EventTypeWarning, "InspectFailed", message)
		return Result{}, &Error{Reason: ReasonInvalidName, Message: message}
	}
	image := &runtimeapi.ImageSpec{Image: withDefaultTag(c.Image, ref), Annotations: p.Annotations}
	rec := recorded{image: c.Image, repository: ref.Repository}
	policy := policy(c, ref)
	var present, needed *bool // for the metrics
	defer func() { m.cfg.Ensured(policy, present, needed) }()
	if policy != v1.PullAlways {
		look := m.records.look()
		found, err := m.cfg.Runtime.ImageStatus(ctx, image)
		if err != nil {
			return Result{}, m.inspectError(ctx, p, c, err)
		}
		rec.pull = pull{before: found.GetId(), known: true}
		present = new(found != nil)
		if err := m.records.seen(ctx, look, c.Image, rec.repository, found.GetId()); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Failed to record the result of an image pull", "image", c.Image)
		}
		usable, there, err := m.usable(ctx, p, c.Image, ref, found, pullSecrets)
		if err != nil {
			return Result{}, err
		}
		if usable {
			needed = new(false)
			m.event(p, c, v1.EventTypeNormal, "Pulled", fmt.Sprintf("Container image %q %s", c.Image, there))
			return Result{Ref: found.Id, ID: found.Id, Image: found}, nil
		}
		needed = new(true)
		if policy == v1.PullNever {
			message := fmt.Sprintf("Container image %q is not present with pull policy of Never", c.Image)
			m.event(p, c, v1.EventTypeWarning, "ErrImageNeverPull", message)
			return Result{}, &Error{Reason: ReasonNeverPull, Message: message}
		}
	}
	needed = new(true)
	if rec.have, err = credentials(pullSecrets, rec.repository); err != nil {
		// A broken secret is the pod's fault, like one that the registry refuses.
		return Result{}, m.pullFailed(p, c, key(p, c), err)
	}
	return m.pull(ctx, p, c, image, rec)
}

// provided returns the providers' credentials for the pod.
func (m *Manager) provided(ctx context.Context, p *v1.Pod, repository string) []Credential {
	if m.cfg.Providers == nil {
		return nil
	}
	return m.cfg.Providers.Credentials(ctx, p, repository)
}

// usable reports whether the pod may use a present image without a pull of its own; there is the
// wording for the event. For a pod that may not, the image counts as absent.
func (m *Manager) usable(ctx context.Context, p *v1.Pod, image string, ref Reference, found *runtimeapi.Image, secrets []v1.Secret) (ok bool, there string, err error) {
	switch {
	case found == nil:
		return false, "", nil
	case m.records == nil:
		return true, "already present on machine", nil
	}
	needed := false
	verifies := func(ours bool) bool {
		needed = m.cfg.Verify.verifies(image, ours, m.cfg.Allowed)
		return needed
	}
	must, err := m.records.mustPull(ctx, verifies, image, ref.Repository, found.Id, sources(secrets, ref.Repository))
	if must && err == nil && m.cfg.Providers != nil {
		// A provider is a program and may be slow: run it only if its answer could help.
		var some bool
		if some, err = m.records.accountsMay(ctx, ref.Repository, found.Id); some && err == nil {
			must, err = m.records.mustPull(ctx, verifies, image, ref.Repository, found.Id, m.provided(ctx, p, ref.Repository))
		}
	}
	m.cfg.Checked(checked(needed, must, err))
	if err != nil {
		if ctx.Err() != nil || m.cfg.Transport(err) || errors.Is(err, host.ErrUnreachable) {
			return false, "", fmt.Errorf("whether the pod may use image %q: %w", image, err)
		}
		klog.FromContext(ctx).Error(err, "Failed to check which pods may use an image; pulling it again", "image", image)
		return false, "", nil
	}
	return !must, "already present on machine and can be accessed by the pod", nil
}

func checked(needed, must bool, err error) Check {
	switch {
	case err != nil:
		return CheckFailed
	case must:
		return CheckMustPull
	case !needed:
		return CheckNotNeeded
	}
	return CheckFound
}

// recorded is the part of a pull that the records contain.
type recorded struct {
	pull
	image, repository string
	have              []Credential
}

func (m *Manager) inspectError(ctx context.Context, p *v1.Pod, c *v1.Container, err error) error {
	if ctx.Err() != nil || m.cfg.Transport(err) {
		return fmt.Errorf("inspect image %q: %w", c.Image, err)
	}
	message := fmt.Sprintf("Failed to inspect image %q: %s", c.Image, words(err))
	m.event(p, c, v1.EventTypeWarning, "InspectFailed", message)
	return &Error{Reason: ReasonInspect, Message: message, Err: err}
}

func (m *Manager) pull(ctx context.Context, p *v1.Pod, c *v1.Container, image *runtimeapi.ImageSpec, rec recorded) (Result, error) {
	backoffKey := key(p, c)
	if until, last, waiting := m.backoffState(backoffKey); waiting {
		message := fmt.Sprintf("Back-off pulling image %q", c.Image)
		m.event(p, c, v1.EventTypeNormal, "BackOff", message)
		if last != "" {
			message += ": " + last
		}
		return Result{}, &Error{Reason: ReasonBackOff, Message: message, Until: until}
	}
	rec.have = append(rec.have, m.provided(ctx, p, rec.repository)...)
	m.event(p, c, v1.EventTypeNormal, "Pulling", fmt.Sprintf("Pulling image %q", c.Image))
	began := time.Now()
	if err := m.begin(ctx, image, &rec); err != nil {
		if ctx.Err() != nil || m.cfg.Transport(err) || errors.Is(err, host.ErrUnreachable) {
			return Result{}, fmt.Errorf("pull image %q: %w", c.Image, err)
		}
		return Result{}, m.pullFailed(p, c, backoffKey, fmt.Errorf("failed to record image pull intent for image %q: %w", c.Image, err))
	}
	done, err := m.join(ctx, image, distinct(rec.have))
	m.note(ctx, image, rec, done, err)
	if err != nil {
		if m.lost(ctx, err) {
			return Result{}, fmt.Errorf("pull image %q: %w", c.Image, err)
		}
		return Result{}, m.pullFailed(p, c, backoffKey, err)
	}
	m.mu.Lock()
	m.backoff.reset(backoffKey)
	m.mu.Unlock()
	m.cfg.Pulled(done.image.GetSize(), time.Since(began))
	m.event(p, c, v1.EventTypeNormal, "Pulled", fmt.Sprintf("Successfully pulled image %q in %v (%v including waiting). Image size: %v bytes.",
		c.Image, done.took.Truncate(time.Millisecond), time.Since(began).Truncate(time.Millisecond), done.image.GetSize()))
	return Result{Ref: done.ref, Image: done.image, ID: done.image.GetId(), Pulled: true}, nil
}

// note records the outcome of a pull. If the outcome is unknown or cannot be written, the intent
// stays until the next look at the image; pods that need the image before then pull it themselves.
func (m *Manager) note(ctx context.Context, image *runtimeapi.ImageSpec, rec recorded, done flightResult, pullErr error) {
	if m.records == nil {
		return
	}
	p := rec.pull
	p.flight = done.flight
	if done.unknown && !m.cfg.Verify.verifies(rec.image, false, m.cfg.Allowed) {
		// Otherwise even an image that did not come by a pull is open only to verified credentials.
		p.inFlight, p.have = done.used, rec.have
	}
	during, cancel := ctx, context.CancelFunc(func() {})
	if ctx.Err() != nil { // the pod, or the process, ends
		during, cancel = context.WithTimeout(context.WithoutCancel(ctx), recordTime)
	}
	defer cancel()
	var err error
	switch id := cmp.Or(done.image.GetId(), done.ref); {
	case pullErr == nil || done.err == nil && done.flight != nil:
		err = m.records.pulled(during, rec.image, rec.repository, id, done.used, rec.have, p)
	case ctx.Err() != nil:
		err = m.cutOff(during, image, rec, p, done)
	case done.unknown || m.lost(ctx, pullErr):
		m.records.leave(rec.image, p)
	default:
		err = m.records.failed(during, rec.image, p)
	}
	if err == nil {
		return
	}
	m.records.leave(rec.image, p)
	if ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Failed to record which pods may use an image; other pods pull it again", "image", rec.image)
	}
}

// recordTime bounds the recording of a pull whose pod, or process, ends.
const recordTime = 3 * time.Second

// cutOff records the outcome of a pull that its pod no longer waits for. A pull that has not begun,
// that failed, or that other pods wait for has no outcome to record.
func (m *Manager) cutOff(ctx context.Context, image *runtimeapi.ImageSpec, rec recorded, p pull, done flightResult) error {
	if rec.open || !done.unknown {
		return m.records.failed(ctx, rec.image, p)
	}
	found, err := m.cfg.Runtime.ImageStatus(ctx, image)
	if err != nil {
		return err
	}
	return m.records.ended(ctx, rec.image, rec.repository, found.GetId(), p)
}

// pullFailed counts a failure and returns an error with the kubelet's reason and message.
func (m *Manager) pullFailed(p *v1.Pod, c *v1.Container, backoffKey string, err error) error {
	m.event(p, c, v1.EventTypeWarning, "Failed", fmt.Sprintf("Failed to pull image %q: %s", c.Image, words(err)))
	reason, message := classify(c.Image, err)
	m.mu.Lock()
	until := m.backoff.fail(backoffKey, reason+": "+message, time.Now())
	m.mu.Unlock()
	return &Error{Reason: reason, Message: message, Err: err, Until: until}
}

// classify recognizes two causes that a runtime names at the beginning of its error.
func classify(image string, err error) (reason, message string) {
	text, _ := runtimeAnswer(err)
	for _, known := range []struct{ reason, why string }{
		{ReasonRegistry, "the registry is unavailable"},
		{ReasonSignature, "the signature validation failed"},
	} {
		if rest, ok := strings.CutPrefix(text, known.reason); ok {
			return known.reason, fmt.Sprintf("image pull failed for %s because %s%s", image, known.why, rest)
		}
	}
	return ReasonPull, words(err)
}

// lost reports whether the call's outcome is unknown. A pull is the one call that may last so long
// that the runtime itself gives up. It reports that under codes that a broken connection could have
// too, but it is an answer.
func (m *Manager) lost(ctx context.Context, err error) bool {
	if ctx.Err() != nil {
		return true
	}
	switch status.Code(err) {
	case codes.Canceled, codes.DeadlineExceeded, codes.Aborted:
		return false
	}
	reason, _ := classify("", err)
	return reason == ReasonPull && m.cfg.Transport(err)
}

// runtimeAnswer returns the runtime's message and code; OK: the error is not from the runtime.
func runtimeAnswer(err error) (string, codes.Code) {
	for e := err; e != nil; e = errors.Unwrap(e) {
		if answer, ok := e.(interface{ GRPCStatus() *status.Status }); ok {
			return answer.GRPCStatus().Message(), answer.GRPCStatus().Code()
		}
	}
	return err.Error(), codes.OK
}

// words is the runtime's error text as on other nodes: with the code of its answer, unless that
// says nothing.
func words(err error) string {
	text, code := runtimeAnswer(err)
	if code == codes.OK || code == codes.Unknown {
		return text
	}
	return status.Error(code, text).Error()
}

func (m *Manager) backoffState(key string) (until time.Time, last string, waiting bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.backoff.state(key, time.Now())
}

// Forget drops the back-offs of a pod that is gone.
func (m *Manager) Forget(p *v1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.backoff.forget(string(p.UID) + "_")
}

func (m *Manager) event(p *v1.Pod, c *v1.Container, kind, reason, message string) {
	if m.cfg.Events != nil {
		m.cfg.Events.Event(p, c.Name, kind, reason, message)
	}
}

// key is the key of a back-off: a pod waits only for its own failures of an image.
func key(p *v1.Pod, c *v1.Container) string { return string(p.UID) + "_" + c.Image }
