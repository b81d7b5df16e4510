package storetest

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	diffapi "github.com/containerd/containerd/api/services/diff/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/api/types"

	"github.com/bowline-k8s/bowline/linkpull/oci"
)

type leasesServer struct {
	leasesapi.UnimplementedLeasesServer
	*Containerd
}

func (c leasesServer) Create(_ context.Context, r *leasesapi.CreateRequest) (*leasesapi.CreateResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Containerd.leases[r.ID] != nil {
		return nil, status.Errorf(codes.AlreadyExists, "lease %q", r.ID)
	}
	l := &leasesapi.Lease{ID: r.ID, Labels: r.Labels, CreatedAt: timestamppb.New(time.Now().Add(c.Ahead))}
	c.Containerd.leases[r.ID] = &lease{info: l, resources: map[string]bool{}}
	return &leasesapi.CreateResponse{Lease: l}, nil
}

func (c leasesServer) List(_ context.Context, r *leasesapi.ListRequest) (*leasesapi.ListResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	reply := &leasesapi.ListResponse{}
	for id, l := range c.Containerd.leases {
		if len(r.Filters) == 0 || r.Filters[0] == fmt.Sprintf("id==%q", id) {
			reply.Leases = append(reply.Leases, l.info)
		}
	}
	return reply, nil
}

func (c leasesServer) Delete(_ context.Context, r *leasesapi.DeleteRequest) (*emptypb.Empty, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Containerd.leases[r.ID] == nil {
		return nil, status.Errorf(codes.NotFound, "lease %q", r.ID)
	}
	delete(c.Containerd.leases, r.ID)
	return &emptypb.Empty{}, nil
}

func (c leasesServer) AddResource(_ context.Context, r *leasesapi.AddResourceRequest) (*emptypb.Empty, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.Containerd.leases[r.ID]
	if l == nil {
		return nil, status.Errorf(codes.NotFound, "lease %q", r.ID)
	}
	l.resources[r.Resource.Type+"/"+r.Resource.ID] = true
	return &emptypb.Empty{}, nil
}

type imagesServer struct {
	imagesapi.UnimplementedImagesServer
	*Containerd
}

func (c imagesServer) Create(_ context.Context, r *imagesapi.CreateImageRequest) (*imagesapi.CreateImageResponse,
	error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Containerd.images[r.Image.Name] != nil {
		return nil, status.Errorf(codes.AlreadyExists, "image %q", r.Image.Name)
	}
	c.Containerd.images[r.Image.Name] = r.Image
	return &imagesapi.CreateImageResponse{Image: r.Image}, nil
}

func (c imagesServer) Update(_ context.Context, r *imagesapi.UpdateImageRequest) (*imagesapi.UpdateImageResponse,
	error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.Containerd.images[r.Image.Name]
	if i == nil {
		return nil, status.Errorf(codes.NotFound, "image %q", r.Image.Name)
	}
	changed := &imagesapi.Image{Name: i.Name, Target: i.Target, Labels: map[string]string{}}
	for k, v := range i.Labels {
		changed.Labels[k] = v
	}
	for _, p := range r.UpdateMask.GetPaths() {
		if key, ok := strings.CutPrefix(p, "labels."); ok {
			changed.Labels[key] = r.Image.Labels[key]
		} else if p == "target" {
			changed.Target = r.Image.Target
		} else {
			return nil, status.Errorf(codes.InvalidArgument, "cannot update %q", p)
		}
	}
	c.Containerd.images[i.Name] = changed
	return &imagesapi.UpdateImageResponse{Image: changed}, nil
}

func (c imagesServer) Get(_ context.Context, r *imagesapi.GetImageRequest) (*imagesapi.GetImageResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.Containerd.images[r.Name]
	if i == nil {
		return nil, status.Errorf(codes.NotFound, "image %q", r.Name)
	}
	return &imagesapi.GetImageResponse{Image: i}, nil
}

func (c imagesServer) Delete(_ context.Context, r *imagesapi.DeleteImageRequest) (*emptypb.Empty, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Containerd.images[r.Name] == nil {
		return nil, status.Errorf(codes.NotFound, "image %q", r.Name)
	}
	delete(c.Containerd.images, r.Name)
	return &emptypb.Empty{}, nil
}

type snapshotsServer struct {
	snapshotsapi.UnimplementedSnapshotsServer
	*Containerd
}

func (c snapshotsServer) Prepare(ctx context.Context,
	r *snapshotsapi.PrepareSnapshotRequest) (*snapshotsapi.PrepareSnapshotResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.Snapshotter != Snapshotter {
		return nil, status.Errorf(codes.InvalidArgument, "snapshotter %q not loaded", r.Snapshotter)
	}
	for _, key := range []string{r.Labels["containerd.io/snapshot.ref"], r.Key} {
		if key != "" && c.Containerd.snapshots[key] != nil {
			if err := c.lend(ctx, "snapshots/"+Snapshotter+"/"+key); err != nil {
				return nil, err
			}
			return nil, status.Errorf(codes.AlreadyExists, "snapshot %q", key)
		}
	}
	if p := c.Containerd.snapshots[r.Parent]; r.Parent != "" && (p == nil || !p.committed) {
		return nil, status.Errorf(codes.NotFound, "parent snapshot %q", r.Parent)
	}
	c.Containerd.snapshots[r.Key] = &snapshot{parent: r.Parent}
	if err := c.lend(ctx, "snapshots/"+Snapshotter+"/"+r.Key); err != nil {
		return nil, err
	}
	return &snapshotsapi.PrepareSnapshotResponse{Mounts: []*types.Mount{{Type: "fake", Source: r.Key}}}, nil
}

func (c snapshotsServer) Stat(_ context.Context,
	r *snapshotsapi.StatSnapshotRequest) (*snapshotsapi.StatSnapshotResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.Containerd.snapshots[r.Key]
	if s == nil {
		return nil, status.Errorf(codes.NotFound, "snapshot %q", r.Key)
	}
	kind := snapshotsapi.Kind_ACTIVE
	if s.committed {
		kind = snapshotsapi.Kind_COMMITTED
	}
	return &snapshotsapi.StatSnapshotResponse{Info: &snapshotsapi.Info{Name: r.Key, Parent: s.parent, Kind: kind}},
		nil
}

func (c snapshotsServer) Commit(ctx context.Context, r *snapshotsapi.CommitSnapshotRequest) (*emptypb.Empty,
	error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.Containerd.snapshots[r.Key]
	switch {
	case c.Containerd.snapshots[r.Name] != nil:
		return nil, status.Errorf(codes.AlreadyExists, "snapshot %q", r.Name)
	case s == nil || s.committed:
		return nil, status.Errorf(codes.NotFound, "snapshot %q", r.Key)
	}
	s.committed = true
	delete(c.Containerd.snapshots, r.Key)
	c.Containerd.snapshots[r.Name] = s
	return &emptypb.Empty{}, c.lend(ctx, "snapshots/"+Snapshotter+"/"+r.Name)
}

func (c snapshotsServer) Remove(_ context.Context, r *snapshotsapi.RemoveSnapshotRequest) (*emptypb.Empty, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Containerd.snapshots[r.Key] == nil {
		return nil, status.Errorf(codes.NotFound, "snapshot %q", r.Key)
	}
	delete(c.Containerd.snapshots, r.Key)
	return &emptypb.Empty{}, nil
}

type diffServer struct {
	diffapi.UnimplementedDiffServer
	*Containerd
}

// Apply unpacks a layer of gzip in memory. As the real one, it does not check the result.
func (c diffServer) Apply(_ context.Context, r *diffapi.ApplyRequest) (*diffapi.ApplyResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.blobs[r.Diff.Digest]
	if b == nil || len(r.Mounts) != 1 || c.Containerd.snapshots[r.Mounts[0].Source] == nil {
		return nil, status.Errorf(codes.NotFound, "content %s", r.Diff.Digest)
	}
	z, err := gzip.NewReader(bytes.NewReader(b.data))
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "layer %s: %v", r.Diff.Digest, err)
	}
	plain, err := io.ReadAll(z)
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "layer %s: %v", r.Diff.Digest, err)
	}
	s := c.Containerd.snapshots[r.Mounts[0].Source]
	if s.applied != "" {
		return nil, status.Errorf(codes.FailedPrecondition, "snapshot %q has a layer", r.Mounts[0].Source)
	}
	s.applied = string(oci.Sum(plain))
	return &diffapi.ApplyResponse{Applied: &types.Descriptor{MediaType: "application/vnd.oci.image.layer.v1.tar",
		Digest: s.applied, Size: int64(len(plain))}}, nil
}
