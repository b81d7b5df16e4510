package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	diffapi "github.com/containerd/containerd/api/services/diff/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"

	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/linkpull/oci"
)

// ErrNoContentStore means that the runtime has no content store that images can be written to (CRI-O).
var ErrNoContentStore = errors.New("the container runtime has no content store")

const (
	uploadsAtOnce = 2 // blobs in transfer to one host
	asksAtOnce    = 8 // short calls for one image
)

// Source has the layers of an image.
type Source interface {
	// Open returns the bytes of a layer from offset on. An error, also one of Read, that has a method
	// Temporary() bool which returns true may be followed by another Open.
	Open(ctx context.Context, d oci.Descriptor, offset int64) (io.ReadCloser, error)
}

// Slots bound the blobs that are in transfer at once, over all stores that share them, and so their memory: a
// blob takes at most 3 MiB in this process (its chunk, and what gRPC has encoded and not yet sent).
type Slots chan struct{}

// NewSlots returns n slots.
func NewSlots(n int) Slots { return make(Slots, n) }

// Config configures a Store.
type Config struct {
	// Conn reaches containerd's services in the namespace of the CRI: cri.Client.Containerd.
	Conn grpc.ClientConnInterface
	// Snapshotter unpacks images; see SnapshotterOf.
	Snapshotter string
	// Slots are shared with other stores; nil: 8 of its own.
	Slots Slots
	// Rate limits the bytes per second to this host; nil: no limit. See NewRate.
	Rate *rate.Limiter
	// Pause is the first pause after a failed call, 250 ms by default; each later one is twice as long.
	Pause time.Duration
	// Now is the wall clock; nil: time.Now.
	Now func() time.Time
}

// Store writes images into one containerd. Its methods are safe for concurrent use. It starts nothing by
// itself.
type Store struct {
	config    Config
	content   contentapi.ContentClient
	images    imagesapi.ImagesClient
	leases    leasesapi.LeasesClient
	snapshots snapshotsapi.SnapshotsClient
	diff      diffapi.DiffClient
	// own are the slots of this host: it cannot take those of all others.
	own Slots
	// writes and uploads let one Write at a time work on an image, and one on a blob.
	writes, uploads *locks
}

// New returns a Store.
func New(c Config) (*Store, error) {
	if c.Conn == nil || c.Snapshotter == "" {
		return nil, errors.New("store: Config.Conn and Snapshotter are required")
	}
	if c.Slots == nil {
		c.Slots = NewSlots(8)
	}
	if c.Pause <= 0 {
		c.Pause = 250 * time.Millisecond
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Store{
		config:    c,
		content:   contentapi.NewContentClient(c.Conn),
		images:    imagesapi.NewImagesClient(c.Conn),
		leases:    leasesapi.NewLeasesClient(c.Conn),
		snapshots: snapshotsapi.NewSnapshotsClient(c.Conn),
		diff:      diffapi.NewDiffClient(c.Conn),
		own:       NewSlots(uploadsAtOnce),
		writes:    newLocks(),
		uploads:   newLocks(),
	}, nil
}

// SnapshotterOf returns the snapshotter that the CRI unpacks images with: containerd names the directory of an
// image file system after it, and lists that of the default snapshotter first.
func SnapshotterOf(info *runtimeapi.ImageFsInfoResponse) string {
	for _, f := range info.GetImageFilesystems() {
		dir := path.Base(f.GetFsId().GetMountpoint())
		if name, ok := strings.CutPrefix(dir, "io.containerd.snapshotter.v1."); ok && name != "" {
			return name
		}
	}
	return "overlayfs"
}

// Image is an image to write.
type Image struct {
	oci.Image
	// Names are those that the CRI finds the image by, besides its ID: NAME:TAG, NAME@DIGEST.
	Names []string
	// Source has the layers; it is not asked for those that containerd has.
	Source Source
	// Progress is called with the bytes that containerd has got of the blobs that it did not have, and with
	// their sum; now and then for two blobs at once. It must not block; nil: it is not called.
	Progress func(done, total int64)
}

// Result is what Write did.
type Result struct {
	Missing int64 // bytes of the blobs that containerd did not have
}

// blob is a part of an image: a document, whose data and labels are known, or a layer.
type blob struct {
	oci.Descriptor
	data   []byte // nil: a layer
	labels map[string]string
}

func (i Image) blobs() []blob {
	var all []blob
	for _, l := range i.Distinct() {
		all = append(all, blob{Descriptor: l})
	}
	all = append(all, blob{Descriptor: i.Config, data: i.ConfigBytes},
		blob{Descriptor: i.Manifest, data: i.ManifestBytes, labels: i.ManifestLabels()})
	if i.Index != nil {
		all = append(all, blob{Descriptor: i.Target, data: i.Index, labels: i.IndexLabels()})
	}
	return all
}

// Write makes the image present and unpacked. It retries what the link or the registry cut off, as long as
// there is progress. After an error that is temporary (cri.IsTransport, or Temporary of the source) the next
// Write continues from there. The error is ErrNoContentStore, oci.ErrMismatch if a layer is not what its
// descriptor says, the source's, or containerd's.
func (s *Store) Write(ctx context.Context, i Image) (Result, error) {
	unlock, err := s.writes.lock(ctx, string(i.Target.Digest))
	if err != nil {
		return Result{}, err
	}
	defer unlock()
	lease, err := s.lease(ctx, i.Target.Digest)
	if err != nil {
		return Result{}, err
	}
	result, err := s.write(lease.attach(ctx), lease, i)
	if err == nil || !temporary(err) && ctx.Err() == nil {
		s.end(ctx, lease)
	}
	return result, err
}

func (s *Store) write(ctx context.Context, lease lease, i Image) (Result, error) {
	all := i.blobs()
	present, err := s.present(ctx, lease, all)
	if err != nil {
		return Result{}, err
	}
	var result Result
	for n, b := range all {
		if !present[n] {
			result.Missing += b.Size
		}
	}
	progress := newProgress(result.Missing, i.Progress)
	work, ctxWork := errgroup.WithContext(ctx)
	work.SetLimit(uploadsAtOnce)
	account := budget.From(ctx)
	for n, b := range all {
		switch {
		case !present[n]:
			work.Go(func() (err error) {
				err = budget.ErrPanicked // stays if a panic is recovered
				defer account.Recover("write a blob")
				return s.put(ctxWork, b, i.Source, progress)
			})
		case len(b.labels) > 0:
			work.Go(func() (err error) {
				err = budget.ErrPanicked
				defer account.Recover("label a blob")
				return s.label(ctxWork, b.Digest, b.labels)
			})
		}
	}
	if err := work.Wait(); err != nil {
		return result, err
	}
	if err := s.unpack(ctx, i.Image); err != nil {
		return result, err
	}
	return result, s.record(ctx, i)
}

// present asks which of the blobs exist, and adds all of them to the lease. A blob is added before it is asked
// for, so that one which exists cannot be collected afterwards.
func (s *Store) present(ctx context.Context, lease lease, all []blob) ([]bool, error) {
	found := make([]bool, len(all))
	work, ctx := errgroup.WithContext(ctx)
	work.SetLimit(asksAtOnce)
	account := budget.From(ctx)
	for n, b := range all {
		work.Go(func() (err error) {
			err = budget.ErrPanicked
			defer account.Recover("ask for a blob")
			return s.retry(ctx, func() error {
				if err := s.keep(ctx, lease, b.Digest); err != nil {
					return err
				}
				reply, err := s.content.Info(ctx, &contentapi.InfoRequest{Digest: string(b.Digest)})
				if isNotFound(err) {
					return nil
				}
				if err != nil {
					return fmt.Errorf("look for %s in containerd: %w", b.Digest, err)
				}
				if size := reply.GetInfo().GetSize(); size != b.Size {
					return fmt.Errorf("%s has %d bytes in containerd instead of %d: %w", b.Digest, size, b.Size, oci.ErrMismatch)
				}
				found[n] = true
				return nil
			})
		})
	}
	return found, work.Wait()
}
