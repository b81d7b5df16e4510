package api

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// counted counts the connections that the server has open.
type counted struct {
	net.Listener
	open, taken atomic.Int64
}

func (l *counted) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.open.Add(1)
	l.taken.Add(1)
	return &countedConn{Conn: c, of: l}, nil
}

type countedConn struct {
	net.Conn
	of     *counted
	closed atomic.Bool
}

func (c *countedConn) Close() error {
	if c.closed.CompareAndSwap(false, true) {
		c.of.open.Add(-1)
	}
	return c.Conn.Close()
}

// serve runs a server on loopback.
func serve(t *testing.T, n *node, change func(*Server)) (*Server, *counted) {
	t.Helper()
	s := testServer(t, n)
	l := &counted{Listener: s.cfg.Listener}
	s.cfg.Listener = l
	if change != nil {
		change(s)
	}
	stop := testutil.Go(t.Context(), s.Run)
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return s, l
}

// dialFrom opens a TLS connection from the given loopback address.
func dialFrom(t *testing.T, from string, l net.Listener) *tls.Conn {
	t.Helper()
	return dialAs(t, from, l, "http/1.1")
}

// dialAs is dialFrom with another protocol.
func dialAs(t *testing.T, from string, l net.Listener, protocol string) *tls.Conn {
	t.Helper()
	d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 10 * time.Second}
	raw, err := d.DialContext(t.Context(), "tcp", l.Addr().String())
	testutil.Must(t, err)
	c := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocol}})
	t.Cleanup(func() { c.Close() })
	return c
}

func ask(c net.Conn, path string) (*http.Response, error) {
	c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: n1\r\nAuthorization: Bearer reader\r\n\r\n", path); err != nil {
		return nil, err
	}
	return answer(c)
}

func answer(c net.Conn) (*http.Response, error) { return http.ReadResponse(bufio.NewReader(c), nil) }

// drip writes text again and again until a write fails.
func drip(to io.Writer, text string) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for err := error(nil); err == nil; <-tick.C {
		_, err = io.WriteString(to, text)
	}
}

// cutOff waits until the server closes c, and ignores what it sends before.
func cutOff(t *testing.T, c net.Conn, within time.Duration) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(within))
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the server still holds the connection after %s", within)
	}
}

// TestStrangersDoNotTakeTheServer: one address without a credential opens connections by the
// hundred. The server keeps a few of them, and serves callers from other addresses, one that was
// there first and one that comes later.
func TestStrangersDoNotTakeTheServer(t *testing.T) {
	s, l := serve(t, &node{pods: []*v1.Pod{webPod()}}, nil)
	known := dialFrom(t, "127.0.0.2", l)
	if r, err := ask(known, "/healthz"); err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("before the flood: %v, %v", r, err)
	}
	slow := dialFrom(t, "127.0.0.3", l) // has sent nothing yet when the flood comes
	testutil.Must(t, slow.HandshakeContext(t.Context()))
	const flood = 300
	for range flood {
		d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9)}}
		c, err := d.DialContext(t.Context(), "tcp", l.Addr().String())
		testutil.Must(t, err)
		defer c.Close()
	}
	testutil.Within(t, 15*time.Second, "the server has taken the flood", func() bool { return l.taken.Load() >= flood+2 })
	if open, most := l.open.Load(), int64(s.bounds.strangers+1); open > most {
		t.Errorf("%d connections are open, want at most %d", open, most)
	}
	for name, c := range map[string]net.Conn{"a known caller": known, "one that was slow": slow, "a new one": dialFrom(t, "127.0.0.4", l)} {
		if r, err := ask(c, "/healthz"); err != nil || r.StatusCode != http.StatusOK {
			t.Errorf("%s: %v, %v", name, r, err)
		}
	}
}

// TestStrangerIsCutInTime: a connection without a valid credential is closed in time, whatever it
// does.
func TestStrangerIsCutInTime(t *testing.T) {
	for name, say := range map[string]func(t *testing.T, c *tls.Conn){
		"says nothing": func(t *testing.T, c *tls.Conn) { c.HandshakeContext(t.Context()) },
		"begins no TLS": func(_ *testing.T, c *tls.Conn) {
			io.WriteString(c.NetConn(), "\x16\x03\x01")
		},
		"drips headers": func(t *testing.T, c *tls.Conn) {
			io.WriteString(c, "GET /pods HTTP/1.1\r\nHost: n1\r\n")
			go drip(c, "X-A: b\r\n")
		},
		"owes a body": func(_ *testing.T, c *tls.Conn) {
			io.WriteString(c, "POST /run/shop/web/app HTTP/1.1\r\nHost: n1\r\nContent-Length: 200000\r\n\r\nx")
		},
		"owes a body, with a wrong token": func(_ *testing.T, c *tls.Conn) {
			io.WriteString(c, "POST /run/shop/web/app HTTP/1.1\r\nHost: n1\r\nAuthorization: Bearer other\r\nContent-Length: 200000\r\n\r\nx")
		},
		"asks again and again": func(_ *testing.T, c *tls.Conn) {
			go drip(c, "GET /pods HTTP/1.1\r\nHost: n1\r\n\r\n")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, l := serve(t, &node{}, func(s *Server) { s.bounds.strange = time.Second })
			c := dialFrom(t, "127.0.0.1", l)
			say(t, c)
			cutOff(t, c.NetConn(), 8*time.Second)
			testutil.Within(t, 15*time.Second, "the connection is closed", func() bool { return l.open.Load() == 0 })
		})
	}
}

// TestStrangerIsAnsweredOnce: a request without a credential gets one answer; pipelined requests
// are neither handled nor read.
func TestStrangerIsAnsweredOnce(t *testing.T) {
	_, l := serve(t, &node{}, nil)
	c := dialFrom(t, "127.0.0.1", l)
	go io.WriteString(c, strings.Repeat("GET /pods HTTP/1.1\r\nHost: n1\r\n\r\n", 2000))
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	all, err := io.ReadAll(c)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("the server still holds the connection")
	}
	if n := strings.Count(string(all), "401 Unauthorized"); n != 1 {
		t.Errorf("%d answers, want one", n)
	}
}

// TestCallerWhoDoesNotReadIsCut: a known caller that does not read its answer is disconnected.
func TestCallerWhoDoesNotReadIsCut(t *testing.T) {
	n := &node{}
	for range 2000 {
		n.pods = append(n.pods, webPod())
	}
	_, l := serve(t, n, func(s *Server) { s.bounds.answer = time.Second })
	c := dialFrom(t, "127.0.0.1", l)
	c.NetConn().(*net.TCPConn).SetReadBuffer(4096)
	for range 50 {
		io.WriteString(c, "GET /pods HTTP/1.1\r\nHost: n1\r\nAuthorization: Bearer reader\r\n\r\n")
	}
	testutil.Within(t, 15*time.Second, "the connection is closed", func() bool { return l.taken.Load() == 1 && l.open.Load() == 0 })
}

// TestKnownCallersAreNotHurried: a known caller keeps its connection without a limit, and a stream
// has no timeout.
func TestKnownCallersAreNotHurried(t *testing.T) {
	n := &node{pods: []*v1.Pod{webPod()}, container: Container{ID: "c1", LogPath: "/log", Running: true}}
	_, l := serve(t, n, func(s *Server) {
		s.bounds.strange, s.bounds.answer = 300*time.Millisecond, 300*time.Millisecond
		s.cfg.Logs = func(ctx context.Context, _ string, _ *v1.PodLogOptions, _ func(context.Context) (bool, error), stdout, _ io.Writer) error {
			io.WriteString(stdout, "begun\n")
			timer := time.NewTimer(time.Second)
			defer timer.Stop()
			<-timer.C
			io.WriteString(stdout, "ended\n")
			return ctx.Err()
		}
	})
	c := dialFrom(t, "127.0.0.1", l)
	for range 2 {
		r, err := ask(c, "/containerLogs/shop/web/app")
		testutil.Must(t, err)
		all, err := io.ReadAll(r.Body)
		if err != nil || string(all) != "begun\nended\n" {
			t.Fatalf("the log is %q, %v", all, err)
		}
	}
}

// TestConnectionsOfOneNodeAreBounded: above the total, which only known callers can reach, the next
// connection is refused, until another one closes.
func TestConnectionsOfOneNodeAreBounded(t *testing.T) {
	s, l := serve(t, &node{}, func(s *Server) { s.bounds.total, s.bounds.strangers = 8, 4 })
	var conns []net.Conn
	for range s.bounds.total {
		c := dialFrom(t, "127.0.0.1", l)
		if r, err := ask(c, "/healthz"); err != nil || r.StatusCode != http.StatusOK {
			t.Fatalf("%v, %v", r, err)
		}
		conns = append(conns, c)
	}
	if _, err := ask(dialFrom(t, "127.0.0.1", l), "/healthz"); err == nil {
		t.Error("one more than the total was served")
	}
	conns[0].Close()
	testutil.Within(t, 15*time.Second, "there is a place again", func() bool {
		r, err := ask(dialFrom(t, "127.0.0.1", l), "/healthz")
		return err == nil && r.StatusCode == http.StatusOK
	})
}

// TestCurves: a caller without a key exchange that is accepted has no connection.
func TestCurves(t *testing.T) {
	_, l := serve(t, &node{}, func(s *Server) { s.cfg.Curves = []tls.CurveID{tls.X25519} })
	for curve, want := range map[tls.CurveID]bool{tls.X25519: true, tls.CurveP384: false} {
		c, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true, CurvePreferences: []tls.CurveID{curve}})
		if (err == nil) != want {
			t.Errorf("%s: %v", curve, err)
		}
		if err == nil {
			c.Close()
		}
	}
}
