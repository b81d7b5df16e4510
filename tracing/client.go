package tracing

import (
	"context"
	"fmt"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"
)

// exportMethod is the method of OTLP that takes spans.
const exportMethod = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"

// client sends spans to a collector; it implements otlptrace.Client. OpenTelemetry's own one would link the
// gRPC gateway, for a single call.
type client struct{ conn *grpc.ClientConn }

// dial prepares a connection, unencrypted as a kubelet's. It connects with the first spans.
func dial(endpoint string) (*client, error) {
	conn, err := grpc.NewClient(endpoint,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: time.Second, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 30 * time.Second},
			MinConnectTimeout: exportTimeout,
		}),
		grpc.WithDisableServiceConfig(),
	)
	return &client{conn}, err
}

// Start implements otlptrace.Client.
func (c *client) Start(context.Context) error { return nil }

// Stop implements otlptrace.Client.
func (c *client) Stop(context.Context) error { return c.conn.Close() }

// UploadTraces implements otlptrace.Client. The context has a deadline; until then it waits for a collector
// that is away. TracesData has the wire format of the request.
func (c *client) UploadTraces(ctx context.Context, spans []*tracepb.ResourceSpans) error {
	reply := &emptypb.Empty{} // keeps the fields of the reply as unknown ones
	if err := c.conn.Invoke(ctx, exportMethod, &tracepb.TracesData{ResourceSpans: spans}, reply, grpc.WaitForReady(true)); err != nil {
		return err
	}
	return rejection(reply.ProtoReflect().GetUnknown())
}

// rejection returns the partial success in an ExportTraceServiceResponse as an error; nil if all spans were
// taken.
func rejection(reply []byte) error {
	partial := fields(reply)[1]
	in := fields(partial.bytes)
	if n := in[1].varint; n != 0 {
		return fmt.Errorf("the collector has rejected %d spans: %.200q", n, in[2].bytes)
	}
	return nil
}

// value is a field of a message of protobuf.
type value struct {
	varint uint64
	bytes  []byte
}

// fields returns the varints and bytes of a message, by number. It stops at what it cannot read.
func fields(message []byte) map[protowire.Number]value {
	found := map[protowire.Number]value{}
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			break
		}
		var v value
		size := 0
		switch rest := message[n:]; kind {
		case protowire.VarintType:
			v.varint, size = protowire.ConsumeVarint(rest)
		case protowire.BytesType:
			v.bytes, size = protowire.ConsumeBytes(rest)
		default:
			size = protowire.ConsumeFieldValue(number, kind, rest)
		}
		if size < 0 {
			break
		}
		found[number], message = v, message[n+size:]
	}
	return found
}
