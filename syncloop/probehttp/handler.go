// Package probehttp has what probes and lifecycle hooks share: port resolution, the HTTP request that
// a kubelet sends, and an HTTP client that connects from the host.
package probehttp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/bowline-k8s/bowline/host"
)

// Version is the Kubernetes release whose behaviour probes and hooks follow; their User-Agent has
// it too.
const Version = "1.37"

// MaxBody is how much of a response is read, in bytes.
const MaxBody = 10 << 10

// MaxHeader is how much of a response's header is read, in bytes. A kubelet reads 10 MiB. As many
// short lines take ten times that in memory, and this process may serve many hosts with unrelated
// pods.
const MaxHeader = 32 << 10

// Dialer opens connections from the host where the pod runs (host.Host).
type Dialer interface {
	Dial(ctx context.Context, network, address string) (net.Conn, error)
}

// Dial opens a connection from the host to address, a host:port. If the host's network refuses it,
// the error has the same text locally and over SSH.
func Dial(ctx context.Context, d Dialer, address string) (net.Conn, error) {
	conn, err := d.Dial(ctx, "tcp", address)
	if err == nil || errors.Is(err, host.ErrUnreachable) {
		return conn, err
	}
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		return nil, op
	}
	for _, answer := range []syscall.Errno{syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.ETIMEDOUT} {
		if to, notIP := netip.ParseAddrPort(address); notIP == nil && errors.Is(err, answer) {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: net.TCPAddrFromAddrPort(to), Err: os.NewSyscallError("connect", answer)}
		}
	}
	return nil, err
}

// Port resolves a port given by number, or by the name of one of c's ports.
func Port(p intstr.IntOrString, c *v1.Container) (int, error) {
	n := p.IntValue()
	if p.Type == intstr.String {
		n = -1
		for _, cp := range c.Ports {
			if cp.Name == p.StrVal {
				n = int(cp.ContainerPort)
				break
			}
		}
		if n < 0 {
			return 0, fmt.Errorf("port %q not found", p.StrVal)
		}
	}
	if n < 1 || n > 65535 {
		return 0, fmt.Errorf("invalid port number: %v", n)
	}
	return n, nil
}

// Request makes the request of an httpGet action; it goes to podIP if the action names no host.
// purpose is the middle of the User-Agent: "probe" or "lifecycle".
func Request(ctx context.Context, a *v1.HTTPGetAction, c *v1.Container, podIP, purpose string) (*http.Request, error) {
	port, err := Port(a.Port, c)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(a.Path)
	if err != nil {
		u = &url.URL{Path: a.Path} // too late to reject it: sent as it is
	}
	u.Scheme = strings.ToLower(string(a.Scheme))
	if u.Scheme == "" {
		u.Scheme = "http"
	}
	host := a.Host
	if host == "" {
		host = podIP
	}
	u.Host = net.JoinHostPort(host, strconv.Itoa(port))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	for _, h := range a.HTTPHeaders {
		req.Header.Add(h.Name, h.Value)
	}
	if _, ok := req.Header["User-Agent"]; !ok {
		req.Header.Set("User-Agent", "kube-"+purpose+"/"+Version)
	}
	if v, ok := req.Header["Accept"]; !ok {
		req.Header.Set("Accept", "*/*")
	} else if v[0] == "" {
		req.Header.Del("Accept") // the action asks for no Accept header
	}
	req.Host = req.Header.Get("Host")
	return req, nil
}

// Client returns a client that connects through dial. It verifies no certificate, reuses no
// connection and uses no proxy. It follows redirects within the first host name only; a redirect to
// another host is returned as the response.
func Client(dial Dialer, h2c bool) *http.Client {
	t := &http.Transport{
		TLSClientConfig:        &tls.Config{InsecureSkipVerify: true}, // like the kubelet: a probe has no name to verify
		TLSHandshakeTimeout:    10 * time.Second,
		DisableKeepAlives:      true,
		DisableCompression:     true,
		ForceAttemptHTTP2:      true,
		MaxResponseHeaderBytes: MaxHeader,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if o, ok := ctx.Value(opened{}).(*Opened); ok && o.address == address {
				if conn := o.take(); conn != nil {
					return conn, nil
				}
			}
			return Dial(ctx, dial, address)
		},
	}
	if h2c {
		t.Protocols = new(http.Protocols)
		t.Protocols.SetUnencryptedHTTP2(true)
	}
	return &http.Client{
		Transport: t,
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if req.URL.Hostname() != via[0].URL.Hostname() {
				return http.ErrUseLastResponse
			}
			if len(via) >= 10 {
				return errors.New("stopped after 10 redirects")
			}
			return nil
		},
	}
}

type opened struct{}

// Opened is a connection that was opened before its request, so that opening it does not count
// towards the request's time.
type Opened struct {
	address string
	conn    chan net.Conn
}

// WithOpened makes conn the first connection to address under the returned context. The caller
// calls Close, which closes conn if no request used it.
func WithOpened(ctx context.Context, address string, conn net.Conn) (context.Context, *Opened) {
	if l, ok := conn.(interface{ SetLinger(sec int) error }); ok {
		_ = l.SetLinger(1) // avoids a minute of TIME-WAIT per probe
	}
	o := &Opened{address: address, conn: make(chan net.Conn, 1)}
	o.conn <- conn
	return context.WithValue(ctx, opened{}, o), o
}

func (o *Opened) take() net.Conn {
	select {
	case c := <-o.conn:
		return c
	default:
		return nil
	}
}

// Close closes the connection if no request took it.
func (o *Opened) Close() {
	if c := o.take(); c != nil {
		c.Close()
	}
}

// Body reads at most MaxBody bytes; a longer body is cut without an error.
func Body(r io.Reader) (string, error) {
	b, err := io.ReadAll(io.LimitReader(r, MaxBody))
	return string(b), err
}

// Address returns the host and port that a request to u connects to.
func Address(u *url.URL) string {
	if u.Port() != "" {
		return u.Host
	}
	if u.Scheme == "https" {
		return net.JoinHostPort(u.Hostname(), "443")
	}
	return net.JoinHostPort(u.Hostname(), "80")
}
