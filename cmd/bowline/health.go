package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// health says of the process whether it runs (/livez) and whether it knows all of its
// hosts (/readyz), and shows what is measured of it (/metrics). It says nothing of a host: one that is in trouble is no reason to end
// what drives the others. Each node has a /healthz and /metrics of its own.
type health struct {
	listener net.Listener
	ready    func() error // why it is not ready; nil: it is
}

// listenHealth binds address at once, so that a port that is taken is told at the start.
func listenHealth(address string, ready func() error) (*health, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--health-address: %w", err)
	}
	return &health{listener: listener, ready: ready}, nil
}

// run answers until ctx ends.
func (h *health) run(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := h.ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "ok\n")
	})
	mux.Handle("GET /metrics", processMetrics())
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 10 * time.Second, MaxHeaderBytes: 1 << 13}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(h.listener); ctx.Err() == nil {
		return fmt.Errorf("--health-address: %w", err)
	}
	return nil // it was closed
}

var errHostsUnread = errors.New("the cluster's Host objects have not been read yet")
