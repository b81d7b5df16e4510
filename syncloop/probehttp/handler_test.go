package probehttp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/bowline-k8s/bowline/host"
)

func TestPort(t *testing.T) {
	c := &v1.Container{Ports: []v1.ContainerPort{{Name: "web", ContainerPort: 8080}, {Name: "zero"}}}
	for _, ok := range []struct {
		in   intstr.IntOrString
		want int
	}{{intstr.FromInt32(80), 80}, {intstr.FromString("web"), 8080}} {
		if got, err := Port(ok.in, c); err != nil || got != ok.want {
			t.Errorf("%v: %d, %v", ok.in, got, err)
		}
	}
	for in, want := range map[intstr.IntOrString]string{
		intstr.FromString("none"): `port "none" not found`,
		intstr.FromString("zero"): "invalid port number: 0",
		intstr.FromString("80"):   `port "80" not found`, // a name, although it looks like a number
		intstr.FromInt32(65536):   "invalid port number: 65536",
	} {
		if got, err := Port(in, c); err == nil || err.Error() != want {
			t.Errorf("%v: %d, %v", in, got, err)
		}
	}
}

func TestRequestURLs(t *testing.T) {
	for _, c := range []struct {
		a       v1.HTTPGetAction
		ip      string
		url     string
		address string
	}{
		{v1.HTTPGetAction{Path: "/a?b=c#d"}, "10.0.0.5", "http://10.0.0.5:80/a?b=c#d", "10.0.0.5:80"},
		{v1.HTTPGetAction{}, "2001:db8::5", "http://[2001:db8::5]:80", "[2001:db8::5]:80"},
		{v1.HTTPGetAction{Host: "example.com", Scheme: "HTTPS", Path: "a"}, "10.0.0.5", "https://example.com:80/a", "example.com:80"},
		{v1.HTTPGetAction{Path: "/%zz"}, "10.0.0.5", "http://10.0.0.5:80/%25zz", "10.0.0.5:80"},
	} {
		c.a.Port = intstr.FromInt32(80)
		req, err := Request(t.Context(), &c.a, &v1.Container{}, c.ip, "probe")
		if err != nil || req.URL.String() != c.url || Address(req.URL) != c.address {
			t.Errorf("%+v: %v, %v", c.a, req, err)
		}
	}
}

func TestUnusedConnectionIsClosed(t *testing.T) {
	a, b := net.Pipe()
	_, o := WithOpened(t.Context(), "x:1", a)
	o.Close()
	o.Close()
	if _, err := b.Read(make([]byte, 1)); err == nil {
		t.Error("still open")
	}
}

type dialer func() error

func (d dialer) Dial(context.Context, string, string) (net.Conn, error) { return nil, d() }

// A failed probe on a remote host has the same error text as on a local one. Errors that do not
// come from the host's network stay as they are.
func TestDialSaysWhatAKubeletSays(t *testing.T) {
	near := &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 5), Port: 81}, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	lost := fmt.Errorf("dial tcp 10.0.0.5:81 at box:22: %w: %w", host.ErrUnreachable, syscall.ETIMEDOUT)
	for address, c := range map[string]struct {
		err  error
		want string
	}{
		"10.0.0.5:81":    {fmt.Errorf("box: %w", near), "dial tcp 10.0.0.5:81: connect: connection refused"},
		"10.0.0.5:82":    {fmt.Errorf("box: dial tcp 10.0.0.5:82 at box:22: %w", syscall.ECONNREFUSED), "dial tcp 10.0.0.5:82: connect: connection refused"},
		"[fd00::1]:83":   {fmt.Errorf("box: dial: %w", syscall.EHOSTUNREACH), "dial tcp [fd00::1]:83: connect: no route to host"},
		"example.com:81": {fmt.Errorf("box: dial: %w", syscall.ECONNREFUSED), "box: dial: connection refused"},
		"10.0.0.5:84":    {lost, lost.Error()},
		"10.0.0.5:85":    {errors.New("box: forbidden"), "box: forbidden"},
	} {
		_, err := Dial(t.Context(), dialer(func() error { return c.err }), address)
		if err == nil || err.Error() != c.want || errors.Is(err, host.ErrUnreachable) != errors.Is(c.err, host.ErrUnreachable) {
			t.Errorf("%s: %v, want %s", address, err, c.want)
		}
	}
}
