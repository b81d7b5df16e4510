package prober

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/syncloop/probehttp"
)

// errUsed is the error of gRPC's attempt to reconnect: a probe has one connection.
var errUsed = errors.New("the probe's connection is closed")

// grpc calls the health service grpc.health.v1.
func (m *Manager) grpc(ctx context.Context, r run, a *v1.GRPCAction) outcome {
	address := net.JoinHostPort(r.ip, strconv.Itoa(int(a.Port)))
	limit := timeout(r.spec)
	conn, err := m.open(ctx, r, address)
	if err != nil {
		message := fmt.Sprintf("error: failed to connect service at %q: %+v", address, err)
		if errors.Is(err, context.DeadlineExceeded) {
			message = fmt.Sprintf("timeout: failed to connect service %q within %v: %+v", address, limit, err)
		}
		return m.failed(err, message)
	}
	only := make(chan net.Conn, 1)
	only <- conn
	defer func() {
		select {
		case c := <-only:
			c.Close()
		default:
		}
	}()
	creds := insecure.NewCredentials()
	if a.Mode != nil && *a.Mode == v1.GRPCProbeModeTLS {
		creds = credentials.NewTLS(&tls.Config{InsecureSkipVerify: true}) // as the kubelet does: a probe has no name to verify
	}
	cc, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithUserAgent("kube-probe/"+probehttp.Version),
		grpc.WithTransportCredentials(creds),
		grpc.WithMaxHeaderListSize(probehttp.MaxHeader),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(probehttp.MaxBody)),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			select {
			case c := <-only:
				return c, nil
			default:
				return nil, errUsed
			}
		}))
	if err != nil {
		return broken(err)
	}
	defer cc.Close()
	service := ""
	if a.Service != nil {
		service = *a.Service
	}
	callCtx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	resp, err := grpc_health_v1.NewHealthClient(cc).Check(callCtx, &grpc_health_v1.HealthCheckRequest{Service: service})
	if err != nil {
		s := status.Convert(err)
		switch s.Code() {
		case codes.Unimplemented:
			return m.failed(err, "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): "+s.Message())
		case codes.DeadlineExceeded:
			return m.failed(context.DeadlineExceeded, fmt.Sprintf("timeout: health rpc did not complete within %v", limit))
		case codes.Canceled:
			return outcome{}
		}
		return m.failed(err, fmt.Sprintf("error: health rpc probe failed: %+v", err))
	}
	if resp.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		return outcome{result: Failure, message: fmt.Sprintf("service unhealthy (responded with %q)", resp.GetStatus().String())}
	}
	return outcome{result: Success, message: "service healthy"}
}
