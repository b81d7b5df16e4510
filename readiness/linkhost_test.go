package readiness

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/connect"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/host/ssh/sshtest"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestReporterEndsForAnotherMachine: a driver ends when another machine answers in place of its own, even
// with a pinned key. The next driver runs the recognition.
func TestReporterEndsForAnotherMachine(t *testing.T) {
	server := sshtest.Run(t)
	m, err := connect.Open(t.Context(), &config.Host{
		Name: "box", NodeName: "box", HostObject: "box", Endpoint: server.URL("/run/none.sock"), RootDirectory: t.TempDir(),
		SSH: config.SSH{IdentityFile: server.KeyFile, HostKeys: []string{server.HostKey}},
	}, nil)
	testutil.Must(t, err)
	defer m.Close()
	if err := otherMachine(m.Link.State()); err != nil {
		t.Errorf("its own machine is taken for another: %v", err)
	}
	// From now on its own machine does not exist.
	m.Link.Require("SHA256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		changed := m.Link.Changed()
		if m.Link.State().Err != nil && otherMachine(m.Link.State()) != nil {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("the link says: %+v", m.Link.State())
		}
	}
	var key *endpoint.HostKeyError
	if err := New(nil, m.Link, m.Address, time.Minute).Run(ctx); !errors.As(err, &key) || !strings.Contains(err.Error(), "nothing is sent to it") {
		t.Errorf("the watch of the link ended with: %v", err)
	}
}
