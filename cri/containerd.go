package cri

import (
	"context"

	"google.golang.org/grpc"
)

// Containerd returns the connection for containerd's own services. Its calls are for the namespace of the
// CRI, and have the deadlines, labels, errors and limits of the client's other calls; the errors of a stream,
// once it is open, are gRPC statuses. With another runtime they fail with KindUnimplemented.
func (c *Client) Containerd() grpc.ClientConnInterface { return containerd{c.conn} }

type containerd struct{ conn *grpc.ClientConn }

func (c containerd) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return c.conn.Invoke(containerdContext(ctx), method, args, reply, opts...)
}

func (c containerd) NewStream(ctx context.Context, d *grpc.StreamDesc, method string,
	opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return c.conn.NewStream(containerdContext(ctx), d, method, opts...)
}
