package registry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/bowline-k8s/bowline/linkpull/oci"
)

// The limits of a request.
const (
	dialTime     = 10 * time.Second // to resolve and connect, for each address
	handshake    = 10 * time.Second // of TLS
	firstByte    = 30 * time.Second // from the request to the headers of its response
	documentTime = time.Minute      // for a whole document, with redirects
	stallTime    = time.Minute      // without a byte of a layer
	maxRedirects = 5
	maxHeaders   = 64 << 10 // bytes of a response's headers
	maxToken     = 64 << 10 // bytes of a token server's answer
	maxSaid      = 256      // bytes of a registry's message in an error
)

// DefaultMaxImage is the largest image that is pulled, in bytes, unless Config says otherwise.
const DefaultMaxImage = 32 << 30

// Config configures a Client.
type Config struct {
	Policy Policy
	Roots  *x509.CertPool // required; see Roots
	// PlainHTTP are registries, as they are written in an image's name (with the port), that are reached
	// without TLS.
	PlainHTTP []string
	// MaxImage is in bytes, and DefaultMaxImage by default.
	MaxImage int64
	// Pause is the first pause before a failed request is repeated, 500 ms by default; each later one is twice
	// as long.
	Pause time.Duration
}

// Client reads from registries. It is safe for concurrent use, and starts nothing by itself.
type Client struct {
	config Config
	http   *http.Client
}

// New returns a Client.
func New(c Config) (*Client, error) {
	if c.Roots == nil {
		return nil, errors.New("registry: Config.Roots is required")
	}
	if c.MaxImage < 0 || c.Pause < 0 {
		return nil, fmt.Errorf("registry: Config.MaxImage is %d and Pause %v; they must not be negative", c.MaxImage,
			c.Pause)
	}
	if c.MaxImage == 0 {
		c.MaxImage = DefaultMaxImage
	}
	if c.Pause == 0 {
		c.Pause = 500 * time.Millisecond
	}
	dialer := &net.Dialer{Timeout: dialTime, ControlContext: c.Policy.control}
	client := &Client{config: c}
	client.http = &http.Client{
		CheckRedirect: client.redirect,
		Transport: &http.Transport{
			DialContext:            dialer.DialContext,
			TLSClientConfig:        &tls.Config{RootCAs: c.Roots, MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout:    handshake,
			ResponseHeaderTimeout:  firstByte,
			MaxResponseHeaderBytes: maxHeaders,
			MaxIdleConns:           32,
			MaxIdleConnsPerHost:    4,
			IdleConnTimeout:        30 * time.Second,
			// A layer is stored as it comes: its digest is that of the compressed bytes.
			DisableCompression: true,
		},
	}
	return client, nil
}

// Close closes connections that are not in use.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// control checks an address at the last moment, when it is known what a name has been resolved to.
func (p Policy) control(_ context.Context, _, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%s: %w", address, ErrForbidden)
	}
	return p.Check(to)
}

// errRedirect means that a redirect is not followed.
var errRedirect = errors.New("redirects too often, or to another scheme than https")

// redirect decides about a redirect. Credentials are for the registry, and not for where it sends its clients.
func (c *Client) redirect(to *http.Request, via []*http.Request) error {
	if len(via) > maxRedirects || to.URL.Scheme != "https" && (to.URL.Scheme != "http" ||
		via[0].URL.Scheme != "http") {
		return errRedirect
	}
	if to.URL.Host != via[0].URL.Host {
		to.Header.Del("Authorization")
	}
	return nil
}

// base returns the address of a registry, which is its name in an image.
func (c *Client) base(registry string) string {
	scheme := "https"
	if slices.Contains(c.config.PlainHTTP, registry) {
		scheme = "http"
	}
	if registry == "docker.io" {
		registry = "registry-1.docker.io"
	}
	return scheme + "://" + registry
}

// retry calls do until it succeeds or fails for good, at most three times.
func (c *Client) retry(ctx context.Context, do func() error) error {
	pause := c.config.Pause
	for attempt := 1; ; attempt++ {
		err := do()
		var e *Error
		if err == nil || attempt == 3 || !errors.As(err, &e) || !e.Temporary() || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
			pause *= 2
		}
	}
}

// failed makes an Error of a request without a response, or of a body that broke off.
func failed(what string, err error) *Error {
	kind := Unavailable
	var cert *tls.CertificateVerificationError
	switch {
	case errors.Is(err, ErrForbidden), errors.Is(err, errRedirect):
		kind = Refused
	case errors.As(err, &cert), errors.Is(err, oci.ErrTooLarge):
		kind = Malformed
	}
	return &Error{Kind: kind, What: what, Err: err}
}
