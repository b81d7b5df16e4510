package store

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/metadata"

	leasesapi "github.com/containerd/containerd/api/services/leases/v1"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/linkpull/oci"
)

const (
	// leaseTime is how long an image that was begun is kept for the next attempt. containerd deletes the lease
	// then, with all that no image has.
	leaseTime = 24 * time.Hour
	// leaseEnd is what a lease must have left to be used again.
	leaseEnd = leaseTime / 2
	// cleanTime bounds what is cleaned up after the caller has gone.
	cleanTime = 10 * time.Second

	expireLabel = "containerd.io/gc.expire" // read by containerd, by the host's clock
	sinceLabel  = "bowline.io/lease-since"  // by the clock of this process
)

// lease is a lease of containerd. Its ID depends only on the image, so that another attempt finds it, and with
// it the ingests of the first one.
type lease string

// attach makes what is created by calls with the context belong to the lease.
func (l lease) attach(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "containerd-lease", string(l))
}

// lease returns the lease for an image. It exists, and has at least leaseEnd left.
func (s *Store) lease(ctx context.Context, target oci.Digest) (lease, error) {
	id := lease("bowline-image-" + target.Hex())
	err := s.retry(ctx, func() error {
		host, err := s.createLease(ctx, id, s.config.Now())
		if isExists(err) {
			var since time.Time
			if since, err = s.leaseSince(ctx, id); err == nil && s.config.Now().Sub(since).Abs() < leaseTime-leaseEnd {
				return nil
			}
			if err == nil {
				host, err = s.renewLease(ctx, id, s.config.Now())
			}
		}
		// The collector compares the end with the clock of the host: if that is ahead, begin from there.
		if err == nil && host.Sub(s.config.Now()) > leaseTime-leaseEnd {
			_, err = s.renewLease(ctx, id, host)
		}
		return err
	})
	if cri.IsUnimplemented(err) {
		return "", ErrNoContentStore
	}
	if err != nil {
		return "", fmt.Errorf("create a lease for image %s: %w", target, err)
	}
	return id, nil
}

// createLease returns the time of the host.
func (s *Store) createLease(ctx context.Context, id lease, from time.Time) (host time.Time, err error) {
	reply, err := s.leases.Create(ctx, &leasesapi.CreateRequest{ID: string(id), Labels: map[string]string{
		expireLabel: from.Add(leaseTime).UTC().Format(time.RFC3339),
		sinceLabel:  s.config.Now().UTC().Format(time.RFC3339),
	}})
	if err != nil {
		return time.Time{}, err
	}
	return reply.GetLease().GetCreatedAt().AsTime(), nil
}

// renewLease replaces a lease: containerd cannot prolong one. What only the old one kept may be collected, and
// is then written again.
func (s *Store) renewLease(ctx context.Context, id lease, from time.Time) (host time.Time, err error) {
	if _, err := s.leases.Delete(ctx, &leasesapi.DeleteRequest{ID: string(id)}); err != nil && !isNotFound(err) {
		return time.Time{}, err
	}
	return s.createLease(ctx, id, from)
}

// leaseSince returns when this or another process created the lease; the zero time if that is not known.
func (s *Store) leaseSince(ctx context.Context, id lease) (time.Time, error) {
	reply, err := s.leases.List(ctx, &leasesapi.ListRequest{Filters: []string{fmt.Sprintf("id==%q", string(id))}})
	if err != nil {
		return time.Time{}, err
	}
	for _, l := range reply.GetLeases() {
		if since, err := time.Parse(time.RFC3339, l.GetLabels()[sinceLabel]); err == nil && l.GetID() == string(id) {
			return since, nil
		}
	}
	return time.Time{}, nil
}

// keep adds a blob to the lease, whether it exists or not.
func (s *Store) keep(ctx context.Context, l lease, d oci.Digest) error {
	_, err := s.leases.AddResource(ctx, &leasesapi.AddResourceRequest{ID: string(l),
		Resource: &leasesapi.Resource{Type: "content", ID: string(d)}})
	if err != nil {
		return fmt.Errorf("keep %s in containerd: %w", d, err)
	}
	return nil
}

// end deletes the lease. If that fails, containerd deletes it after leaseTime, so there is nothing to report.
func (s *Store) end(ctx context.Context, l lease) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTime)
	defer cancel()
	_, _ = s.leases.Delete(ctx, &leasesapi.DeleteRequest{ID: string(l)})
}
