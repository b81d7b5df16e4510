package ssh_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/ssh"
	"github.com/bowline-k8s/bowline/host/ssh/sshtest"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// elsewhere is a loopback address that sshd does not treat as loopback.
const elsewhere = "127.0.0.2"

// freeAddress is an address on which no process listens now.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", elsewhere+":0")
	testutil.Must(t, err)
	defer l.Close()
	return l.Addr().String()
}

// patiently is a context for a call on a very busy host.
func patiently(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// exposed listens on an address. It tries another one if a process has taken the port in the
// meantime, also on another address that sshd listens on.
func exposed(t *testing.T, h *ssh.Host) (l net.Listener, address string) {
	t.Helper()
	for try := 0; ; try++ {
		address = freeAddress(t)
		l, err := h.Expose(patiently(t), address)
		if err == nil {
			return l, address
		}
		if !errors.As(err, new(*ssh.NotExposedError)) || try == 5 {
			t.Fatal(err)
		}
	}
}

// comes returns nil if a connection to the address from the host reaches l.
func comes(t *testing.T, h *ssh.Host, l net.Listener, address string) error {
	t.Helper()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		io.Copy(c, c)
	}()
	c, err := h.Dial(patiently(t), "tcp", address)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, "knot"); err != nil {
		return err
	}
	_, err = io.ReadFull(c, make([]byte, 4))
	return err
}

// TestExpose: Expose listens for other clients as sshd_config allows, and reports the reason if
// it does not.
func TestExpose(t *testing.T) {
	for _, c := range []struct {
		name   string
		config []string
		listen string // reason of a refusal to listen
		come   string // reason why no client arrives
		fix    string
	}{
		{"as asked", []string{"GatewayPorts clientspecified"}, "", "", ""},
		{"everywhere", []string{"GatewayPorts yes"}, "", "", ""},
		{"by default", nil, "", ssh.LoopbackOnly, "GatewayPorts clientspecified"},
		{"forbidden", []string{"GatewayPorts clientspecified", "AllowTcpForwarding local"}, ssh.Forbidden, "", "AllowTcpForwarding yes"},
		{"another port", []string{"GatewayPorts clientspecified", "PermitListen 127.0.0.2:1"}, ssh.Forbidden, "", "PermitListen"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := login(t, sshtest.Run(t, c.config...))
			var not *ssh.NotExposedError
			if c.listen != "" {
				_, err := h.Expose(patiently(t), freeAddress(t))
				if !errors.As(err, &not) || not.Reason != c.listen || !strings.Contains(hint.Of(err), c.fix) || errors.Is(err, host.ErrUnreachable) {
					t.Errorf("got %v", err)
				}
				return
			}
			l, address := exposed(t, h)
			err := comes(t, h, l, address)
			if c.come != "" {
				if err := ssh.NotListened(address, err); !errors.As(err, &not) || not.Reason != c.come || !strings.Contains(hint.Of(err), c.fix) {
					t.Errorf("got %v", err)
				}
			} else {
				if err != nil {
					t.Errorf("no one comes: %v", err)
				}
				_, err := h.Expose(patiently(t), address)
				if !errors.As(err, &not) || not.Reason != ssh.PortTaken || !strings.Contains(hint.Of(err), "ss -tlnp") {
					t.Errorf("a second time: %v", err)
				}
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
			if _, err := l.Accept(); err != net.ErrClosed {
				t.Errorf("Accept after Close: %v", err)
			}
			// The port is free, and the existing connection works again.
			testutil.Eventually(t, "it listens again", func() bool {
				l, err := h.Expose(patiently(t), address)
				if err == nil {
					err = l.Close()
				}
				return err == nil
			})
		})
	}
}

// TestReconnectExposure: the next connection uses sshd's current configuration.
func TestReconnectExposure(t *testing.T) {
	h := login(t, sshtest.Run(t, "GatewayPorts clientspecified"))
	l, address := exposed(t, h)
	h.ReconnectExposure()
	if _, err := l.Accept(); !errors.Is(err, host.ErrUnreachable) && err != net.ErrClosed {
		t.Errorf("Accept after the end of its connection: %v", err)
	}
	l.Close()
	testutil.Eventually(t, "it listens by another connection", func() bool {
		l, err := h.Expose(patiently(t), address)
		if err == nil {
			err = comes(t, h, l, address)
			l.Close()
		}
		return err == nil
	})
}

// paused holds the connections of a process that is stopped: the host receives nothing from it,
// not even the end of the connections.
type paused struct {
	stopped atomic.Bool
	mu      sync.Mutex
	conns   []net.Conn
}

func (p *paused) dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = append(p.conns, c)
	return &pausedConn{Conn: c, by: p, closed: make(chan struct{})}, nil
}

func (p *paused) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
	}
}

type pausedConn struct {
	net.Conn
	by     *paused
	closed chan struct{}
	once   sync.Once
}

func (c *pausedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.by.stopped.Load() {
		<-c.closed
		return 0, net.ErrClosed
	}
	return n, err
}

func (c *pausedConn) Write(b []byte) (int, error) {
	if c.by.stopped.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *pausedConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	if c.by.stopped.Load() {
		return nil
	}
	return c.Conn.Close()
}

// TestExposeIsPurged: a process that takes the lock also takes the port, from a process that
// does nothing.
func TestExposeIsPurged(t *testing.T) {
	server := sshtest.Run(t, "GatewayPorts clientspecified")
	ctx := patiently(t)
	process := &paused{}
	t.Cleanup(process.end) // after its link has closed
	one, two := loginBy(t, server, process.dial), login(t, server)
	p := t.TempDir() + "/lock"
	if _, err := one.Lock(ctx, p, []byte("one")); err != nil {
		t.Fatal(err)
	}
	l, address := exposed(t, one)
	testutil.Must(t, comes(t, one, l, address))
	process.stopped.Store(true)
	testutil.Must(t, two.Takeover(ctx, p))
	lock, err := two.Lock(ctx, p, []byte("two"))
	testutil.Must(t, err)
	defer lock.Close()
	var l2 net.Listener
	testutil.Eventually(t, "the next driver listens", func() bool { l2, err = two.Expose(patiently(t), address); return err == nil })
	if err := comes(t, two, l2, address); err != nil {
		t.Errorf("no one comes to the next driver: %v", err)
	}
	l2.Close()
	l.Close()
}
