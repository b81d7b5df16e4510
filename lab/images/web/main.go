// Command web is the demo's web server. It answers with the pod's name and the
// version of its image.
//
//	/            name, version and, if set, GREETING
//	/healthz     200, or 503 while unhealthy
//	/readyz      200 once READY_AFTER (a duration) has passed, else 503
//	/echo?m=...  m
//	/env         the environment
//	/headers     the request's headers
//	/fail        makes /healthz answer 503 from now on
//	/exit?code=n ends the process
//	/sleep?d=5s  answers after d
//
// GRPC_PORT, if set, serves the gRPC health protocol, with the same state as /healthz.
//
// Environment: PORT (8080), GRPC_PORT, POD_NAME (the host name), VERSION, GREETING,
// READY_AFTER, SHUTDOWN_DELAY (how long requests are still served after SIGTERM).
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "web:", err)
		os.Exit(1)
	}
}

func run() error {
	readyAfter, err := duration("READY_AFTER")
	if err != nil {
		return err
	}
	delay, err := duration("SHUTDOWN_DELAY")
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()

	var unhealthy atomic.Bool
	server := &http.Server{Addr: ":" + env("PORT", "8080"), Handler: handler(time.Now().Add(readyAfter), &unhealthy)}
	served := make(chan error, 2)
	if port := os.Getenv("GRPC_PORT"); port != "" {
		health := grpcServer(":"+port, func() bool { return !unhealthy.Load() })
		defer health.Close()
		go func() { served <- health.ListenAndServe() }()
	}
	go func() { served <- server.ListenAndServe() }()
	fmt.Printf("%s serves version %s on %s\n", podName(), env("VERSION", "dev"), server.Addr)

	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	fmt.Println("asked to end")
	time.Sleep(delay)
	last, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := server.Shutdown(last); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

func handler(readyAt time.Time, unhealthy *atomic.Bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s\nversion %s\n", podName(), env("VERSION", "dev"))
		if greeting := os.Getenv("GREETING"); greeting != "" {
			fmt.Fprintln(w, greeting)
		}
		fmt.Printf("%s %s from %s\n", r.Method, r.URL.Path, r.RemoteAddr)
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if unhealthy.Load() {
			http.Error(w, "unhealthy", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if time.Now().Before(readyAt) {
			http.Error(w, "not yet", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, r.FormValue("m")) })
	mux.HandleFunc("GET /env", func(w http.ResponseWriter, _ *http.Request) {
		all := os.Environ()
		slices.Sort(all)
		fmt.Fprintln(w, strings.Join(all, "\n"))
	})
	mux.HandleFunc("GET /headers", func(w http.ResponseWriter, r *http.Request) { _ = r.Header.Write(w) })
	mux.HandleFunc("/fail", func(w http.ResponseWriter, _ *http.Request) {
		unhealthy.Store(true)
		fmt.Fprintln(w, "unhealthy from now on")
	})
	mux.HandleFunc("/exit", func(_ http.ResponseWriter, r *http.Request) {
		code, err := strconv.Atoi(r.FormValue("code"))
		if err != nil {
			code = 1
		}
		os.Exit(code)
	})
	mux.HandleFunc("/sleep", func(w http.ResponseWriter, r *http.Request) {
		d, err := time.ParseDuration(r.FormValue("d"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		select {
		case <-time.After(d):
			fmt.Fprintln(w, "slept", d)
		case <-r.Context().Done():
		}
	})
	return mux
}

func podName() string {
	name, err := os.Hostname()
	if err != nil {
		name = "web"
	}
	return env("POD_NAME", name)
}

func env(key, otherwise string) string {
	if v := os.Getenv(key); v != "" {
		return v
	}
	return otherwise
}

func duration(key string) (time.Duration, error) {
	v := os.Getenv(key)
	if v == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", key, err)
	}
	return d, nil
}
