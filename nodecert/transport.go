package nodecert

import (
	"crypto/tls"
	"errors"
	"net/http"
	"sync"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

// transport authenticates with the current certificate. A new certificate gets its own connections.
// The old ones serve their requests and are closed when they are idle, so that no request is
// interrupted.
type transport struct {
	tls     *tls.Config // how to verify the API server; never modified
	dial    func(*http.Transport)
	current func() *tls.Certificate

	mu   sync.Mutex
	cert *tls.Certificate
	http *http.Transport
}

// idleConnection is how long an unused connection stays open.
const idleConnection = 90 * time.Second

// newTransport takes the API server's address and CA from c, but not its credential.
func newTransport(c *rest.Config, current func() *tls.Certificate) (*transport, error) {
	config, err := rest.TLSConfigFor(rest.AnonymousClientConfig(c))
	if err != nil {
		return nil, err
	}
	if config == nil {
		config = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	return &transport{tls: config, current: current, dial: func(t *http.Transport) {
		if c.Dial != nil {
			t.DialContext = c.Dial
		}
		t.Proxy = http.ProxyFromEnvironment
		if c.Proxy != nil {
			t.Proxy = c.Proxy
		}
		t.DisableCompression = c.DisableCompression
	}}, nil
}

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	h, err := t.now()
	if err != nil {
		return nil, err
	}
	return h.RoundTrip(r)
}

// now is the transport of the current certificate.
func (t *transport) now() (*http.Transport, error) {
	cert := t.current()
	if cert == nil {
		return nil, errors.New("the node's certificate has expired and could not be renewed")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cert == cert {
		return t.http, nil
	}
	config := t.tls.Clone()
	config.Certificates = []tls.Certificate{*cert}
	next := &http.Transport{TLSClientConfig: config, TLSHandshakeTimeout: 10 * time.Second, IdleConnTimeout: idleConnection}
	t.dial(next)
	utilnet.SetTransportDefaults(next) // HTTP/2, with pings that detect a dead connection
	if t.http != nil {
		t.http.CloseIdleConnections()
	}
	t.cert, t.http = cert, next
	return next, nil
}

// CloseIdleConnections is called by http.Client.
func (t *transport) CloseIdleConnections() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.http != nil {
		t.http.CloseIdleConnections()
	}
}
