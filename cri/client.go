package cri

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
)

// maxMessage limits a request, in bytes; it is containerd's own limit. The budget limits replies
// (guard).
const maxMessage = 16 << 20

// Config configures a Client.
type Config struct {
	// Dial opens a connection to the runtime's socket. It is called again after each loss of the
	// connection.
	Dial func(ctx context.Context) (net.Conn, error)
	// DialImages opens a connection to the socket of the image service, if that is another one.
	DialImages func(ctx context.Context) (net.Conn, error)
	// Hook runs every call, labelled "cri/<Method>"; if nil, calls run directly.
	Hook host.Hook
	// Endpoint names the socket in error sentences; optional.
	Endpoint string
	// Budget limits the size of the runtime's replies; nil means the default limits.
	Budget *budget.Account
}

// Client speaks CRI v1 with one runtime. Its methods are safe for concurrent use, and all their
// errors are *Error.
type Client struct {
	config  Config
	conn    *grpc.ClientConn // to the runtime service
	image   *grpc.ClientConn // to the image service; often the same
	runtime runtimeapi.RuntimeServiceClient
	images  runtimeapi.ImageServiceClient

	streams sync.WaitGroup // event readers
	turns   turns

	mu      sync.Mutex
	dialErr error // of the last dial; nil if it succeeded
}

// newClient prepares a client; it dials on the first call.
func newClient(c Config) (*Client, error) {
	client := &Client{config: c, turns: newTurns()}
	var err error
	if client.conn, err = client.connect(client.dial); err != nil {
		return nil, err
	}
	client.image = client.conn
	if c.DialImages != nil {
		if client.image, err = client.connect(func(ctx context.Context, _ string) (net.Conn, error) { return c.DialImages(ctx) }); err != nil {
			return nil, errors.Join(err, client.conn.Close())
		}
	}
	client.runtime = runtimeapi.NewRuntimeServiceClient(client.conn)
	client.images = runtimeapi.NewImageServiceClient(client.image)
	return client, nil
}

// connect prepares the connection to one socket.
func (c *Client) connect(dial func(ctx context.Context, _ string) (net.Conn, error)) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///cri",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(dial),
		grpc.WithUnaryInterceptor(c.intercept),
		grpc.WithStreamInterceptor(c.interceptStream),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithMaxHeaderListSize(maxHeaders),
		// A fixed window: the bandwidth estimator would send a ping for each large list.
		grpc.WithInitialWindowSize(1<<20),
		grpc.WithInitialConnWindowSize(4<<20),
		grpc.WithIdleTimeout(0),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithNoProxy(),
	)
}

// Close ends the connections and every event stream.
func (c *Client) Close() error {
	err := c.conn.Close()
	if c.image != c.conn {
		err = errors.Join(err, c.image.Close())
	}
	c.streams.Wait()
	return err
}

// dial records why the socket could not be dialled: gRPC's own message hides it.
func (c *Client) dial(ctx context.Context, _ string) (net.Conn, error) {
	conn, err := c.config.Dial(ctx)
	c.mu.Lock()
	c.dialErr = err
	c.mu.Unlock()
	return conn, err
}

func (c *Client) lastDialError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dialErr
}

// intercept gives every call its deadline, its label and the kind of its error.
func (c *Client) intercept(ctx context.Context, full string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	m := methodOf(full).asked(req)
	if m.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, m.timeout)
		defer cancel()
	}
	release, err := c.config.Budget.TryTake(budget.OpenCalls, 1, "a call of "+m.name)
	if err != nil {
		return &Error{Method: m.name, Kind: KindTransport, Unsent: true, Err: err}
	}
	defer release()
	next, err := c.turns.take(ctx, m)
	if err != nil {
		return &Error{Method: m.name, Kind: KindTransport, Unsent: true, Err: err}
	}
	defer next()
	guard := c.guard(m)
	opts = append(opts, guard.options()...)
	var cut bool // the call's own context, which the hook may have derived, had ended
	sent := c.config.Hook == nil
	if c.config.Hook == nil {
		err = invoke(ctx, full, req, reply, cc, opts...)
	} else {
		err = c.config.Hook(ctx, m.label, func(ctx context.Context) error {
			sent = true
			err := invoke(ctx, full, req, reply, cc, opts...)
			cut = err != nil && over(ctx)
			return err
		})
	}
	if err == nil {
		return nil
	}
	if exceeded := guard.refused(err); exceeded != nil {
		// The runtime did answer, but the reply was refused unread.
		return &Error{Method: m.name, Kind: KindTransport, Err: exceeded}
	}
	err = guard.explain(err)
	kind := KindTransport
	if !cut && !over(ctx) {
		kind = classify(m.name, err)
	}
	return &Error{Method: m.name, Kind: kind, Unsent: !sent, Err: shortened(err)}
}

// over reports whether a context has ended. The server has the same deadline and may act on it
// first, so a deadline that has passed counts even before the context reports it.
func over(ctx context.Context) bool {
	if ctx.Err() != nil {
		return true
	}
	deadline, ok := ctx.Deadline()
	return ok && !time.Now().Before(deadline)
}

// interceptStream runs the opening of a stream under the hook.
func (c *Client) interceptStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, full string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	m := methodOf(full)
	opts = append(opts, c.guard(m).options()...)
	var stream grpc.ClientStream
	err := c.config.Hook.Do(ctx, m.label, func(context.Context) error {
		// The stream outlives this call, so it must not use a context that the hook may end.
		var err error
		stream, err = open(ctx, desc, cc, full, opts...)
		return err
	})
	if err == nil {
		return stream, nil
	}
	kind := KindTransport
	if !over(ctx) {
		kind = classify(m.name, err)
	}
	return nil, &Error{Method: m.name, Kind: kind, Err: err}
}

// bounded gives ctx the deadline limit unless it already has a deadline.
func bounded(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, limit)
}
