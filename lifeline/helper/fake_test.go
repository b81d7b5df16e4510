package helper

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/lifeline/helper/rules"
	"github.com/bowline-k8s/bowline/lifeline/wire"
	"github.com/bowline-k8s/bowline/lifeline/wire/wiretest"
)

func noSessions(ctx context.Context) (wire.Session, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// fakeRules redirect nothing; a test connects to the listeners itself.
type fakeRules struct {
	mu      sync.Mutex
	wanted  rules.Wanted
	applied int
	fails   error // of Apply
	closed  bool
}

func (r *fakeRules) open() (Rules, error) { return r, nil }
func (r *fakeRules) Kind() string         { return "nftables" }

func (r *fakeRules) Apply(w rules.Wanted) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fails != nil {
		return r.fails
	}
	r.wanted = w
	r.applied++
	return nil
}

func (r *fakeRules) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	return nil
}

func (r *fakeRules) now() rules.Wanted {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.wanted
}

func (r *fakeRules) times() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.applied
}

// running is a helper that a test talks to.
type running struct {
	t     *testing.T
	rules *fakeRules
	next  chan wire.Session
	dst   chan netip.AddrPort // the original destination of the next connection
	stop  func() error
}

func start(t *testing.T, change ...func(*Config)) *running {
	r := &running{t: t, rules: &fakeRules{}, next: make(chan wire.Session), dst: make(chan netip.AddrPort, 1)}
	cfg := Config{
		Rules: r.rules.open, Listen: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Stale: time.Minute,
		Sessions: func(ctx context.Context) (wire.Session, error) {
			select {
			case s := <-r.next:
				return s, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		},
		original: func(*net.TCPConn) (netip.AddrPort, error) { return <-r.dst, nil },
	}
	for _, f := range change {
		f(&cfg)
	}
	stop := sync.OnceValue(testutil.Go(t.Context(), func(ctx context.Context) error { return Run(ctx, cfg) }))
	r.stop = stop
	t.Cleanup(func() { testutil.Must(t, stop()) })
	return r
}

// attach gives the helper a session, and a table, and waits until that is in force.
func (r *running) attach(table wire.Table) (exit *wiretest.Session) {
	r.t.Helper()
	helper, exit := wiretest.Pair()
	r.next <- helper
	r.set(exit, table)
	return exit
}

func (r *running) set(exit wire.Session, table wire.Table) {
	r.t.Helper()
	before := r.rules.times()
	testutil.Must(r.t, exit.SetTable(table))
	testutil.Eventually(r.t, "the table is in force", func() bool { return r.rules.times() > before })
}

// dial connects to the listener, as if to dst.
func (r *running) dial(dst netip.AddrPort) *net.TCPConn {
	r.t.Helper()
	r.dst <- dst
	at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), r.rules.now().TCP4)
	c, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(at))
	testutil.Must(r.t, err)
	r.t.Cleanup(func() { c.Close() })
	testutil.Must(r.t, c.SetDeadline(time.Now().Add(30*time.Second)))
	return c
}

// dialUDP connects to the listener for the datagrams for dst.
func (r *running) dialUDP(dst netip.AddrPort) *net.UDPConn {
	r.t.Helper()
	port := r.rules.now().UDP[dst]
	if port == 0 {
		r.t.Fatalf("datagrams for %s are not redirected", dst)
	}
	c, err := net.DialUDP("udp", nil, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(port)})
	testutil.Must(r.t, err)
	r.t.Cleanup(func() { c.Close() })
	testutil.Must(r.t, c.SetDeadline(time.Now().Add(30*time.Second)))
	return c
}

// accept returns the next flow at the exit.
func accept(t *testing.T, exit wire.Session) wire.Stream {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	s, err := exit.Accept(ctx)
	testutil.Must(t, err)
	return s
}

// backend listens on this host, and says its name to each connection.
func backend(t *testing.T, name string) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.Must(t, err)
	testutil.Serve(t, l, func(c net.Conn) {
		_, _ = io.WriteString(c, name)
		_, _ = io.Copy(io.Discard, c)
	})
	return plain(l.Addr())
}

// servedAt is a Service with backends on this host.
func servedAt(p wire.Protocol, at netip.AddrPort, backends ...netip.AddrPort) wire.Service {
	return wire.Service{Protocol: p, Address: at, Backends: backends}
}

// wasReset fails the test unless the connection ends with RST.
func wasReset(t *testing.T, c net.Conn) {
	t.Helper()
	if n, err := c.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("read %d bytes: %v, want a reset", n, err)
	}
}

// says fails the test unless the next bytes of a connection are these.
func says(t *testing.T, c net.Conn, want string) {
	t.Helper()
	b := make([]byte, len(want))
	if n, err := io.ReadFull(c, b); err != nil || string(b) != want {
		t.Errorf("read %q: %v, want %q", b[:n], err, want)
	}
}
