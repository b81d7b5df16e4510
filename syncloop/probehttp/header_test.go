package probehttp

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

type pipe func() net.Conn

func (p pipe) Dial(context.Context, string, string) (net.Conn, error) { return p(), nil }

// A header without an end is read only up to the limit: many pods may send one at once, and the
// process serves other hosts too.
func TestEndlessHeader(t *testing.T) {
	for name, says := range map[string]struct{ begin, chunk string }{
		"one line":   {"HTTP/1.1 200 OK\r\nA: ", strings.Repeat("x", 1000)},
		"many lines": {"HTTP/1.1 200 OK\r\n", strings.Repeat("a:\r\n", 250)},
		"many 1xx":   {"", strings.Repeat("HTTP/1.1 103 Early Hints\r\na: b\r\n\r\n", 20)},
	} {
		t.Run(name, func(t *testing.T) {
			var wrote atomic.Int64
			client := Client(pipe(func() net.Conn {
				near, far := net.Pipe()
				go func() {
					defer far.Close()
					if _, err := http.ReadRequest(bufio.NewReader(far)); err != nil {
						return
					}
					for next := says.begin; wrote.Load() < 4<<20; next = says.chunk {
						n, err := io.WriteString(far, next)
						if wrote.Add(int64(n)); err != nil {
							return
						}
					}
				}()
				return near
			}), false)
			resp, err := client.Get("http://10.0.0.5:80/")
			if err == nil {
				resp.Body.Close()
				t.Error("no error")
			}
			if n := wrote.Load(); n > MaxHeader+8<<10 {
				t.Errorf("%d bytes were read, want at most %d", n, MaxHeader)
			}
		})
	}
}

// Headers that a real server may send, by protocol, and headers that are too large.
func TestHeaderSizes(t *testing.T) {
	routes := http.NewServeMux()
	routes.HandleFunc("/usual", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("A", strings.Repeat("x", 16<<10)) })
	routes.HandleFunc("/large", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("A", strings.Repeat("x", 128<<10)) })
	for name, c := range map[string]struct{ tls, h2, h2c bool }{"HTTP/1.1": {}, "HTTP/1.1 over TLS": {tls: true}, "HTTP/2": {tls: true, h2: true}, "HTTP/2 in the clear": {h2c: true}} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewUnstartedServer(routes)
			server.EnableHTTP2 = c.h2
			if c.h2c {
				server.Config.Protocols = new(http.Protocols)
				server.Config.Protocols.SetUnencryptedHTTP2(true)
			}
			if c.tls {
				server.StartTLS()
			} else {
				server.Start()
			}
			defer server.Close()
			var d net.Dialer
			client := Client(dialContext(d.DialContext), c.h2c)
			for path, ok := range map[string]bool{"/usual": true, "/large": false} {
				resp, err := client.Get(server.URL + path)
				if err == nil {
					if c.h2 || c.h2c {
						if resp.ProtoMajor != 2 {
							t.Errorf("%s came by %s", path, resp.Proto)
						}
					}
					resp.Body.Close()
				}
				if (err == nil) != ok {
					t.Errorf("%s: error %v, want one: %v", path, err, !ok)
				}
			}
		})
	}
}

type dialContext func(context.Context, string, string) (net.Conn, error)

func (d dialContext) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return d(ctx, network, address)
}
