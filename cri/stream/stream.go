// Package stream proxies exec, attach and port-forward between whoever asked
// the node for them (the API server, or a client that speaks to the node) and
// the runtime's streaming server, which is dialled through the machine.
//
// The forms that come in, by Kubernetes 1.37:
//
//   - SPDY, and WebSocket up to v4.channel.k8s.io: passed through byte by byte;
//     runtimes speak both. The API server turns what newer kubectls send into
//     SPDY for nodes that do not declare the feature ExtendWebSocketsToKubelet, as
//     this one does.
//   - WebSocket v5.channel.k8s.io for exec and attach: translated to SPDY here,
//     as runtimes do not speak it.
//   - WebSocket SPDY/3.1+portforward.k8s.io for port-forward: a tunnel, taken
//     off here.
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

// IdleTimeout is how long a stream may carry nothing, the kubelet's
// streamingConnectionIdleTimeout.
const IdleTimeout = 4 * time.Hour

// dialTimeout bounds the way to the runtime's streaming server.
const dialTimeout = 30 * time.Second

// Options of a proxied stream.
type Options struct {
	// What an exec or attach asked for; the translation of WebSocket v5 needs it.
	// All false for a port-forward.
	Stdin, Stdout, Stderr, TTY bool
	// Idle ends a stream that carries nothing for so long; 0 is IdleTimeout.
	Idle time.Duration
}

// Dial opens a connection from the machine; host.Host's.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// Proxy serves the upgrade request req by the streaming server at rawURL, which
// the runtime gave out for it (cri.Client's Exec, Attach or PortForward), until
// either side ends. It answers errors to w itself: 400 where req is no upgrade,
// 502 where the runtime's server does not answer. The URL works once.
func Proxy(w http.ResponseWriter, req *http.Request, rawURL string, dial Dial, opts Options) {
	location, err := url.Parse(rawURL)
	if err != nil || location.Host == "" || location.Scheme != "http" && location.Scheme != "https" {
		// The URL holds a token that lets its holder in; it is not shown.
		fail(w, req, http.StatusBadGateway, fmt.Errorf("the runtime gave a streaming URL that cannot be used"))
		return
	}
	req = withoutCredentials(req)
	req = req.WithContext(withEnds(req.Context()))
	translated := wsstream.IsWebSocketRequestWithStreamCloseProtocol(req)
	transport := newTransport(dial, opts.Idle, location.Scheme == "https", translated, budget.From(req.Context()))
	location = plain(location)
	// Nothing is pooled in it: each connection is taken over by its stream.
	upgrade := proxy.NewUpgradeAwareHandler(location, transport, false, true, responder{})
	upgrade.UseLocationHost = true
	var handler http.Handler = upgrade
	switch {
	case translated:
		handler = translator.NewStreamTranslatorHandler(location, transport, 0, translator.Options{
			Stdin: opts.Stdin, Stdout: opts.Stdout, Stderr: opts.Stderr, Tty: opts.TTY,
		})
	case wsstream.IsWebSocketRequestWithTunnelingProtocol(req):
		handler = translator.NewTunnelingHandler(upgrade)
	}
	handler.ServeHTTP(w, req)
}

// plain is the location as the proxies see it: TLS is spoken below them, as the answer is
// bounded above it.
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

// insecure: a runtime that serves TLS does so on its own machine's loopback with a
// certificate that it made itself; the token in the URL is what counts.
var insecure = &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}}

// bearerProtocol is how a browser carries its token in a WebSocket's handshake.
const bearerProtocol = "base64url.bearer.authorization.k8s.io."

// withoutCredentials takes out of a request what its caller proved itself with:
// it is passed on to the machine, where no credential of the cluster may go.
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

// responder answers what goes wrong before the connection is taken over.
type responder struct{}

func (responder) Error(w http.ResponseWriter, req *http.Request, err error) {
	code := http.StatusBadGateway
	if apierrors.IsBadRequest(err) {
		code = http.StatusBadRequest
	}
	fail(w, req, code, err)
}

func fail(w http.ResponseWriter, req *http.Request, code int, err error) {
	klog.FromContext(req.Context()).Info("Stream not served", "path", req.URL.Path, "code", code, "err", err)
	http.Error(w, err.Error(), code)
}
