package podconfig

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// redirecting redirects requests for site.example to other.example and records their headers.
type redirecting map[string]http.Header

func (r redirecting) RoundTrip(q *http.Request) (*http.Response, error) {
	r[q.URL.Host] = q.Header.Clone()
	reply := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: q}
	if strings.HasPrefix(q.URL.Host, "site.") {
		reply.StatusCode = http.StatusFound
		reply.Header.Set("Location", "http://other.example/pods")
	}
	return reply, nil
}

// TestHTTPSourceRedirected checks what docs/running.md says about headers on a redirect to another
// domain.
func TestHTTPSourceRedirected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := redirecting{}
		h := NewHTTP(New(SourceHTTP), HTTPConfig{URL: "http://site.example/pods", Client: &http.Client{Transport: asked}, NodeName: "n", Period: 20 * time.Second,
			Header: http.Header{"Authorization": {"Bearer abc"}, "Cookie": {"a=b"}, "X-Token": {"abc"}}, Event: func(string, string) {}})
		if _, err := h.get(t.Context()); err != nil {
			t.Fatal(err)
		}
		if first := asked["site.example"]; first.Get("Authorization") == "" || first.Get("Cookie") == "" {
			t.Errorf("the site is asked with %v", first)
		}
		other, was := asked["other.example"]
		if !was || other.Get("Authorization") != "" || other.Get("Cookie") != "" || other.Get("X-Token") != "abc" {
			t.Errorf("the other domain is asked (%v) with %v", was, other)
		}
	})
}
