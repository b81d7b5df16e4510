package fleet

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestHealthIsBounded: one address floods the health address with connections, before and after a
// request. Few stay open, and a caller from another address is answered.
func TestHealthIsBounded(t *testing.T) {
	h, err := ListenHealth("127.0.0.1:0", func() error { return nil }, func(context.Context) error { return nil })
	testutil.Must(t, err)
	stop := testutil.Go(t.Context(), h.Run)
	defer func() { testutil.Must(t, stop()) }()
	dial := func(from string) net.Conn {
		d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		c, err := d.DialContext(t.Context(), "tcp", h.listener.Addr().String())
		testutil.Must(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}
	answered := func(c net.Conn) bool {
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := io.WriteString(c, "GET /livez HTTP/1.1\r\nHost: h\r\n\r\n"); err != nil {
			return false
		}
		r, err := http.ReadResponse(bufio.NewReader(c), nil)
		return err == nil && r.StatusCode == http.StatusOK && r.Close
	}
	var all []net.Conn
	for range mostCallers {
		all = append(all, dial("127.0.0.9"))
	}
	quiet := dial("127.0.0.2")
	for range 20 { // few: a connection has five seconds for its request
		all = append(all, dial("127.0.0.9"))
	}
	if !answered(dial("127.0.0.3")) || !answered(quiet) {
		t.Error("a caller from another address was not answered, or its connection stays open")
	}
	open := 0
	for _, c := range all {
		_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
		if _, err := c.Read(make([]byte, 1)); err != nil && !isEOF(err) {
			open++
		}
	}
	if open > mostCallers {
		t.Errorf("%d connections are open, want at most %d", open, mostCallers)
	}
}

func isEOF(err error) bool {
	timeout, ok := err.(net.Error)
	return !ok || !timeout.Timeout()
}

// TestFewAtATime refuses what exceeds the number.
func TestFewAtATime(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	h := fewAtATime(1, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { entered <- struct{}{}; <-leave }))
	ask := func() int {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		return w.Code
	}
	first := make(chan int)
	go func() { first <- ask() }()
	<-entered
	if code := ask(); code != http.StatusServiceUnavailable {
		t.Errorf("a second request: %d", code)
	}
	close(leave)
	if code := <-first; code != http.StatusOK {
		t.Errorf("the first: %d", code)
	}
}
