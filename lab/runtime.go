package lab

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/lab/layout"
)

// Socket is the machine's path to the runtime socket of the host in which pid runs.
func Socket(pid int, r layout.Runtime) string {
	return fmt.Sprintf("/proc/%d/root%s", pid, r.Socket())
}

// DialRuntime connects to a host's runtime from outside the host.
func DialRuntime(pid int, r layout.Runtime) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix://"+Socket(pid, r), grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// ready returns nil once the host's runtime can run pods with a network.
func ready(ctx context.Context, pid int, r layout.Runtime) error {
	conn, err := DialRuntime(pid, r)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	resp, err := runtimeapi.NewRuntimeServiceClient(conn).Status(ctx, &runtimeapi.StatusRequest{})
	if err != nil {
		return err
	}
	for _, c := range resp.GetStatus().GetConditions() {
		if !c.GetStatus() && (c.GetType() == "RuntimeReady" || c.GetType() == "NetworkReady") {
			return fmt.Errorf("%s is not there yet: %s", c.GetType(), c.GetMessage())
		}
	}
	return nil
}
