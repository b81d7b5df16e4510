package connect

import (
	"net/url"
	"testing"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

func TestPublished(t *testing.T) {
	for _, c := range []struct{ name, set, listen, apiServer, want string }{
		{"as configured", "10.0.0.1", "10.0.0.2", "https://127.0.0.1:6443", "10.0.0.1"},
		{"where it listens", "", "10.0.0.2", "https://127.0.0.1:6443", "10.0.0.2"},
		{"the way to the API server", "", "0.0.0.0", "https://127.0.0.1:6443", "127.0.0.1"},
		{"the same without a port", "", "::", "https://127.0.0.1", "127.0.0.1"},
	} {
		u, err := url.Parse(c.apiServer)
		testutil.Must(t, err)
		cfg := &config.Host{Server: config.Server{PublishedAddress: c.set, Address: c.listen}}
		if got, err := Published(cfg, u); err != nil || got != c.want {
			t.Errorf("%s: %q, %v; want %q", c.name, got, err, c.want)
		}
	}
}
