package fleet

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestHostsOpenAFewAtATime: a host reads its facts only when it has a place among those that open,
// and gives the place back when it fails.
func TestHostsOpenAFewAtATime(t *testing.T) {
	rt, root := fake.Run(t, fake.Config{}), t.TempDir()
	d := newDrivers(1)
	failed := errors.New("the facts are not read")
	hook := func(ctx context.Context, label string, call func(context.Context) error) error {
		if label == "host/Facts" {
			return failed
		}
		return call(ctx)
	}
	manage := func(ctx context.Context) error {
		return d.Manage(ctx, &config.Host{Name: "box", NodeName: "box", Endpoint: "unix://" + rt.Socket, RootDirectory: root, Kubeconfig: filepath.Join(root, "none")}, hook)
	}

	release, err := d.openings.Take(t.Context(), false)
	testutil.Must(t, err)
	brief, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := manage(brief); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without a place it ended with: %v", err)
	}
	release()
	for range 2 {
		if err := manage(t.Context()); !errors.Is(err, failed) {
			t.Errorf("with a place it ended with: %v", err)
		}
	}
}

// TestHostsShareTheBoundOnStrangers: the drivers of a process share one bound on unauthenticated
// callers, so that a further host does not raise it.
func TestHostsShareTheBoundOnStrangers(t *testing.T) {
	d := NewDrivers()
	one, other := d.config(&config.Host{Name: "one"}, nil), d.config(&config.Host{Name: "other"}, nil)
	if one.Strangers == nil || one.Strangers != other.Strangers {
		t.Errorf("the bounds are %p and %p", one.Strangers, other.Strangers)
	}
}
