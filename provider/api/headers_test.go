package api

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"runtime/metrics"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// memory is the live heap and the goroutines' stacks in bytes, as of a garbage collection. HeapAlloc
// would include what was allocated after it, which can be as much again on a busy machine.
func memory() int64 {
	runtime.GC()
	runtime.GC()
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(sample)
	return int64(sample[0].Value.Uint64() + sample[1].Value.Uint64())
}

// TestStrangersHeadersAreBounded: strangers that send endless headers to one node and stay connected
// cost the process at most half of the 64 MiB that a hostile host may cost, from one address or from
// many. Without a bound they cost nearly 64 MiB, and the race detector doubles what they cost.
func TestStrangersHeadersAreBounded(t *testing.T) {
	for name, c := range map[string]struct {
		strangers, each int
		from            func(i int) string
	}{
		"much of each":            {16, 1000 << 10, func(int) string { return "127.0.0.9" }},
		"as much as a header may": {60, 60 << 10, func(int) string { return "127.0.0.9" }},
		"from many addresses":     {60, 60 << 10, func(i int) string { return fmt.Sprintf("127.0.1.%d", i+1) }},
	} {
		t.Run(name, func(t *testing.T) {
			_, l := serve(t, &node{pods: []*v1.Pod{webPod()}}, nil)
			request := shortHeaders(c.each)
			var conns []*tls.Conn
			for i := range c.strangers {
				conn := dialFrom(t, c.from(i), l)
				testutil.Must(t, conn.HandshakeContext(t.Context()))
				conns = append(conns, conn)
			}
			before := memory()
			var all sync.WaitGroup
			for _, conn := range conns {
				all.Go(func() {
					_ = conn.SetWriteDeadline(time.Now().Add(5 * time.Second))
					_, _ = conn.Write(request)
				})
			}
			all.Wait()
			// The last writes may still be in flight, so use the maximum of several samples.
			var most int64
			for range 5 {
				most = max(most, memory()-before)
			}
			if most > 32<<20 {
				t.Errorf("%d strangers cost %d MiB, want at most 32", c.strangers, most>>20)
			}
			if r, err := ask(dialFrom(t, "127.0.0.2", l), "/healthz"); err != nil || r.StatusCode != http.StatusOK {
				t.Errorf("a caller meanwhile: %v, %v", r, err)
			}
		})
	}
}

// TestRequestHeaderSizes: the largest request that the API server sends for a caller, and a larger
// one.
func TestRequestHeaderSizes(t *testing.T) {
	_, l := serve(t, &node{pods: []*v1.Pod{webPod()}}, nil)
	for name, c := range map[string]struct {
		header, command int
		want            int
	}{
		"a token and who is impersonated": {16 << 10, 0, http.StatusOK},
		"a long command":                  {4 << 10, 40 << 10, http.StatusOK},
		"too long a header":               {128 << 10, 0, http.StatusRequestHeaderFieldsTooLarge},
		"too long a command":              {0, 128 << 10, http.StatusRequestHeaderFieldsTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			conn := dialFrom(t, "127.0.0.1", l)
			_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
			go fmt.Fprintf(conn, "GET /healthz?command=%s HTTP/1.1\r\nHost: n1\r\nAuthorization: Bearer reader\r\nX-Extra: %s\r\n\r\n",
				strings.Repeat("c", c.command), strings.Repeat("x", c.header))
			status := make([]byte, len("HTTP/1.1 200"))
			if _, err := io.ReadFull(conn, status); err != nil || string(status[9:]) != fmt.Sprint(c.want) {
				t.Errorf("answer %q, %v, want %d", status, err, c.want)
			}
		})
	}
}

// TestHTTP2IsBounded: an HTTP/2 connection has few concurrent requests, each with the header bound,
// because a compressed header is small on the wire and large in memory.
func TestHTTP2IsBounded(t *testing.T) {
	_, l := serve(t, &node{pods: []*v1.Pod{webPod()}}, nil)
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	get := func(size int) (*http.Response, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, "GET", "https://"+l.Addr().String()+"/healthz", nil)
		testutil.Must(t, err)
		req.Header.Set("Authorization", "Bearer reader")
		req.Header.Set("X-Extra", strings.Repeat("x", size))
		r, err := transport.RoundTrip(req)
		if err == nil {
			r.Body.Close()
		}
		return r, err
	}
	if r, err := get(16 << 10); err != nil || r.StatusCode != http.StatusOK || r.ProtoMajor != 2 {
		t.Errorf("16 KiB: %v, %v", r, err)
	}
	if r, err := get(128 << 10); err == nil && r.StatusCode == http.StatusOK {
		t.Error("128 KiB were taken")
	}
	raw, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	testutil.Must(t, err)
	defer raw.Close()
	_ = raw.SetDeadline(time.Now().Add(10 * time.Second))
	_, _ = io.WriteString(raw, http2.ClientPreface)
	framer := http2.NewFramer(raw, raw)
	testutil.Must(t, framer.WriteSettings())
	frame, err := framer.ReadFrame()
	testutil.Must(t, err)
	settings := frame.(*http2.SettingsFrame)
	for id, want := range map[http2.SettingID]uint32{http2.SettingMaxConcurrentStreams: 16, http2.SettingMaxFrameSize: 16 << 10, http2.SettingInitialWindowSize: 64 << 10} {
		if got, ok := settings.Value(id); !ok || got != want {
			t.Errorf("%s is %d, want %d", id, got, want)
		}
	}
}
