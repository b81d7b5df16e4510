package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/bowline-k8s/bowline/cluster"
	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/connect"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/relisten"
	"github.com/bowline-k8s/bowline/host/ssh"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/host/ssh/link"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/provider/api"
)

// dialled is a host that supports only Dial.
type dialled struct {
	host.Host
	dial func() (net.Conn, error)
}

func (d dialled) Dial(context.Context, string, string) (net.Conn, error) { return d.dial() }

// TestAnswers: at the host's address this node answers, or another program, or no one; or it is
// unknown.
func TestAnswers(t *testing.T) {
	certificate := func() getCertificate {
		c, err := api.SelfSigned("box-1", []net.IP{net.IPv4(10, 0, 0, 7)})
		testutil.Must(t, err)
		return c
	}
	ours, others := certificate(), certificate()
	shows := func(c getCertificate) func() (net.Conn, error) {
		return func() (net.Conn, error) {
			near, far := net.Pipe()
			go func() {
				defer far.Close()
				_ = tls.Server(far, &tls.Config{GetCertificate: c}).Handshake()
			}()
			return near, nil
		}
	}
	fails := func(err error) func() (net.Conn, error) { return func() (net.Conn, error) { return nil, err } }
	is := func(want error) func(error) bool { return func(err error) bool { return errors.Is(err, want) } }
	reason := func(want string) func(error) bool {
		return func(err error) bool {
			var not *ssh.NotExposedError
			return errors.As(err, &not) && not.Reason == want
		}
	}
	for name, c := range map[string]struct {
		dial func() (net.Conn, error)
		want func(error) bool
	}{
		"us":            {shows(ours), func(err error) bool { return err == nil }},
		"someone else":  {shows(others), reason(ssh.PortTaken)},
		"no one there":  {fails(fmt.Errorf("dial: %w", syscall.ECONNREFUSED)), reason(ssh.LoopbackOnly)},
		"the link went": {fails(host.ErrUnreachable), is(host.ErrUnreachable)},
		"forbidden":     {fails(errors.New("prohibited")), is(relisten.ErrUnknown)},
		"no TLS": {func() (net.Conn, error) {
			near, far := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, far) }()
			go func() { _, _ = far.Write([]byte("220 mail ready, say what you want\r\n")) }()
			return near, nil
		}, reason(ssh.PortTaken)},
		"cut off": {func() (net.Conn, error) {
			near, far := net.Pipe()
			go func() { _, _ = far.Read(make([]byte, 1024)); _ = far.Close() }()
			return near, nil
		}, is(relisten.ErrUnknown)},
		"silence": {func() (net.Conn, error) {
			near, far := net.Pipe()
			go func() {
				for {
					if _, err := far.Read(make([]byte, 1024)); err != nil {
						return
					}
				}
			}()
			return near, nil
		}, is(context.DeadlineExceeded)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				if err := answers(ctx, dialled{dial: c.dial}, "10.0.0.7:10250", ours); !c.want(err) {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}

// TestExposedCondition: the message says what to do, and stays the same during one outage.
func TestExposedCondition(t *testing.T) {
	const at = "10.0.0.7:10250"
	for _, c := range []struct {
		err    error
		status v1.ConditionStatus
		reason string
		words  []string
	}{
		{nil, v1.ConditionTrue, "Listening", []string{at}},
		{fmt.Errorf("box: %w", ssh.NotListened(at, syscall.ECONNREFUSED)), v1.ConditionFalse, ssh.LoopbackOnly, []string{"GatewayPorts clientspecified", "systemctl reload ssh", "pods keep running"}},
		{fmt.Errorf("down for 3 s: %w", host.ErrUnreachable), v1.ConditionFalse, "Unreachable", []string{"the link is down", "pods keep running"}},
		{fmt.Errorf("%w: late", relisten.ErrUnknown), v1.ConditionUnknown, "NotLooked", []string{"late"}},
		{errors.New("odd"), v1.ConditionFalse, "NotListening", []string{"odd"}},
	} {
		got := exposedCondition(at, c.err)
		if got.Type != kubeletExposed || got.Status != c.status || got.Reason != c.reason {
			t.Errorf("%v: %+v", c.err, got)
		}
		for _, w := range c.words {
			if !strings.Contains(got.Message, w) {
				t.Errorf("%q is not in %q", w, got.Message)
			}
		}
	}
	if exposedCondition(at, fmt.Errorf("down for 3 s: %w", host.ErrUnreachable)) != exposedCondition(at, fmt.Errorf("down for 4 s: %w", host.ErrUnreachable)) {
		t.Error("an outage is reported again each time")
	}
	var none *exposure
	none.retry()
	none.drop()
	if none.report() != nil {
		t.Error("a node that is not exposed reports on it")
	}
}

// TestNodeAddress: if the host listens, the node's address is the host's, also in the serving
// certificate: both come from the same list.
func TestNodeAddress(t *testing.T) {
	l, err := link.New(link.Config{Target: &endpoint.Target{Address: "10.0.0.7:22"}})
	testutil.Must(t, err)
	ours := config.Server{Address: "0.0.0.0", PublishedAddress: "192.0.2.1"}
	for name, c := range map[string]struct {
		exposure string
		link     *link.Link
		want     string
	}{
		"remote, by the process": {config.ExposureProcess, l, "192.0.2.1"},
		"remote, by the host":    {config.ExposureHost, l, "10.0.0.7"},
		"local":                  {config.ExposureProcess, nil, "10.0.0.7"},
		"local, all the same":    {config.ExposureHost, nil, "10.0.0.7"},
	} {
		n := &Node{cfg: &config.Host{KubeletExposure: c.exposure, Server: ours}, host: &connect.Host{Link: c.link},
			cluster: &cluster.Connection{Rest: &rest.Config{Host: "https://192.0.2.9:6443"}}}
		ips, err := n.nodeIPs([]string{"10.0.0.7"})
		if err != nil || len(ips) != 1 || ips[0] != c.want {
			t.Errorf("%s: %v, %v", name, ips, err)
			continue
		}
		if a := n.addresses(ips); a[0] != (v1.NodeAddress{Type: v1.NodeInternalIP, Address: c.want}) {
			t.Errorf("%s: the node's addresses are %v", name, a)
		}
	}
}

// TestWhoChoosesTheNodeAddress checks what docs/security.md says about a host that lies about its
// addresses: it chooses the node's address with kubeletExposure host, unless nodeIP pins it, and in
// no other case.
func TestWhoChoosesTheNodeAddress(t *testing.T) {
	l, err := link.New(link.Config{Target: &endpoint.Target{Address: "10.0.0.7:22"}})
	testutil.Must(t, err)
	lie := &host.Facts{Hostname: "198.51.100.66", Addresses: []net.IP{net.ParseIP("198.51.100.66")}}
	for name, c := range map[string]struct{ exposure, nodeIP, want string }{
		"process":                      {config.ExposureProcess, "", "192.0.2.1"},
		"host":                         {config.ExposureHost, "", "198.51.100.66"},
		"host, with nodeIP":            {config.ExposureHost, "10.0.0.7", "10.0.0.7"},
		"process, with nodeIP of pods": {config.ExposureProcess, "10.0.0.7", "192.0.2.1"},
	} {
		n := &Node{name: "n1", cfg: &config.Host{KubeletExposure: c.exposure, NodeIP: c.nodeIP, Server: config.Server{PublishedAddress: "192.0.2.1"}},
			host: &connect.Host{Link: l}, cluster: &cluster.Connection{Rest: &rest.Config{Host: "https://192.0.2.9:6443"}}}
		said, err := hostIPs(n.cfg, lie, nil)
		testutil.Must(t, err)
		ips, err := n.nodeIPs(said)
		testutil.Must(t, err)
		want := []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: c.want}, {Type: v1.NodeHostName, Address: "n1"}}
		if got := n.addresses(ips); !slices.Equal(got, want) {
			t.Errorf("%s: the node's addresses are %v, want %v", name, got, want)
		}
	}
}
