package main

import (
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// TestHostLines translates what the suite changed, under the field's name; what it left alone, what
// says nothing, and what Bowline does not have stay out.
func TestHostLines(t *testing.T) {
	first := map[string]any{"containerLogMaxFiles": float64(5), "maxPods": float64(110), "containerLogMaxSize": "10Mi"}
	wanted := `{"kind": "KubeletConfiguration", "containerLogMaxFiles": 4, "maxPods": 110, "containerLogMaxSize": "40Ki",
		"syncFrequency": "0s", "crashLoopBackOff": {}, "runtimeRequestTimeout": "5s", "oomScoreAdj": -999}`
	got, err := hostLines([]byte(wanted), first)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"containerLogMaxFiles: 4", `containerLogMaxSize: "40Ki"`}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if _, err := hostLines([]byte("]"), first); err == nil {
		t.Error("a document that is no YAML is accepted")
	}
}

// TestWithReadOnlyPort changes /configz of a node, and nothing else.
func TestWithReadOnlyPort(t *testing.T) {
	for _, c := range []struct {
		path, body, want string
		status           int
	}{
		{"/api/v1/nodes/n/proxy/configz", `{"kubeletconfig":{"maxPods":110}}`, `{"kubeletconfig":{"address":"127.0.0.1","maxPods":110,"readOnlyPort":10255}}`, http.StatusOK},
		{"/api/v1/nodes/n/proxy/configz", `forbidden`, `forbidden`, http.StatusForbidden},
		{"/api/v1/nodes/n/proxy/metrics", `{"kubeletconfig":{}}`, `{"kubeletconfig":{}}`, http.StatusOK},
	} {
		resp := &http.Response{StatusCode: c.status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(c.body)),
			Request: &http.Request{URL: &url.URL{Path: c.path}}}
		if err := withReadOnlyPort(resp); err != nil {
			t.Errorf("%s: %v", c.path, err)
			continue
		}
		if got, _ := io.ReadAll(resp.Body); string(got) != c.want {
			t.Errorf("%s: %s, want %s", c.path, got, c.want)
		}
	}
}
