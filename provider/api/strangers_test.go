package api

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// process runs the servers of n nodes in one process.
func process(t *testing.T, n int, change func(*Server)) (listeners []*counted) {
	t.Helper()
	all := NewStrangers()
	for range n {
		_, l := serve(t, &node{pods: []*v1.Pod{webPod()}}, func(s *Server) {
			s.cfg.Strangers = all
			if change != nil {
				change(s)
			}
		})
		listeners = append(listeners, l)
	}
	return listeners
}

// undecided authenticates a caller without the right token when the connection ends, as if the API
// server did not answer.
type undecided struct{ authenticator.Request }

func (u undecided) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	who, ok, err := u.Request.AuthenticateRequest(r)
	if !ok {
		<-r.Context().Done()
	}
	return who, ok, err
}

// shortHeaders is a request that takes much memory for its bytes, and does not end.
func shortHeaders(size int) []byte {
	var request bytes.Buffer
	request.WriteString("GET /pods HTTP/1.1\r\nHost: n1\r\n")
	for i := 0; request.Len() < size; i++ {
		fmt.Fprintf(&request, "%x:\r\n", i)
	}
	return request.Bytes()
}

// compressedRequests are HTTP/2 requests, as many as a connection may have at a time. Each has as
// many headers as it may have, all but the first ones in one byte.
func compressedRequests(t *testing.T) []byte {
	var out, block bytes.Buffer
	out.WriteString(http2.ClientPreface)
	framer, encoder := http2.NewFramer(&out, nil), hpack.NewEncoder(&block)
	testutil.Must(t, framer.WriteSettings())
	for request := range uint32(16) {
		block.Reset()
		fields := []hpack.HeaderField{{Name: ":method", Value: "GET"}, {Name: ":scheme", Value: "https"}, {Name: ":path", Value: "/pods"}, {Name: ":authority", Value: "n1"}}
		for i := range 1800 {
			fields = append(fields, hpack.HeaderField{Name: fmt.Sprintf("k%02d", i%90)})
		}
		for _, f := range fields {
			testutil.Must(t, encoder.WriteField(f))
		}
		testutil.Must(t, framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*request + 1, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true}))
	}
	return out.Bytes()
}

// TestStrangersOfAProcessAreBounded: strangers at many nodes cost their process no more than those
// at one node may, and each node serves its callers meanwhile.
func TestStrangersOfAProcessAreBounded(t *testing.T) {
	const nodes = 16
	for name, c := range map[string]struct {
		each  int // strangers at each node
		proto string
		say   []byte
		from  func(i int) string
	}{
		"headers":                     {8, "http/1.1", shortHeaders(60 << 10), func(int) string { return "127.0.0.9" }},
		"headers from many addresses": {8, "http/1.1", shortHeaders(60 << 10), func(i int) string { return fmt.Sprintf("127.0.1.%d", i%200+1) }},
		"requests of HTTP/2":          {8, "h2", compressedRequests(t), func(int) string { return "127.0.0.9" }},
	} {
		t.Run(name, func(t *testing.T) {
			listeners := process(t, nodes, func(s *Server) { s.cfg.Authenticator = undecided{s.cfg.Authenticator} })
			var conns []*tls.Conn
			for i := range nodes * c.each {
				conn := dialAs(t, c.from(i), listeners[i%nodes], c.proto)
				testutil.Must(t, conn.HandshakeContext(t.Context()))
				conns = append(conns, conn)
			}
			before := memory()
			var all sync.WaitGroup
			for _, conn := range conns {
				all.Go(func() {
					_ = conn.SetWriteDeadline(time.Now().Add(5 * time.Second))
					_, _ = conn.Write(c.say)
				})
			}
			all.Wait()
			// The last writes may still be in flight, so use the maximum of several samples.
			var most int64
			for range 6 {
				most = max(most, memory()-before)
			}
			if most > 64<<20 {
				t.Errorf("%d strangers at %d nodes cost %d MiB, want at most 64", len(conns), nodes, most>>20)
			}
			for i, l := range listeners {
				if r, err := ask(dialFrom(t, "127.0.0.2", l), "/healthz"); err != nil || r.StatusCode != http.StatusOK {
					t.Errorf("a caller of node %d meanwhile: %v, %v", i, r, err)
				}
			}
		})
	}
}

// flood opens n connections from the addresses that from returns, sends the beginning of a long TLS
// record on each, and leaves them open.
func flood(t *testing.T, n int, l net.Listener, from func(i int) net.IP) {
	t.Helper()
	for i := range n {
		d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: from(i)}}
		c, err := d.DialContext(t.Context(), "tcp", l.Addr().String())
		testutil.Must(t, err)
		t.Cleanup(func() { c.Close() })
		_, _ = c.Write(append([]byte("\x16\x03\x01\x40\x00"), make([]byte, 4<<10)...)) // it may be closed
	}
}

func open(listeners []*counted) (n, taken int64) {
	for _, l := range listeners {
		n, taken = n+l.open.Load(), taken+l.taken.Load()
	}
	return n, taken
}

// TestStrangersAtEveryNode: one address opens as many connections to each node as the node keeps.
// The process keeps a part of them, and each node serves its callers from other addresses: one that
// was there first, one that is slow, and a new one.
func TestStrangersAtEveryNode(t *testing.T) {
	const nodes, each, most = 24, 64, 512
	listeners := process(t, nodes, nil)
	var known, slow []*tls.Conn
	for i, l := range listeners {
		c := dialFrom(t, "127.0.0.2", l)
		if r, err := ask(c, "/healthz"); err != nil || r.StatusCode != http.StatusOK {
			t.Fatalf("before the flood, node %d: %v, %v", i, r, err)
		}
		late := dialFrom(t, "127.0.0.3", l)
		testutil.Must(t, late.HandshakeContext(t.Context()))
		known, slow = append(known, c), append(slow, late)
	}
	for _, l := range listeners {
		flood(t, each, l, func(int) net.IP { return net.IPv4(127, 0, 0, 9) })
	}
	testutil.Within(t, 15*time.Second, "the servers have taken the flood", func() bool { _, taken := open(listeners); return taken >= nodes*(each+2) })
	if n, _ := open(listeners); n > most+nodes {
		t.Errorf("%d connections are open, want at most %d strangers and %d known", n, most, nodes)
	}
	for i, l := range listeners {
		for name, c := range map[string]net.Conn{"a known caller": known[i], "one that was slow": slow[i], "a new one": dialFrom(t, "127.0.0.4", l)} {
			if r, err := ask(c, "/healthz"); err != nil || r.StatusCode != http.StatusOK {
				t.Errorf("node %d: %s: %v, %v", i, name, r, err)
			}
		}
	}
}

// TestNodeKeepsItsShare: strangers from many addresses, each with one connection, fill the process
// at some of its nodes. A caller of another node that has not sent its request yet, and one that has
// sent more of it than any of them, stay connected.
func TestNodeKeepsItsShare(t *testing.T) {
	const flooded, each = 16, 40
	listeners := process(t, flooded+1, nil)
	quiet := listeners[flooded]
	var slow []*tls.Conn
	for range 3 {
		c := dialFrom(t, "127.0.0.3", quiet)
		_, err := fmt.Fprintf(c, "GET /healthz HTTP/1.1\r\nX-Extra: %s\r\n", bytes.Repeat([]byte("x"), 12<<10))
		testutil.Must(t, err)
		slow = append(slow, c)
	}
	for at, l := range listeners[:flooded] {
		flood(t, each, l, func(i int) net.IP { return net.IPv4(127, 0, byte(10+at), byte(i+1)) })
	}
	testutil.Within(t, 15*time.Second, "the servers have taken the flood", func() bool { _, taken := open(listeners); return taken >= flooded*each+3 })
	for _, c := range slow {
		if r, err := finish(c); err != nil || r.StatusCode != http.StatusOK {
			t.Errorf("a slow caller of a node without a flood: %v, %v", r, err)
		}
	}
}

// finish ends the request that c has begun.
func finish(c net.Conn) (*http.Response, error) {
	c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(c, "Host: n1\r\nAuthorization: Bearer reader\r\n\r\n"); err != nil {
		return nil, err
	}
	return answer(c)
}

// TestRequestEndsWithItsStranger: a request that is being authenticated ends when its connection is
// closed because it is still a stranger, even if a body is left.
func TestRequestEndsWithItsStranger(t *testing.T) {
	ended := make(chan struct{})
	_, l := serve(t, &node{}, func(s *Server) {
		s.bounds.strange = time.Second
		asked := undecided{s.cfg.Authenticator}
		s.cfg.Authenticator = authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
			defer close(ended)
			return asked.AuthenticateRequest(r)
		})
	})
	c := dialFrom(t, "127.0.0.1", l)
	_, err := io.WriteString(c, "POST /run/shop/web/app HTTP/1.1\r\nHost: n1\r\nContent-Length: 200000\r\n\r\nx")
	testutil.Must(t, err)
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("the request is still being authenticated")
	}
}

// pipes is a listener whose connections are pipes.
type pipes struct {
	net.Listener
	next chan net.Conn
}

func (p *pipes) Accept() (net.Conn, error) { return <-p.next, nil }

// TestStrangersWaitForThoseThatEnd: what a disconnected stranger has sent takes memory until the
// server has closed it and its requests have ended. The others send no more before that, but are
// disconnected in time.
func TestStrangersWaitForThoseThatEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all, at := NewStrangers(), &pipes{next: make(chan net.Conn, 1)}
		all.mostSent, all.mostEnding = 10<<10, 4<<10
		l := newConns(at, defaultBounds, all)
		dial := func() (server *caller, client net.Conn) {
			client, raw := net.Pipe()
			at.next <- raw
			c, err := l.Accept()
			testutil.Must(t, err)
			return c.(*caller), client
		}
		read := func(c *caller, client net.Conn, n int) (done chan error) {
			done = make(chan error, 1)
			go client.Write(make([]byte, n))
			go func() { _, err := io.ReadFull(c, make([]byte, n)); done <- err }()
			synctest.Wait()
			return done
		}
		waits := func(done chan error) bool {
			synctest.Wait()
			return len(done) == 0
		}
		heavy, its := dial()
		if waits(read(heavy, its, 8<<10)) {
			t.Fatal("a stranger that has not sent too much waits")
		}
		request, admitted := admission((&http.Request{}).WithContext(withCaller(t.Context(), heavy)))
		other, others := dial()
		third := read(other, others, 4<<10) // too much together
		if request.Context().Err() == nil || !waits(third) {
			t.Fatalf("the one that has sent the most: %v; the other waits: %t", request.Context().Err(), waits(third))
		}
		heavy.Close()
		if !waits(third) {
			t.Error("the request of the disconnected one has not ended, and the other does not wait")
		}
		admitted()
		if waits(third) {
			t.Error("it has ended, and the other still waits")
		}
		all.mu.Lock()
		all.ending = 1 << 20
		all.mu.Unlock()
		last := read(other, others, 1)
		if !waits(last) {
			t.Error("it does not wait for the others that end")
		}
		time.Sleep(defaultBounds.strange)
		if waits(last) {
			t.Error("it is not disconnected while it waits")
		}
		other.Close()
		all.mu.Lock()
		defer all.mu.Unlock()
		if all.sent != 0 || all.strange != 0 || len(all.nodes)+len(all.from)+len(l.strangers) != 0 || all.ending != 1<<20 || l.open != 0 {
			t.Errorf("something is left: %+v", all)
		}
	})
}
