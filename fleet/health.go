package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	"k8s.io/component-base/logs"

	"github.com/bowline-k8s/bowline/node"
)

// Health serves the state of the process: whether it runs (/livez), whether it knows all of its
// hosts (/readyz), and its metrics (/metrics). It does not report hosts: a host in trouble is no
// reason to restart the process that manages the others. Each node has its own /healthz and
// /metrics.
type Health struct {
	listener net.Listener
	ready    func() error // nil if ready, else the reason
	alive    func(context.Context) error
	// Profiling also serves /debug/pprof/ and /debug/flags/v. The address is unauthenticated.
	Profiling bool
}

// ListenHealth binds the address at once, so that a taken port fails at startup.
func ListenHealth(address string, ready func() error, alive func(context.Context) error) (*Health, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--health-address: %w", err)
	}
	return &Health{listener: listener, ready: ready, alive: alive}, nil
}

// Run serves until ctx ends.
func (h *Health) Run(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, r *http.Request) {
		if err := h.alive(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_, _ = io.WriteString(w, "ok\n")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := h.ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "ok\n")
	})
	mux.Handle("GET /metrics", fewAtATime(mostScrapes, node.ProcessMetrics()))
	write := 10 * time.Second
	if h.Profiling {
		profiling(mux)
		write = 2 * time.Minute // a CPU profile takes 30 seconds
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: write, MaxHeaderBytes: 1 << 13, ConnState: new(callers).state}
	server.SetKeepAlivesEnabled(false) // each connection ends within seconds
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(h.listener); ctx.Err() == nil {
		return fmt.Errorf("--health-address: %w", err)
	}
	return nil // closed by ctx
}

// profiling adds what a kubelet has at these paths: profiles, and the verbosity of the log, which a PUT of a
// number sets.
func profiling(mux *http.ServeMux) {
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("PUT /debug/flags/v", setVerbosity)
}

// maxVerbosity bounds the body of a request to set the verbosity.
const maxVerbosity = 64

func setVerbosity(w http.ResponseWriter, r *http.Request) {
	value, err := io.ReadAll(io.LimitReader(r.Body, maxVerbosity))
	if err == nil {
		_, err = logs.GlogSetter(strings.TrimSpace(string(value)))
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	fmt.Fprintf(w, "successfully set the verbosity to %s\n", strings.TrimSpace(string(value)))
}

var errHostsUnread = errors.New("the cluster's Host objects have not been read yet")
