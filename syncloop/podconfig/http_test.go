package podconfig

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bowline-k8s/bowline/syncloop/podconfig/manifest"
)

// site is the response of a URL.
type site struct {
	mu     sync.Mutex
	status int
	body   string
	err    error
	asked  []*http.Request
}

func (s *site) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, r)
	if s.err != nil {
		return nil, s.err
	}
	return &http.Response{StatusCode: s.status, Status: http.StatusText(s.status), Body: io.NopCloser(strings.NewReader(s.body)), Request: r}, nil
}

func TestHTTPSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := &site{status: 500}, New(SourceHTTP)
		var recorded []string
		h := NewHTTP(c, HTTPConfig{URL: "http://user:secret@site.example/pods", Client: &http.Client{Transport: s}, NodeName: "n", Period: 20 * time.Second,
			Header: http.Header{"X-A": {"b"}, "Host": {"other.example"}}, Event: func(reason, message string) { recorded = append(recorded, reason+" "+message) }})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- h.Run(ctx) }()
		synctest.Wait()
		want := func(what, pods string, events int) {
			t.Helper()
			if got := names(c); got != pods || len(recorded) != events {
				t.Errorf("%s: pods %q and events %q; want %q and %d events", what, got, recorded, pods, events)
			}
		}
		want("it fails", "", 1)
		if c.AllSeen() || strings.Contains(recorded[0], "secret") {
			t.Errorf("seen %v, recorded %q", c.AllSeen(), recorded)
		}
		if r := s.asked[0]; r.Header.Get("X-A") != "b" || r.Host != "other.example" {
			t.Errorf("asked with %v of %q", r.Header, r.Host)
		}
		s.status, s.body = 200, manifestOf("a", "one")
		look(&s.mu)
		want("one pod", "a-n=one", 1)
		seen := h.config.Pods()[0].Annotations["kubernetes.io/config.seen"]
		look(&s.mu)
		if got := h.config.Pods()[0].Annotations["kubernetes.io/config.seen"]; got != seen || seen == "" {
			t.Errorf("first seen %q, then %q", seen, got)
		}
		s.body = `{"apiVersion": "v1", "kind": "PodList", "items": [` +
			`{"metadata": {"name": "a", "namespace": "ns"}, "spec": {"containers": [{"name": "c", "image": "two"}]}},` +
			`{"metadata": {"name": "b", "namespace": "ns"}, "spec": {"containers": [{"name": "c", "image": "one"}]}}]}`
		look(&s.mu)
		want("a list", "a-n=two b-n=one", 1)
		s.body = strings.Replace(s.body, `"b"`, `"a"`, 1)
		look(&s.mu)
		want("a list of one pod twice", "a-n=two b-n=one", 2)
		s.body = "kind: ["
		look(&s.mu)
		look(&s.mu)
		want("it breaks", "a-n=two b-n=one", 3)
		s.err = errors.New("no route")
		look(&s.mu)
		want("no one answers", "a-n=two b-n=one", 4)
		s.err, s.body = nil, strings.Repeat("#", manifest.MaxBytes+1)
		look(&s.mu)
		want("too much", "a-n=two b-n=one", 5)
		s.body = manifestOf("b", "one")
		look(&s.mu)
		want("one of them", "b-n=one", 5)
		s.body = ""
		look(&s.mu)
		want("nothing, with success", "", 5)
		s.body = manifestOf("b", "one")
		look(&s.mu)
		want("it again", "b-n=one", 5)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// No event contains a part of the URL that may be a credential, whatever fails.
func TestHTTPSourceShowsNoCredential(t *testing.T) {
	for name, s := range map[string]*site{
		"refused":   {err: errors.New("connection refused")},
		"forbidden": {status: 403},
		"broken":    {status: 200, body: "kind: Pod\n\tapiVersion: v1\n"},
	} {
		synctest.Test(t, func(t *testing.T) {
			var recorded []string
			h := NewHTTP(New(SourceHTTP), HTTPConfig{URL: "https://user:secret@site.example/pods?token=secret", Client: &http.Client{Transport: s}, NodeName: "n",
				Period: 20 * time.Second, Event: func(reason, message string) { recorded = append(recorded, message) }})
			h.look(t.Context())
			if len(recorded) != 1 || strings.Contains(recorded[0], "secret") || !strings.Contains(recorded[0], "https://site.example/pods (not shown in full)") {
				t.Errorf("%s: %q", name, recorded)
			}
		})
	}
}
