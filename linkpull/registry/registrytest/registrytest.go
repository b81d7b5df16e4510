// Package registrytest has a registry for tests: the reading half of the OCI distribution protocol, with
// authentication, and with the ways in which a registry can fail.
package registrytest

import (
	"bytes"
	"compress/gzip"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/linkpull/oci"
	"github.com/bowline-k8s/bowline/linkpull/registry"
)

// The credentials of a private registry.
const (
	User     = "user"
	Password = "secret"
)

// Loopback is the policy's exception for a registry of a test.
var Loopback = netip.MustParsePrefix("127.0.0.0/8")

// Auth says how the registry authenticates.
type Auth int

const (
	Open    Auth = iota
	Basic        // with User and Password
	Token        // with a token, which anyone gets
	Private      // with a token, which User gets with Password
)

// Registry serves images over TLS. Its address is Host.
type Registry struct {
	Host string
	// Auth is Open by default.
	Auth Auth
	// Before is called with each request; if it returns true, it has answered. It may be nil.
	Before func(w http.ResponseWriter, r *http.Request) bool
	// Wrap is put around each response; nil: it stays.
	Wrap func(w http.ResponseWriter, r *http.Request) http.ResponseWriter

	server *httptest.Server

	mu        sync.Mutex
	tags      map[string]oci.Descriptor // by REPOSITORY:TAG
	documents map[oci.Digest]document
	blobs     map[oci.Digest][]byte
	tokens    int
	requests  []string // "GET /v2/…" with the range
}

type document struct {
	mediaType string
	data      []byte
}

// New starts a registry, which ends with the test.
func New(t testing.TB) *Registry {
	t.Helper()
	r := &Registry{tags: map[string]oci.Descriptor{}, documents: map[oci.Digest]document{},
		blobs: map[oci.Digest][]byte{}}
	r.server = httptest.NewTLSServer(r)
	t.Cleanup(r.server.Close)
	r.Host = r.server.Listener.Addr().String()
	return r
}

// Client returns a client that may reach the registry and trusts it. change may be nil.
func (r *Registry) Client(t testing.TB, change func(*registry.Config)) *registry.Client {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AddCert(r.server.Certificate())
	c := registry.Config{Roots: roots, Policy: registry.Policy{Allow: []netip.Prefix{Loopback}}, Pause: 1}
	if change != nil {
		change(&c)
	}
	client, err := registry.New(c)
	testutil.Must(t, err)
	t.Cleanup(client.Close)
	return client
}

// Push adds an image of layers with these plain contents, for the platforms linux/amd64 and linux/arm64 if index
// is true. It returns what the name then means, and the image for amd64.
func (r *Registry) Push(t testing.TB, repository, tag string, index bool, layers ...[]byte) (oci.Descriptor,
	oci.Image) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	var first oci.Image
	top := oci.Document{SchemaVersion: 2, MediaType: oci.IndexType}
	for _, architecture := range []string{"amd64", "arm64"} {
		c := oci.Config{OS: "linux", Architecture: architecture, RootFS: oci.RootFS{Type: "layers"}}
		m := oci.Document{SchemaVersion: 2, MediaType: oci.ManifestType}
		for _, plain := range layers {
			var b bytes.Buffer
			w := gzip.NewWriter(&b)
			_, err := w.Write(plain)
			testutil.Must(t, err)
			testutil.Must(t, w.Close())
			d := oci.Describe(oci.LayerGzipType, b.Bytes())
			r.blobs[d.Digest] = b.Bytes()
			m.Layers, c.RootFS.DiffIDs = append(m.Layers, d), append(c.RootFS.DiffIDs, oci.Sum(plain))
		}
		config, err := json.Marshal(c)
		testutil.Must(t, err)
		described := oci.Describe(oci.ConfigType, config)
		r.blobs[described.Digest] = config
		m.Config = &described
		manifest, err := json.Marshal(m)
		testutil.Must(t, err)
		d := r.document(oci.ManifestType, manifest)
		d.Platform = &oci.Platform{OS: "linux", Architecture: architecture}
		top.Manifests = append(top.Manifests, d)
		if architecture == "amd64" {
			first, err = oci.NewImage(d, nil, 0, manifest, config)
			testutil.Must(t, err)
		}
	}
	target := first.Manifest
	if index {
		data, err := json.Marshal(top)
		testutil.Must(t, err)
		target = r.document(oci.IndexType, data)
	}
	r.tags[repository+":"+tag] = target
	return target, first
}

// document stores a document. The caller holds mu.
func (r *Registry) document(mediaType string, data []byte) oci.Descriptor {
	d := oci.Describe(mediaType, data)
	r.documents[d.Digest] = document{mediaType, data}
	return d
}

// SetBlob replaces the bytes that the registry has for a digest, and SetDocument those that a tag refers to.
func (r *Registry) SetBlob(d oci.Digest, data []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.blobs[d] = data
}

// SetDocument makes a tag refer to any bytes.
func (r *Registry) SetDocument(repository, tag, mediaType string, data []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tags[repository+":"+tag] = r.document(mediaType, data)
}

// Requests returns the paths of all requests for REPOSITORY/manifests and blobs, each with its range.
func (r *Registry) Requests() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.requests...)
}

// Expire makes the registry refuse all tokens that it has given.
func (r *Registry) Expire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tokens++
}

func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if r.Before != nil && r.Before(w, req) {
		return
	}
	if r.Wrap != nil {
		w = r.Wrap(w, req)
	}
	if req.URL.Path == "/token" {
		r.token(w, req)
		return
	}
	rest, ok := strings.CutPrefix(req.URL.Path, "/v2/")
	if !ok {
		http.NotFound(w, req)
		return
	}
	r.mu.Lock()
	r.requests = append(r.requests, strings.TrimSpace(rest+" "+req.Header.Get("Range")))
	r.mu.Unlock()
	if !r.authorized(w, req) {
		return
	}
	if repository, ref, ok := strings.Cut(rest, "/manifests/"); ok {
		r.manifest(w, repository, ref)
		return
	}
	_, digest, _ := strings.Cut(rest, "/blobs/")
	r.mu.Lock()
	data, ok := r.blobs[oci.Digest(digest)]
	r.mu.Unlock()
	if !ok {
		fail(w, http.StatusNotFound, "BLOB_UNKNOWN", "blob unknown to registry")
		return
	}
	Blob(w, req, data)
}

// Blob serves bytes, or the part that the request asks for.
func Blob(w http.ResponseWriter, req *http.Request, data []byte) {
	var from int
	w.Header().Set("Content-Type", "application/octet-stream")
	if n, err := fmt.Sscanf(req.Header.Get("Range"), "bytes=%d-", &from); n == 1 && err == nil && from < len(data) {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(data)-1, len(data)))
		w.Header().Set("Content-Length", fmt.Sprint(len(data)-from))
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write(data[from:])
		return
	}
	w.Header().Set("Content-Length", fmt.Sprint(len(data)))
	_, _ = w.Write(data)
}

func (r *Registry) manifest(w http.ResponseWriter, repository, ref string) {
	r.mu.Lock()
	d, ok := r.tags[repository+":"+ref]
	if !ok {
		d.Digest = oci.Digest(ref)
	}
	doc, ok := r.documents[d.Digest]
	r.mu.Unlock()
	if !ok {
		fail(w, http.StatusNotFound, "MANIFEST_UNKNOWN", "manifest unknown")
		return
	}
	w.Header().Set("Content-Type", doc.mediaType)
	_, _ = w.Write(doc.data)
}

func fail(w http.ResponseWriter, code int, name, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{"errors": []any{map[string]string{"code": name, "message": text}}})
}

func (r *Registry) authorized(w http.ResponseWriter, req *http.Request) bool {
	r.mu.Lock()
	want := fmt.Sprintf("Bearer token-%d", r.tokens)
	r.mu.Unlock()
	user, password, basic := req.BasicAuth()
	switch {
	case r.Auth == Open, r.Auth == Basic && basic && user == User && password == Password,
		r.Auth >= Token && req.Header.Get("Authorization") == want:
		return true
	case r.Auth == Basic:
		w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
	default:
		w.Header().Set("WWW-Authenticate",
			fmt.Sprintf(`Bearer realm="https://%s/token",service="test, of tokens",scope="repository:all:*"`, r.Host))
	}
	fail(w, http.StatusUnauthorized, "UNAUTHORIZED", "authentication required")
	return false
}

func (r *Registry) token(w http.ResponseWriter, req *http.Request) {
	user, password, basic := req.BasicAuth()
	scope := req.URL.Query().Get("scope")
	if req.URL.Query().Get("service") != "test, of tokens" || !strings.HasPrefix(scope, "repository:") ||
		!strings.HasSuffix(scope, ":pull") ||
		basic && (user != User || password != Password) || !basic && r.Auth == Private {
		fail(w, http.StatusUnauthorized, "UNAUTHORIZED", "incorrect username or password")
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = json.NewEncoder(w).Encode(map[string]string{"token": fmt.Sprintf("token-%d", r.tokens)})
}
