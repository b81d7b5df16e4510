package linkpull

import (
	"context"
	"errors"
	"time"

	"github.com/distribution/reference"

	"github.com/bowline-k8s/bowline/linkpull/oci"
	"github.com/bowline-k8s/bowline/linkpull/registry"
	"github.com/bowline-k8s/bowline/linkpull/store"
)

// pullLongest bounds a pull, like that of the CRI's client. A pull that makes no progress ends much earlier.
const pullLongest = 2 * time.Hour

// Registry reads images; *registry.Client is one.
type Registry interface {
	Resolve(ctx context.Context, ref reference.Named, platform oci.Platform, auth *registry.Auth) (
		*registry.Remote, error)
}

// Writer writes images into a host's runtime; *store.Store is one.
type Writer interface {
	Write(ctx context.Context, i store.Image) (store.Result, error)
}

// Request is an image to pull.
type Request struct {
	// Image is its name as in a pod.
	Image    string
	Platform oci.Platform   // of the host
	Auth     *registry.Auth // nil: none
	Progress ProgressFunc   // nil: it is not called
}

// ProgressFunc is called with the bytes that the host has got, and with the sum of what it has to get; now and
// then for two blobs at once. It must not block.
type ProgressFunc func(done, total int64)

// Result is an image that the host has.
type Result struct {
	ID      oci.Digest // the image's ID in the CRI
	Digest  oci.Digest // what the image's name means at the registry
	Size    int64      // bytes of all blobs
	Written int64      // bytes of those that the host did not have
}

// Puller pulls images from registries into one host. Its methods are safe for concurrent use. A pull's
// goroutine ends at the latest with the last call that waits for it.
type Puller struct {
	registry Registry
	store    Writer
	flights  flights
}

// New returns a Puller.
func New(r Registry, w Writer) (*Puller, error) {
	if r == nil || w == nil {
		return nil, errors.New("linkpull: a registry and a store are required")
	}
	return &Puller{registry: r, store: w, flights: flights{byKey: map[string]*flight{}}}, nil
}

// Pull makes the image present on the host. Calls for the same image, platform and credentials share one pull;
// calls with other credentials do not, because no pod may get an image by the credentials of another. The error
// is an *Error, or that of the context or the host's runtime; after the latter two, the next Pull continues
// where this one stopped.
func (p *Puller) Pull(ctx context.Context, r Request) (Result, error) {
	ref, err := reference.ParseDockerRef(r.Image)
	if err != nil {
		return Result{}, &Error{Reason: ReasonInvalidName, Image: r.Image, Err: err}
	}
	pull := func(ctx context.Context, progress ProgressFunc) (Result, error) {
		ctx, cancel := context.WithTimeout(ctx, pullLongest)
		defer cancel()
		out, err := p.pull(ctx, ref, r, progress)
		if err != nil && ctx.Err() == nil {
			err = classified(r.Image, err)
		}
		return out, err
	}
	return p.flights.join(ctx, key(ref.String(), r), r.Progress, pull)
}

func (p *Puller) pull(ctx context.Context, ref reference.Named, r Request, progress ProgressFunc) (Result, error) {
	remote, err := p.registry.Resolve(ctx, ref, r.Platform, r.Auth)
	if err != nil {
		return Result{}, err
	}
	written, err := p.store.Write(ctx, store.Image{Image: remote.Image, Names: names(ref, remote.Target.Digest),
		Source: remote, Progress: progress})
	if err != nil {
		return Result{}, err
	}
	return Result{ID: remote.ID(), Digest: remote.Target.Digest, Size: remote.Size(), Written: written.Missing}, nil
}

// names are those that the CRI gives an image besides its ID: by tag, if it was asked for by one, and by digest.
func names(ref reference.Named, target oci.Digest) []string {
	if _, ok := ref.(reference.Digested); ok {
		return []string{ref.String()}
	}
	return []string{ref.String(), ref.Name() + "@" + string(target)}
}
