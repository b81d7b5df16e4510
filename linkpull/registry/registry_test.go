package registry_test

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/distribution/reference"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/linkpull/oci"
	"github.com/bowline-k8s/bowline/linkpull/registry"
	"github.com/bowline-k8s/bowline/linkpull/registry/registrytest"
)

var (
	amd64 = oci.Platform{OS: "linux", Architecture: "amd64"}
	good  = &registry.Auth{Username: registrytest.User, Password: registrytest.Password}
	wrong = &registry.Auth{Username: registrytest.User, Password: "other"}
)

func parse(t testing.TB, image string) reference.Named {
	t.Helper()
	ref, err := reference.ParseDockerRef(image)
	testutil.Must(t, err)
	return ref
}

// kind returns the kind of an error of the package; 0 without an error.
func kind(t testing.TB, err error) registry.Kind {
	t.Helper()
	if err == nil {
		return 0
	}
	var e *registry.Error
	if !errors.As(err, &e) {
		t.Fatalf("%v is no *registry.Error", err)
	}
	return e.Kind
}

func TestResolve(t *testing.T) {
	r := registrytest.New(t)
	target, image := r.Push(t, "team/app", "1", true, []byte("one"), []byte("two"))
	single, _ := r.Push(t, "team/app", "single", false, []byte("one"))
	_, _ = r.Push(t, "team/app", "latest", true)
	c := r.Client(t, nil)
	for name, want := range map[string]oci.Digest{
		"team/app:1":                                target.Digest,
		"team/app@" + string(target.Digest):         target.Digest,
		"team/app:any@" + string(target.Digest):     target.Digest,
		"team/app:single":                           single.Digest,
		"team/app@" + string(image.Manifest.Digest): image.Manifest.Digest,
	} {
		got, err := c.Resolve(t.Context(), parse(t, r.Host+"/"+name), amd64, nil)
		testutil.Must(t, err)
		if got.Target.Digest != want {
			t.Errorf("%s is %s, want %s", name, got.Target.Digest, want)
		}
	}
	got, err := c.Resolve(t.Context(), parse(t, r.Host+"/team/app:1"), amd64, nil)
	testutil.Must(t, err)
	if got.ID() != image.ID() || len(got.Layers) != 2 || got.Index == nil {
		t.Errorf("%+v", got.Image)
	}
	if _, err := c.Resolve(t.Context(), parse(t, r.Host+"/team/app"), amd64, nil); err != nil {
		t.Errorf("without a tag: %v", err)
	}
	for name, want := range map[string]registry.Kind{"team/app:2": registry.NotFound, "other:1": registry.NotFound} {
		if _, err := c.Resolve(t.Context(), parse(t, r.Host+"/"+name), amd64, nil); kind(t, err) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err = c.Resolve(t.Context(), parse(t, r.Host+"/team/app:1"), oci.Platform{OS: "linux", Architecture: "s390x"},
		nil)
	if kind(t, err) != registry.Malformed || !errors.Is(err, oci.ErrNoPlatform) {
		t.Error(err)
	}
}

// TestMalformed: documents that are not what their descriptors, or the limits, say.
func TestMalformed(t *testing.T) {
	r := registrytest.New(t)
	target, image := r.Push(t, "app", "1", true, []byte("one"))
	r.SetDocument("app", "large", oci.ManifestType, make([]byte, oci.MaxDocument+1))
	r.SetDocument("app", "html", "text/html", []byte("<html>"))
	r.SetDocument("app", "schema1", "application/vnd.docker.distribution.manifest.v1+json", []byte("{}"))
	r.SetDocument("app", "empty", oci.ManifestType, nil)
	r.SetDocument("app", "nested", oci.IndexType,
		[]byte(fmt.Sprintf(`{"schemaVersion":2,"manifests":[{"mediaType":%q,"digest":%q,"size":%d,
		"platform":{"os":"linux","architecture":"amd64"}}]}`, oci.IndexType, target.Digest, target.Size)))
	c := r.Client(t, nil)
	for tag, want := range map[string]error{"large": oci.ErrTooLarge, "html": oci.ErrUnsupported,
		"schema1": oci.ErrUnsupported,
		"empty":   oci.ErrInvalid, "nested": oci.ErrUnsupported} {
		if _, err := c.Resolve(t.Context(), parse(t, r.Host+"/app:"+tag), amd64, nil); kind(t,
			err) != registry.Malformed || !errors.Is(err, want) {
			t.Errorf("%s: %v", tag, err)
		}
	}
	small := r.Client(t, func(c *registry.Config) { c.MaxImage = 100 })
	if _, err := small.Resolve(t.Context(), parse(t, r.Host+"/app:1"), amd64, nil); !errors.Is(err, oci.ErrTooLarge) {
		t.Errorf("image above the limit: %v", err)
	}
	r.Before = func(w http.ResponseWriter, req *http.Request) bool {
		if !strings.Contains(req.URL.Path, "sha256:") || strings.Contains(req.URL.Path, "/blobs/") {
			return false
		}
		w.Header().Set("Content-Type", oci.ManifestType)
		_, _ = w.Write(bytes.ToUpper(image.ManifestBytes))
		return true
	}
	for _, name := range []string{"app:1", "app@" + string(image.Manifest.Digest)} {
		if _, err := c.Resolve(t.Context(), parse(t, r.Host+"/"+name), amd64, nil); !errors.Is(err, oci.ErrMismatch) {
			t.Errorf("%s with another manifest: %v", name, err)
		}
	}
	r.Before = nil
	r.SetBlob(image.Config.Digest, []byte("{}"))
	if _, err := c.Resolve(t.Context(), parse(t, r.Host+"/app:1"), amd64, nil); !errors.Is(err, oci.ErrMismatch) {
		t.Errorf("another configuration: %v", err)
	}
}

func TestAuth(t *testing.T) {
	for _, c := range []struct {
		mode registrytest.Auth
		auth *registry.Auth
		want registry.Kind
	}{
		{registrytest.Open, nil, 0}, {registrytest.Open, good, 0},
		{registrytest.Basic, nil, registry.Unauthorized}, {registrytest.Basic, good, 0}, {registrytest.Basic, wrong,
			registry.Unauthorized},
		{registrytest.Token, nil, 0}, {registrytest.Token, good, 0}, {registrytest.Token, wrong, registry.Unauthorized},
		{registrytest.Private, nil, registry.Unauthorized}, {registrytest.Private, good, 0}, {registrytest.Private,
			wrong, registry.Unauthorized},
	} {
		r := registrytest.New(t)
		r.Auth = c.mode
		_, image := r.Push(t, "app", "1", true, []byte("one"))
		remote, err := r.Client(t, nil).Resolve(t.Context(), parse(t, r.Host+"/app:1"), amd64, c.auth)
		if kind(t, err) != c.want {
			t.Errorf("%v with %v: %v", c.mode, c.auth, err)
		}
		if err != nil {
			if strings.Contains(err.Error(), registrytest.Password) {
				t.Errorf("the error has the password: %v", err)
			}
			continue
		}
		if n := len(r.Requests()); n != 3 && n != 4 {
			t.Errorf("%v with %v: %d requests, so the credentials are not kept", c.mode, c.auth, n)
		}
		// A token that ends in the middle of a pull is replaced.
		r.Expire()
		body, err := remote.Open(t.Context(), image.Layers[0], 0)
		testutil.Must(t, err)
		_ = body.Close()
	}
}

// TestChallenges: no credentials go to a token server without TLS, and no challenge makes a loop.
func TestChallenges(t *testing.T) {
	for challenge, want := range map[string]registry.Kind{
		"":                              registry.Unauthorized,
		"Negotiate":                     registry.Unauthorized,
		`Bearer realm="http://HOST/t"`:  registry.Refused,
		`Bearer realm="file:///etc"`:    registry.Refused,
		`Bearer service="x"`:            registry.Refused,
		`Bearer realm="https://HOST/t"`: registry.Malformed, // its answer is no token
		`Basic`:                         registry.Unauthorized,
	} {
		r := registrytest.New(t)
		n := 0
		r.Before = func(w http.ResponseWriter, req *http.Request) bool {
			if n++; req.URL.Path != "/t" {
				w.Header().Set("WWW-Authenticate", strings.ReplaceAll(challenge, "HOST", r.Host))
				w.WriteHeader(http.StatusUnauthorized)
			}
			return true
		}
		if _, err := r.Client(t, nil).Resolve(t.Context(), parse(t, r.Host+"/app:1"), amd64, good); kind(t,
			err) != want || n > 2 {
			t.Errorf("%s: %v after %d requests", challenge, err, n)
		}
	}
}

// TestRetries: what may pass is repeated, three times in all; a refusal is not.
func TestRetries(t *testing.T) {
	for code, want := range map[int]int64{500: 3, 503: 3, 429: 3, 400: 1, 403: 1, 404: 1, 418: 1, 0: 3} {
		r := registrytest.New(t)
		var n atomic.Int64
		r.Before = func(w http.ResponseWriter, _ *http.Request) bool {
			n.Add(1)
			if code == 0 {
				panic(http.ErrAbortHandler)
			}
			http.Error(w, "no", code)
			return true
		}
		_, err := r.Client(t, nil).Resolve(t.Context(), parse(t, r.Host+"/app:1"), amd64, nil)
		// The transport repeats a request by itself if a connection that was idle is closed.
		if kind(t, err) == 0 || n.Load() != want {
			t.Errorf("%d: %d requests, want %d: %v", code, n.Load(), want, err)
		}
		if temporary := want == 3; err.(*registry.Error).Temporary() != temporary {
			t.Errorf("%d: temporary is %v", code, !temporary)
		}
	}
}

// TestRegistrySays: its message is in the error, short and without control characters.
func TestRegistrySays(t *testing.T) {
	r := registrytest.New(t)
	r.Before = func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprintf(w, `{"errors":[{"code":"DENIED","message":"no\u001b[31m\u0000 %s"}]}`, strings.Repeat("ü", 1000))
		return true
	}
	_, err := r.Client(t, nil).Resolve(t.Context(), parse(t, r.Host+"/app:1"), amd64, nil)
	var e *registry.Error
	if !errors.As(err, &e) || !strings.HasPrefix(e.Said, "no [31m  üü") || len(e.Said) > 256 ||
		e.Status != http.StatusForbidden {
		t.Errorf("%q", e)
	}
}

// TestRedirects: a blob may come from elsewhere, without the credentials; but not from everywhere.
func TestRedirects(t *testing.T) {
	storage := registrytest.New(t)
	plain := []byte("one")
	var seen atomic.Value
	r := registrytest.New(t)
	r.Auth = registrytest.Basic
	_, image := r.Push(t, "app", "1", true, plain)
	_, _ = storage.Push(t, "app", "1", true, plain)
	storage.Before = func(_ http.ResponseWriter, req *http.Request) bool {
		seen.Store(req.Header.Get("Authorization") + " " + req.Header.Get("Range"))
		return false
	}
	to := ""
	r.Before = func(w http.ResponseWriter, req *http.Request) bool {
		if !strings.HasSuffix(req.URL.Path, string(image.Layers[0].Digest)) || to == "" {
			return false
		}
		http.Redirect(w, req, strings.ReplaceAll(to, "SELF", "https://"+r.Host+req.URL.Path),
			http.StatusTemporaryRedirect)
		return true
	}
	remote, err := r.Client(t, nil).Resolve(t.Context(), parse(t, r.Host+"/app:1"), amd64, good)
	testutil.Must(t, err)
	v6 := hasIPv6()
	for address, want := range map[string]registry.Kind{
		"https://" + storage.Host + "/v2/app/blobs/" + string(image.Layers[0].Digest): 0,
		"SELF":                         registry.Refused, // a loop
		"http://" + storage.Host + "/": registry.Refused, // without TLS
		"file:///etc/passwd":           registry.Refused,
		"https://169.254.169.254/latest/meta-data/": registry.Refused,
		"https://[fe80::1]/":                        registry.Refused,
		"https://[::1]:10250/":                      registry.Refused,
		"https://[64:ff9b::169.254.169.254]/":       registry.Refused,
		"https://0.0.0.0:6443/":                     registry.Refused,
	} {
		if strings.Contains(address, "[") && !v6 {
			continue
		}
		to = address
		body, err := remote.Open(t.Context(), image.Layers[0], 1)
		if kind(t, err) != want {
			t.Errorf("%s: %v", address, err)
		}
		if err == nil {
			data, err := io.ReadAll(body)
			testutil.Must(t, err)
			_ = body.Close()
			if int64(len(data)) != image.Layers[0].Size-1 || seen.Load() != " bytes=1-" {
				t.Errorf("%d bytes; the other server has seen %q", len(data), seen.Load())
			}
		}
	}
}

// hasIPv6 reports whether the kernel makes sockets of IPv6; without them nothing is dialled anyway.
func hasIPv6() bool {
	l, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		return false
	}
	return l.Close() == nil
}

// TestForbiddenRegistry: an image's name cannot lead to an address that the policy forbids.
func TestForbiddenRegistry(t *testing.T) {
	r := registrytest.New(t)
	strict := r.Client(t, func(c *registry.Config) { c.Policy = registry.Policy{} })
	for _, host := range []string{r.Host, "localhost:5000", "169.254.169.254", "[::1]:5000", "0.0.0.0:5000"} {
		if strings.HasPrefix(host, "[") && !hasIPv6() {
			continue
		}
		if _, err := strict.Resolve(t.Context(), parse(t, host+"/app:1"), amd64, nil); kind(t,
			err) != registry.Refused || !errors.Is(err, registry.ErrForbidden) {
			t.Errorf("%s: %v", host, err)
		}
	}
}

func TestUntrusted(t *testing.T) {
	r := registrytest.New(t)
	c := r.Client(t, func(c *registry.Config) { c.Roots = x509.NewCertPool() })
	if _, err := c.Resolve(t.Context(), parse(t, r.Host+"/app:1"), amd64, nil); kind(t, err) != registry.Malformed {
		t.Error(err)
	}
}

func TestRoots(t *testing.T) {
	pool, err := registry.Roots("")
	testutil.Must(t, err)
	if pool.Equal(x509.NewCertPool()) {
		t.Error("no roots")
	}
	path := filepath.Join(t.TempDir(), "ca.pem")
	if _, err := registry.Roots(path); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	testutil.Must(t, os.WriteFile(path, []byte("no PEM"), 0o600))
	if _, err := registry.Roots(path); err == nil {
		t.Error("a file without certificates was accepted")
	}
}

func TestPolicy(t *testing.T) {
	p := registry.Policy{
		Never: []netip.AddrPort{netip.MustParseAddrPort("10.96.0.1:443"),
			netip.MustParseAddrPort("[fd00::1]:443")},
		NeverPrefixes: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")},
		Allow:         []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")},
	}
	for address, want := range map[string]bool{
		"93.184.215.14:443": true, "10.0.0.1:5000": true, "192.168.1.1:443": true, "[2606:2800::1]:443": true,
		"[fd00::2]:443":  true,
		"10.96.0.1:5000": true, "127.0.0.2:443": true,
		"10.96.0.1:443": false, "[::ffff:10.96.0.1]:443": false, "[64:ff9b::10.96.0.1]:443": false,
		"[fd00::1]:443": false,
		"10.1.2.3:443":  false, "[::ffff:10.1.2.3]:443": false, "127.0.0.1:443": false, "127.1.2.3:80": false,
		"[::1]:443":              false,
		"[::ffff:127.0.0.1]:443": false, "169.254.169.254:80": false, "[fe80::1%eth0]:443": false, "0.0.0.0:443": false,
		"0.1.2.3:443": false,
		"[::]:443":    false, "224.0.0.1:443": false, "[ff02::1]:443": false, "255.255.255.255:443": false,
	} {
		if err := p.Check(netip.MustParseAddrPort(address)); (err == nil) != want || err != nil && !errors.Is(err,
			registry.ErrForbidden) {
			t.Errorf("%s: %v", address, err)
		}
	}
}
