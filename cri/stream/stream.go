// Package stream proxies exec, attach and port-forward between the client that asks the node for
// them (the API server, or a client that connects to the node) and the runtime's streaming server,
// which it dials through the host.
//
// It handles these kinds of request, as of Kubernetes 1.37:
//
//   - SPDY, and WebSocket up to v4.channel.k8s.io: passed through byte by byte, as runtimes speak
//     both. An API server that does not know the feature ExtendWebSocketsToKubelet, or whose node does
//     not declare it, converts what newer kubectls send to SPDY.
//   - WebSocket v5.channel.k8s.io for exec and attach: translated to SPDY here, as runtimes do not
//     speak it.
//   - WebSocket SPDY/3.1+portforward.k8s.io for port-forward: a tunnel that ends here.
package stream

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/proxy"
	translator "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/bowline-k8s/bowline/host/budget"
)

// IdleTimeout is how long a stream may be idle: the kubelet's streamingConnectionIdleTimeout.
const IdleTimeout = 4 * time.Hour

// dialTimeout limits the connection to the runtime's streaming server.
const dialTimeout = 30 * time.Second

// Options configures a proxied stream.
type Options struct {
	// The streams that an exec or attach requests, for the translation of WebSocket v5. All are
	// false for a port-forward.
	Stdin, Stdout, Stderr, TTY bool
	// Untranslated passes WebSocket v5 and tunnels through as well; runtimes refuse both.
	Untranslated bool
	// Idle is how long the stream may be idle; 0 means IdleTimeout.
	Idle time.Duration
}

// Dial opens a connection from the host; host.Host implements it.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// Proxy serves the upgrade request req through the streaming server at rawURL, until either side
// ends. The runtime has returned rawURL for this request (cri.Client's Exec, Attach or
// PortForward); it works once. Proxy writes errors to w itself: 400 if req is not an upgrade, 502
// if the runtime's server does not answer.
func Proxy(w http.ResponseWriter, req *http.Request, rawURL string, dial Dial, opts Options) {
	location, err := url.Parse(rawURL)
	if err != nil || location.Host == "" || location.Scheme != "http" && location.Scheme != "https" {
		// The URL contains an access token: do not show it.
		fail(w, req, http.StatusBadGateway, fmt.Errorf("the runtime gave a streaming URL that cannot be used"))
		return
	}
	req = withoutCredentials(req)
	req = req.WithContext(withEnds(req.Context()))
	translated := !opts.Untranslated && wsstream.IsWebSocketRequestWithStreamCloseProtocol(req)
	transport := newTransport(dial, opts.Idle, location.Scheme == "https", translated, budget.From(req.Context()))
	location = plain(location)
	// The transport pools nothing: each connection is hijacked by its stream.
	upgrade := proxy.NewUpgradeAwareHandler(location, transport, false, true, responder{})
	upgrade.UseLocationHost = true
	var handler http.Handler = upgrade
	switch {
	case translated:
		handler = translator.NewStreamTranslatorHandler(location, transport, 0, translator.Options{
			Stdin: opts.Stdin, Stdout: opts.Stdout, Stderr: opts.Stderr, Tty: opts.TTY,
		})
	case !opts.Untranslated && wsstream.IsWebSocketRequestWithTunnelingProtocol(req):
		handler = translator.NewTunnelingHandler(upgrade)
	}
	handler.ServeHTTP(w, req)
}

// plain returns the location for the proxies, with scheme http: TLS is handled below them, because
// replyConn must see the decrypted answer.
func plain(location *url.URL) *url.URL {
	u := *location
	if u.Scheme == "https" && u.Port() == "" {
		u.Host = net.JoinHostPort(u.Hostname(), "443")
	}
	u.Scheme = "http"
	return &u
}

func newTransport(dial Dial, idle time.Duration, overTLS, decoded bool, account *budget.Account) *http.Transport {
	if idle <= 0 {
		idle = IdleTimeout
	}
	return &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, dialTimeout)
			defer cancel()
			c, err := dial(ctx, network, address)
			if err != nil {
				return nil, fmt.Errorf("dial the runtime's streaming server: %w", err)
			}
			c = newIdleConn(c, idle)
			if overTLS {
				secure := tls.Client(c, insecure)
				if err := secure.HandshakeContext(ctx); err != nil {
					_ = c.Close()
					return nil, fmt.Errorf("dial the runtime's streaming server: %w", err)
				}
				c = secure
			}
			return newReplyConn(c, account, decoded), nil
		},
	}
}

// insecure accepts any certificate: a runtime that serves TLS does so on its host's loopback with a
// self-made certificate. The token in the URL is what protects it.
var insecure = &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}}

// bearerProtocol is the prefix with which a browser sends its token in a WebSocket handshake.
const bearerProtocol = "base64url.bearer.authorization.k8s.io."

// withoutCredentials removes the caller's credentials from a request: the request goes to the host,
// which must not receive credentials of the cluster.
func withoutCredentials(req *http.Request) *http.Request {
	req = req.Clone(req.Context())
	for name := range req.Header {
		if name == "Authorization" || name == "Cookie" || strings.HasPrefix(name, "X-Remote-") || strings.HasPrefix(name, "Impersonate-") {
			delete(req.Header, name)
		}
	}
	if offered := req.Header.Values(wsstream.WebSocketProtocolHeader); len(offered) > 0 {
		var kept []string
		for _, p := range strings.Split(strings.Join(offered, ","), ",") {
			if p = strings.TrimSpace(p); p != "" && !strings.HasPrefix(p, bearerProtocol) {
				kept = append(kept, p)
			}
		}
		req.Header.Set(wsstream.WebSocketProtocolHeader, strings.Join(kept, ", "))
	}
	return req
}

// responder reports errors that occur before the connection is hijacked.
type responder struct{}

func (responder) Error(w http.ResponseWriter, req *http.Request, err error) {
	code := http.StatusBadGateway
	if apierrors.IsBadRequest(err) {
		code = http.StatusBadRequest
	}
	fail(w, req, code, err)
}

func fail(w http.ResponseWriter, req *http.Request, code int, err error) {
	klog.FromContext(req.Context()).Error(err, "Failed to serve the stream", "path", req.URL.Path, "code", code)
	http.Error(w, err.Error(), code)
}
