package storetest

import (
	"context"
	"io"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	contentapi "github.com/containerd/containerd/api/services/content/v1"

	"github.com/bowline-k8s/bowline/linkpull/oci"
)

type contentServer struct {
	contentapi.UnimplementedContentServer
	*Containerd
}

func (c contentServer) Info(_ context.Context, r *contentapi.InfoRequest) (*contentapi.InfoResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.blobs[r.Digest]
	if b == nil {
		return nil, status.Errorf(codes.NotFound, "content %s", r.Digest)
	}
	return &contentapi.InfoResponse{Info: &contentapi.Info{Digest: r.Digest, Size: int64(len(b.data)),
		Labels: b.labels}}, nil
}

func (c contentServer) Update(_ context.Context, r *contentapi.UpdateRequest) (*contentapi.UpdateResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.blobs[r.Info.Digest]
	if b == nil {
		return nil, status.Errorf(codes.NotFound, "content %s", r.Info.Digest)
	}
	if b.labels == nil {
		b.labels = map[string]string{}
	}
	for _, p := range r.UpdateMask.GetPaths() {
		key, ok := strings.CutPrefix(p, "labels.")
		if !ok {
			return nil, status.Errorf(codes.InvalidArgument, "cannot update %q", p)
		}
		b.labels[key] = r.Info.Labels[key]
	}
	return &contentapi.UpdateResponse{Info: r.Info}, nil
}

func (c contentServer) Abort(_ context.Context, r *contentapi.AbortRequest) (*emptypb.Empty, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ingests[r.Ref] == nil {
		return nil, status.Errorf(codes.NotFound, "reference %s", r.Ref)
	}
	c.drop(r.Ref)
	return &emptypb.Empty{}, nil
}

// drop removes an ingest, also from leases. The caller holds mu.
func (c *Containerd) drop(ref string) {
	delete(c.ingests, ref)
	for _, l := range c.leases {
		delete(l.resources, "ingests/"+ref)
	}
}

func (c contentServer) Write(s contentapi.Content_WriteServer) error {
	if err := named(s.Context()); err != nil {
		return err
	}
	r, err := s.Recv()
	if err != nil {
		return err
	}
	i, err := c.open(s.Context(), r)
	if err != nil {
		return err
	}
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		i.locked = false
	}()
	ref := r.Ref
	for {
		if err := c.fault("Write"); err != nil {
			return err
		}
		reply, err := c.message(s.Context(), ref, i, r)
		if err != nil {
			return err
		}
		if c.Collecting {
			c.Collect()
		}
		if err := s.Send(reply); err != nil {
			return err
		}
		if r.Action == contentapi.WriteAction_COMMIT {
			return s.Send(reply) // containerd sends this answer twice
		}
		if r, err = s.Recv(); err != nil {
			if err == io.EOF {
				return s.Send(reply) // and so does it repeat the last one here
			}
			return err
		}
	}
}

// open locks an ingest.
func (c *Containerd) open(ctx context.Context, r *contentapi.WriteContentRequest) (*ingest, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.Ref == "" {
		return nil, status.Error(codes.InvalidArgument, "first message must have a reference")
	}
	if r.Expected != "" && c.blobs[r.Expected] != nil {
		if err := c.lend(ctx, "content/"+r.Expected); err != nil {
			return nil, err
		}
		return nil, status.Errorf(codes.AlreadyExists, "content %s", r.Expected)
	}
	i := c.ingests[r.Ref]
	if i == nil {
		i = &ingest{}
		c.ingests[r.Ref] = i
	}
	if err := c.lend(ctx, "ingests/"+r.Ref); err != nil {
		return nil, err
	}
	if i.locked {
		return nil, status.Errorf(codes.Unavailable, "ref %s locked", r.Ref)
	}
	i.locked = true
	return i, nil
}

func (c *Containerd) message(ctx context.Context, ref string, i *ingest,
	r *contentapi.WriteContentRequest) (*contentapi.WriteContentResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := int64(len(i.data))
	reply := &contentapi.WriteContentResponse{Action: r.Action, Offset: at, Total: r.Total}
	if r.Action == contentapi.WriteAction_STAT {
		return reply, nil
	}
	if r.Offset > 0 && r.Offset != at {
		return nil, status.Errorf(codes.OutOfRange, "write @%d must occur at current offset %d", r.Offset, at)
	}
	if r.Offset == 0 {
		i.data = nil
	}
	data := r.Data
	c.received += int64(len(data))
	if c.Altered != nil && len(data) > 0 {
		data = c.Altered(r.Offset, slices.Clone(data))
	}
	i.data = append(i.data, data...)
	reply.Offset = int64(len(i.data))
	reply.Digest = string(oci.Sum(i.data))
	if r.Action != contentapi.WriteAction_COMMIT {
		return reply, nil
	}
	switch {
	case r.Total > 0 && r.Total != reply.Offset:
		return nil, status.Errorf(codes.FailedPrecondition, "unexpected commit size %d, expected %d", reply.Offset,
			r.Total)
	case r.Expected != "" && r.Expected != reply.Digest:
		return nil, status.Errorf(codes.FailedPrecondition, "unexpected commit digest %s, expected %s", reply.Digest,
			r.Expected)
	}
	c.blobs[reply.Digest] = &content{data: i.data, labels: r.Labels}
	c.drop(ref)
	return reply, c.lend(ctx, "content/"+reply.Digest)
}
