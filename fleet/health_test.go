package fleet

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

func TestHealth(t *testing.T) {
	var ready, stuck atomic.Bool
	h, err := ListenHealth("127.0.0.1:0", func() error {
		if ready.Load() {
			return nil
		}
		return errors.New("nothing is read")
	}, func(context.Context) error {
		if stuck.Load() {
			return errors.New("a loop is stuck")
		}
		return nil
	})
	testutil.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); h.Run(ctx) }()
	get := func(path string) (int, string) {
		resp, err := http.Get("http://" + h.listener.Addr().String() + path)
		testutil.Must(t, err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		testutil.Must(t, err)
		return resp.StatusCode, string(body)
	}
	if code, body := get("/livez"); code != 200 || body != "ok\n" {
		t.Errorf("/livez: %d %q", code, body)
	}
	stuck.Store(true)
	if code, body := get("/livez"); code != 500 || !strings.Contains(body, "a loop is stuck") {
		t.Errorf("/livez of a stuck loop: %d %q", code, body)
	}
	if code, body := get("/readyz"); code != 503 || !strings.Contains(body, "nothing is read") {
		t.Errorf("/readyz before: %d %q", code, body)
	}
	ready.Store(true)
	if code, _ := get("/readyz"); code != 200 {
		t.Errorf("/readyz after: %d", code)
	}
	if code, body := get("/metrics"); code != 200 || !strings.Contains(body, "process_start_time_seconds") || !strings.Contains(body, "go_goroutines") {
		t.Errorf("/metrics: %d %.200q", code, body)
	}
	if code, _ := get("/pods"); code != 404 {
		t.Errorf("/pods: %d: what is not asked for is not served", code)
	}
	if _, err := ListenHealth(h.listener.Addr().String(), nil, nil); err == nil || !strings.Contains(err.Error(), "--health-address") {
		t.Errorf("a port that is taken: %v", err)
	}
	cancel()
	<-ended
}
