package connect

import (
	"context"
	"fmt"
	"net"
	"strings"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/notify"
	"github.com/bowline-k8s/bowline/ownership"
)

// Resolve returns cfg with symbolic links on the host resolved.
func Resolve(ctx context.Context, machine host.Host, cfg *config.Host) (*config.Host, error) {
	real := *cfg
	socket, err := RealPath(ctx, machine, cfg.SocketPath())
	if err != nil {
		return nil, fmt.Errorf("endpoint: %w", err)
	}
	real.Endpoint = strings.TrimSuffix(cfg.Endpoint, cfg.SocketPath()) + socket
	if real.RootDirectory, err = RealPath(ctx, machine, cfg.RootDirectory); err != nil {
		return nil, fmt.Errorf("rootDirectory: %w", err)
	}
	return &real, nil
}

// Runtime connects to the CRI socket through the host and sends to dialled after each dial. If
// ctx passes the fence, so does every later dial.
func Runtime(ctx context.Context, cfg *config.Host, machine host.Host, hook host.Hook, dialled notify.Signal) (*cri.Client, error) {
	passes := ownership.BypassesFence(ctx)
	dial := func(ctx context.Context, socket string) (net.Conn, error) {
		if passes {
			ctx = ownership.WithFenceBypass(ctx)
		}
		// A call that passed the fence may wait for this dial, so the fence must stop the dial too.
		return machine.Dial(ctx, "unix", socket)
	}
	c := cri.Config{
		Endpoint: cfg.Endpoint, Hook: hook, Budget: budget.From(ctx),
		Dial: func(ctx context.Context) (net.Conn, error) {
			conn, err := dial(ctx, cfg.SocketPath())
			if err == nil {
				dialled.Send()
			}
			return conn, err
		},
	}
	if cfg.ImageServiceEndpoint != "" {
		c.DialImages = func(ctx context.Context) (net.Conn, error) { return dial(ctx, cfg.ImageSocketPath()) }
	}
	return cri.Connect(ctx, c)
}
