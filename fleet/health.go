package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/bowline-k8s/bowline/node"
)

// Health serves the state of the process: whether it runs (/livez), whether it knows all of its
// hosts (/readyz), and its metrics (/metrics). It does not report hosts: a host in trouble is no
// reason to restart the process that manages the others. Each node has its own /healthz and
// /metrics.
type Health struct {
	listener net.Listener
	ready    func() error // nil if ready, else the reason
}

// ListenHealth binds the address at once, so that a taken port fails at startup.
func ListenHealth(address string, ready func() error) (*Health, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--health-address: %w", err)
	}
	return &Health{listener: listener, ready: ready}, nil
}

// Run serves until ctx ends.
func (h *Health) Run(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := h.ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "ok\n")
	})
	mux.Handle("GET /metrics", node.ProcessMetrics())
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 10 * time.Second, MaxHeaderBytes: 1 << 13}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(h.listener); ctx.Err() == nil {
		return fmt.Errorf("--health-address: %w", err)
	}
	return nil // closed by ctx
}

var errHostsUnread = errors.New("the cluster's Host objects have not been read yet")
