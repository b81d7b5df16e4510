package helper

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/lifeline/wire"
)

// TestToExit: a connection arrives at the exit with both addresses, and each direction ends by itself.
func TestToExit(t *testing.T) {
	r := start(t)
	exit := r.attach(clusterTable())
	c := r.dial(web)
	s := accept(t, exit)
	if want := (wire.Flow{Protocol: wire.TCP, Src: plain(c.LocalAddr()), Dst: web}); s.Flow() != want {
		t.Errorf("the exit accepts %v, want %v", s.Flow(), want)
	}
	sent := bytes.Repeat([]byte("0123456789abcdef"), 64*1024) // more than any buffer on the way
	go func() {
		_, _ = c.Write(sent)
		_ = c.CloseWrite()
	}()
	got, err := io.ReadAll(s)
	testutil.Must(t, err)
	if !bytes.Equal(got, sent) {
		t.Errorf("%d bytes arrive of %d, or other ones", len(got), len(sent))
	}
	go func() {
		_, _ = s.Write(sent)
		_ = s.Close()
	}()
	got, err = io.ReadAll(c)
	testutil.Must(t, err)
	if !bytes.Equal(got, sent) {
		t.Errorf("%d bytes come back of %d, or other ones", len(got), len(sent))
	}
}

// TestResets: what ends with a failure on one side ends with one on the other.
func TestResets(t *testing.T) {
	r := start(t)
	exit := r.attach(clusterTable())
	t.Run("the destination refuses", func(t *testing.T) {
		c := r.dial(web)
		accept(t, exit).Reset(wire.Refused)
		wasReset(t, c)
	})
	t.Run("the destination resets", func(t *testing.T) {
		c := r.dial(web)
		s := accept(t, exit)
		_, err := s.Write([]byte("x"))
		testutil.Must(t, err)
		says(t, c, "x")
		s.Reset(wire.Broken)
		wasReset(t, c)
	})
	t.Run("the pod resets", func(t *testing.T) {
		c := r.dial(web)
		s := accept(t, exit)
		testutil.Must(t, c.SetLinger(0))
		testutil.Must(t, c.Close())
		var refused wire.Error
		if _, err := s.Read(make([]byte, 1)); !errors.As(err, &refused) || refused.Refusal != wire.Broken {
			t.Errorf("the exit reads: %v", err)
		}
	})
	t.Run("the destination is this host", func(t *testing.T) {
		wasReset(t, r.dial(netip.MustParseAddrPort("192.168.1.5:22")))
	})
	t.Run("the session ends", func(t *testing.T) {
		c := r.dial(web)
		accept(t, exit)
		exit.Close()
		wasReset(t, c)
		wasReset(t, r.dial(web))
	})
}

// TestReplaced: a new exit replaces the one before, whose flows are reset.
func TestReplaced(t *testing.T) {
	r := start(t)
	first := r.attach(clusterTable())
	old := r.dial(web)
	accept(t, first)
	second := r.attach(clusterTable())
	wasReset(t, old)
	testutil.Receive(t, first.Done(), 30*time.Second, "the first session continues")
	r.dial(web)
	accept(t, second)
}

// TestLocal: a Service with a backend on this host is served there, with and without a session; the next backend
// if one refuses.
func TestLocal(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.Must(t, err)
	testutil.Must(t, closed.Close())
	gone := plain(closed.Addr())
	only := netip.MustParseAddrPort("10.96.0.8:80")
	dead := netip.MustParseAddrPort("10.96.0.9:80")
	r := start(t)
	exit := r.attach(clusterTable(
		wire.Service{Protocol: wire.TCP, Address: web, Backends: []netip.AddrPort{gone, backend(t, "local")}},
		wire.Service{Protocol: wire.TCP, Address: only, LocalOnly: true},
		wire.Service{Protocol: wire.TCP, Address: dead, Backends: []netip.AddrPort{gone}},
	))
	for _, name := range []string{"with a session", "without one"} {
		t.Run(name, func(t *testing.T) {
			for range 2 {
				says(t, r.dial(web), "local")
			}
			wasReset(t, r.dial(only))
			wasReset(t, r.dial(dead))
		})
		exit.Close()
	}
}

// TestLocalCopies: between two connections of this host, half-close and resets are carried as well.
func TestLocalCopies(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.Must(t, err)
	accepted := make(chan *net.TCPConn)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c.(*net.TCPConn)
		}
	}()
	t.Cleanup(func() { l.Close() })
	r := start(t)
	r.attach(clusterTable(servedAt(wire.TCP, web, plain(l.Addr()))))
	c := r.dial(web)
	b := <-accepted
	_, err = c.Write([]byte("question"))
	testutil.Must(t, err)
	testutil.Must(t, c.CloseWrite())
	got, err := io.ReadAll(b)
	testutil.Must(t, err)
	_, err = b.Write([]byte("answer"))
	testutil.Must(t, err)
	testutil.Must(t, b.Close())
	answer, err := io.ReadAll(c)
	if string(got) != "question" || string(answer) != "answer" || err != nil {
		t.Errorf("%q, %q, %v", got, answer, err)
	}
	c = r.dial(web)
	b = <-accepted
	testutil.Must(t, b.SetLinger(0))
	testutil.Must(t, b.Close())
	wasReset(t, c)
}

// TestBound: one connection too many is reset, until another one has ended.
func TestBound(t *testing.T) {
	r := start(t, func(c *Config) { c.MaxFlows = 2 })
	exit := r.attach(clusterTable())
	first := r.dial(web)
	s := accept(t, exit)
	r.dial(web)
	accept(t, exit)
	at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), r.rules.now().TCP4)
	third, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(at))
	testutil.Must(t, err)
	defer third.Close()
	wasReset(t, third)
	testutil.Must(t, first.Close())
	testutil.Must(t, s.Close())
	testutil.Eventually(t, "there is room again", func() bool {
		c, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(at))
		if err != nil {
			return false
		}
		defer c.Close()
		select {
		case r.dst <- web:
		default:
		}
		_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		_, err = c.Read(make([]byte, 1))
		return !errors.Is(err, unix.ECONNRESET)
	})
}

// TestStop: at the end flows are reset, and then the rules are removed.
func TestStop(t *testing.T) {
	r := start(t)
	exit := r.attach(clusterTable(servedAt(wire.TCP, web, backend(t, "local"))))
	served := r.dial(web)
	says(t, served, "local")
	passed := r.dial(netip.MustParseAddrPort("10.96.0.1:443"))
	accept(t, exit)
	testutil.Must(t, r.stop())
	wasReset(t, served)
	wasReset(t, passed)
	testutil.Receive(t, exit.Done(), 30*time.Second, "the session continues")
	if !r.rules.closed {
		t.Error("the rules are still there")
	}
}
