package main

import (
	"net"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/bowline-k8s/bowline/lab/internal/testutil"
)

// The test calls the server with gRPC's own client.
func TestHealthCheck(t *testing.T) {
	var unhealthy atomic.Bool
	server := grpcServer("", func() bool { return !unhealthy.Load() })
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.Must(t, err)
	go func() { _ = server.Serve(listener) }()
	defer server.Close()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	testutil.Must(t, err)
	defer conn.Close()
	for _, test := range []struct {
		service   string
		unhealthy bool
		want      healthpb.HealthCheckResponse_ServingStatus
		code      codes.Code
	}{
		{"", false, healthpb.HealthCheckResponse_SERVING, codes.OK},
		{"web", false, healthpb.HealthCheckResponse_SERVING, codes.OK},
		{"web", true, healthpb.HealthCheckResponse_NOT_SERVING, codes.OK},
		{"other", false, 0, codes.NotFound},
	} {
		unhealthy.Store(test.unhealthy)
		reply, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: test.service})
		if status.Code(err) != test.code || reply.GetStatus() != test.want {
			t.Errorf("%q, unhealthy %v: %v, %v", test.service, test.unhealthy, reply.GetStatus(), err)
		}
	}
}
