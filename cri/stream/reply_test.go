package stream_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/tools/remotecommand"

	"github.com/bowline-k8s/bowline/cri/stream"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// limit is the budget LineBytes, plus what a buffered reader may have read beyond it.
const limit = 64<<10 + 4<<10

// liar is a streaming server that writes begin, and then chunk forever.
type liar struct {
	begin, chunk string
	certificate  *tls.Certificate // nil means plain HTTP
	wrote        atomic.Int64     // bytes that its client has read
}

func (l *liar) dial(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	go func() {
		defer far.Close()
		var c net.Conn = far
		if l.certificate != nil {
			c = tls.Server(far, &tls.Config{Certificates: []tls.Certificate{*l.certificate}})
		}
		if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
			return
		}
		go func() { _, _ = io.Copy(io.Discard, c) }() // read what TLS sends when it closes
		for next := l.begin; l.wrote.Load() < 4<<20; next = l.chunk {
			n, err := io.WriteString(c, next)
			l.wrote.Add(int64(n))
			if err != nil {
				return
			}
		}
	}()
	return near, nil
}

// upgrades are the kinds of upgrade request to the runtime's streaming server.
var upgrades = map[string]http.Header{
	"SPDY":             {"Connection": {"Upgrade"}, "Upgrade": {"SPDY/3.1"}},
	"WebSocket v4":     {"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Protocol": {"v4.channel.k8s.io"}},
	"WebSocket tunnel": {"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Protocol": {"SPDY/3.1+portforward.k8s.io"}},
}

// What a runtime's streaming server sends before the stream begins is limited, for each kind of
// request. A host that sends more has exceeded its budget.
func TestEndlessHeader(t *testing.T) {
	server := httptest.NewUnstartedServer(nil)
	server.StartTLS()
	certificate := &server.TLS.Certificates[0]
	server.Close()
	for name, says := range map[string]struct{ begin, chunk string }{
		"a status line":    {begin: "HTTP/1.1 101 ", chunk: strings.Repeat("x", 1000)},
		"a header line":    {begin: "HTTP/1.1 101 Switching Protocols\r\nA: ", chunk: strings.Repeat("x", 1000)},
		"headers":          {begin: "HTTP/1.1 101 Switching Protocols\r\n", chunk: strings.Repeat("a:\r\n", 250)},
		"continued header": {begin: "HTTP/1.1 101 Switching Protocols\r\nA: b\r\n", chunk: strings.Repeat(" \r\n", 300)},
	} {
		for _, scheme := range []string{"http", "https"} {
			for way, header := range upgrades {
				t.Run(name+" by "+scheme+" and "+way, func(t *testing.T) {
					lie := liar{begin: says.begin, chunk: says.chunk}
					if scheme == "https" {
						lie.certificate = certificate
					}
					account := budget.New(budget.Limits{})
					req := httptest.NewRequest("GET", "/", nil).WithContext(budget.With(t.Context(), account))
					req.Header = header.Clone()
					w := httptest.NewRecorder()
					stream.Proxy(w, req, scheme+"://127.0.0.1:1/exec/x", lie.dial, stream.Options{})
					if w.Code != http.StatusBadGateway || !strings.Contains(w.Body.String(), "LineBytes") {
						t.Errorf("status %d (%.200s), want 502 and the budget", w.Code, w.Body)
					}
					if n := lie.wrote.Load(); n > limit {
						t.Errorf("%d bytes were read, want at most %d", n, limit)
					}
					if e := (*budget.ExceededError)(nil); !errors.As(account.Err(), &e) || e.Kind != budget.LineBytes {
						t.Errorf("the host has exceeded %v, want LineBytes", account.Err())
					}
				})
			}
			t.Run(name+" by "+scheme+" and WebSocket v5", func(t *testing.T) {
				lie := liar{begin: says.begin, chunk: says.chunk}
				if scheme == "https" {
					lie.certificate = certificate
				}
				account := budget.New(budget.Limits{})
				err := execTo(t, account, scheme, &lie)
				if err == nil || !strings.Contains(err.Error(), "LineBytes") {
					t.Errorf("error %.200v, want the budget", err)
				}
				if n := lie.wrote.Load(); n > limit {
					t.Errorf("%d bytes were read, want at most %d", n, limit)
				}
				if account.Err() == nil {
					t.Error("the host has exceeded nothing, want LineBytes")
				}
			})
		}
	}
}

// execTo runs an exec by WebSocket v5 against a lying streaming server.
func execTo(t *testing.T, account *budget.Account, scheme string, lie *liar) error {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		req = req.WithContext(budget.With(req.Context(), account))
		stream.Proxy(w, req, scheme+"://127.0.0.1:1/exec/x", lie.dial, stream.Options{Stdout: true})
	}))
	defer server.Close()
	u, err := url.Parse(server.URL)
	testutil.Must(t, err)
	var out bytes.Buffer
	return executors["websocket v5"](t, u).StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: &out})
}

// A refusal of any length is read up to the limit, and does not exceed the host's budget: a runtime
// may quote a pod's output in it.
func TestEndlessRefusal(t *testing.T) {
	lie := func() *liar {
		return &liar{begin: "HTTP/1.1 500 Internal Server Error\r\n\r\n", chunk: strings.Repeat("x", 1000)}
	}
	t.Run("WebSocket v5", func(t *testing.T) {
		account, lie := budget.New(budget.Limits{}), lie()
		if err := execTo(t, account, "http", lie); err == nil {
			t.Error("no error")
		}
		if n := lie.wrote.Load(); n > limit {
			t.Errorf("%d bytes were read, want at most %d", n, limit)
		}
		if err := account.Err(); err != nil {
			t.Errorf("the host has exceeded %v", err)
		}
	})
	t.Run("SPDY", func(t *testing.T) {
		lie := lie()
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			stream.Proxy(w, req, "http://127.0.0.1:1/exec/x", lie.dial, stream.Options{})
		}))
		defer server.Close()
		req, err := http.NewRequestWithContext(t.Context(), "POST", server.URL, nil)
		testutil.Must(t, err)
		req.Header = upgrades["SPDY"].Clone()
		resp, err := http.DefaultClient.Do(req)
		testutil.Must(t, err)
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusInternalServerError {
			t.Errorf("status %d, want the runtime's 500", resp.StatusCode)
		}
		body, _ := io.ReadAll(resp.Body)
		if n := lie.wrote.Load(); n > limit || len(body) == 0 {
			t.Errorf("%d bytes were read and %d shown, want some and at most %d", n, len(body), limit)
		}
	})
}

// After the header, a stream may carry any amount.
func TestReplyLimitEndsWithTheHeader(t *testing.T) {
	for name, begin := range map[string]string{
		"CRLF": "HTTP/1.1 101 Switching Protocols\r\nUpgrade: SPDY/3.1\r\n\r\n", "LF": "HTTP/1.1 101 OK\nA: b\n\n",
	} {
		t.Run(name, func(t *testing.T) {
			near, far := net.Pipe()
			defer far.Close()
			go func() {
				// Single bytes first, then much at once.
				for i := range begin {
					_, _ = io.WriteString(far, begin[i:i+1])
				}
				_, _ = io.WriteString(far, strings.Repeat("x", 1<<20))
				far.Close()
			}()
			all, err := io.ReadAll(stream.NewReplyConn(near, nil, false))
			if err != nil || len(all) != len(begin)+1<<20 {
				t.Errorf("%d bytes, %v; want %d", len(all), err, len(begin)+1<<20)
			}
		})
	}
}

// A server that does not answer in time is given up, even if it slowly sends something.
func TestReplyTimeout(t *testing.T) {
	for name, c := range map[string]struct{ says string }{"silent": {""}, "slow": {"HTTP/1.1 101 Switching Protocols\r\nA: " + strings.Repeat("x", 1000)}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				near, far := net.Pipe()
				defer far.Close()
				go func() {
					for i := range c.says {
						time.Sleep(time.Second)
						if _, err := io.WriteString(far, c.says[i:i+1]); err != nil {
							return
						}
					}
				}()
				start := time.Now()
				_, err := io.ReadAll(stream.NewReplyConn(near, nil, false))
				if err == nil || !strings.Contains(err.Error(), "30s") {
					t.Errorf("error %v, want the time that it had", err)
				}
				if took := time.Since(start); took != 30*time.Second {
					t.Errorf("left after %v, want 30s", took)
				}
				time.Sleep(2 * time.Second) // until the writer notices
			})
		})
	}
	t.Run("answered", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			near, far := net.Pipe()
			defer far.Close()
			go func() { _, _ = io.WriteString(far, "HTTP/1.1 101 Switching Protocols\r\n\r\n") }()
			c := stream.NewReplyConn(near, nil, false)
			if _, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil {
				t.Fatal(err)
			}
			go func() { time.Sleep(time.Hour); _, _ = io.WriteString(far, "x") }()
			if _, err := c.Read(make([]byte, 1)); err != nil {
				t.Errorf("an hour after the answer: %v", err)
			}
		})
	})
}
