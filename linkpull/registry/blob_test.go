package registry_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/linkpull/oci"
	"github.com/bowline-k8s/bowline/linkpull/registry"
	"github.com/bowline-k8s/bowline/linkpull/registry/registrytest"
)

// opened returns an image of one layer, the layer's bytes, and the registry.
func opened(t *testing.T) (*registrytest.Registry, *registry.Remote, []byte) {
	t.Helper()
	r := registrytest.New(t)
	_, image := r.Push(t, "app", "1", false, bytes.Repeat([]byte("layer "), 1000))
	remote, err := r.Client(t, nil).Resolve(t.Context(), parse(t, r.Host+"/app:1"), amd64, nil)
	testutil.Must(t, err)
	body, err := remote.Open(t.Context(), image.Layers[0], 0)
	testutil.Must(t, err)
	defer body.Close()
	data, err := io.ReadAll(body)
	testutil.Must(t, err)
	testutil.Must(t, image.Layers[0].Verify(data))
	return r, remote, data
}

// TestOpenAtOffset: from each offset, whether the registry serves ranges or not.
func TestOpenAtOffset(t *testing.T) {
	r, remote, data := opened(t)
	for _, ranges := range []bool{true, false} {
		if !ranges {
			r.Before = func(_ http.ResponseWriter, req *http.Request) bool { req.Header.Del("Range"); return false }
		}
		for offset := int64(0); offset <= int64(len(data)); offset++ {
			if offset == int64(len(data)) && ranges {
				continue // there is no such range
			}
			body, err := remote.Open(t.Context(), remote.Layers[0], offset)
			testutil.Must(t, err)
			got, err := io.ReadAll(body)
			testutil.Must(t, err)
			testutil.Must(t, body.Close())
			if !bytes.Equal(got, data[offset:]) {
				t.Fatalf("from %d, ranges %v: %d bytes, want %d", offset, ranges, len(got), int64(len(data))-offset)
			}
		}
	}
}

// TestBodies: a layer of another size, or one that breaks off, is an error that says whether to try again.
func TestBodies(t *testing.T) {
	r, remote, data := opened(t)
	for what, c := range map[string]struct {
		serve func(w http.ResponseWriter, req *http.Request)
		want  registry.Kind
	}{
		"announced as smaller": {func(w http.ResponseWriter, req *http.Request) {
			registrytest.Blob(w, req,
				data[:len(data)-1])
		}, registry.Malformed},
		"announced as larger": {func(w http.ResponseWriter, req *http.Request) {
			registrytest.Blob(w, req, append(data[:len(data):len(data)], 0))
		}, registry.Malformed},
		"endless": {func(w http.ResponseWriter, req *http.Request) {
			for req.Context().Err() == nil {
				if _, err := w.Write(data); err != nil {
					return
				}
			}
		}, registry.Malformed},
		"broken off": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(data[:10])
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, registry.Unavailable},
		"ends early": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(data[:10])
			_ = http.NewResponseController(w).Flush()
		}, registry.Unavailable},
		"another range": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Range", "bytes 5-9/10")
			w.WriteHeader(http.StatusPartialContent)
		}, registry.Malformed},
		"no range": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusPartialContent) },
			registry.Malformed},
		"gone": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) },
			registry.NotFound},
		"no such range": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
		}, registry.Malformed},
	} {
		r.Before = func(w http.ResponseWriter, req *http.Request) bool {
			if !strings.Contains(req.URL.Path, "/blobs/") {
				return false
			}
			c.serve(w, req)
			return true
		}
		for _, offset := range []int64{0, 3} {
			body, err := remote.Open(t.Context(), remote.Layers[0], offset)
			if err == nil {
				_, err = io.Copy(io.Discard, body)
				testutil.Must(t, body.Close())
			}
			if kind(t, err) != c.want {
				t.Errorf("%s, from %d: %v", what, offset, err)
			}
			if c.want == registry.Malformed && strings.HasPrefix(what, "announced") && offset == 0 && !errors.Is(err,
				oci.ErrMismatch) {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
}
