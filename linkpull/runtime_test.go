package linkpull

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distribution/reference"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/linkpull/oci"
	"github.com/bowline-k8s/bowline/linkpull/registry/registrytest"
)

// TestNetworkMayHelp enumerates the errors of the CRI.
func TestNetworkMayHelp(t *testing.T) {
	at := func(k cri.Kind, err error) error {
		return fmt.Errorf("pull: %w", &cri.Error{Method: "PullImage", Kind: k, Err: err})
	}
	over := []codes.Code{codes.Unknown, codes.Internal, codes.Canceled, codes.DeadlineExceeded, codes.Aborted}
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		if got, want := networkMayHelp(at(cri.KindFailed, status.Error(code, "said"))), slices.Contains(over,
			code); got != want {
			t.Errorf("%v: %v", code, got)
		}
	}
	for what, err := range map[string]error{
		"success":             nil,
		"not the CRI's":       errors.New("dial tcp: i/o timeout"),
		"the caller left":     at(cri.KindTransport, context.Canceled),
		"the deadline passed": at(cri.KindTransport, context.DeadlineExceeded),
		"not sent": &cri.Error{Kind: cri.KindTransport, Unsent: true, Err: status.Error(codes.Unknown,
			"said")},
		"link away": at(cri.KindTransport, status.Error(codes.Unavailable, "connection closed")),
	} {
		if networkMayHelp(err) {
			t.Errorf("%s: over the link", what)
		}
	}
}

func TestRuntime(t *testing.T) {
	spec := func(w *world) *runtimeapi.ImageSpec { return &runtimeapi.ImageSpec{Image: w.image} }
	t.Run("host", func(t *testing.T) {
		w := newWorld(t, nil)
		if _, err := w.runtime(t, Host).PullImage(t.Context(), spec(w), nil, nil); status.Code(err) != codes.Unknown ||
			len(w.registry.Requests()) > 0 {
			t.Errorf("%v after %v", err, w.registry.Requests())
		}
	})
	t.Run("link", func(t *testing.T) {
		w := newWorld(t, func(w *world) { w.registry.Auth = registrytest.Private })
		w.host.Before = func(method string) error {
			if method == "PullImage" {
				t.Error("the host was asked to pull")
			}
			return nil
		}
		auth := &runtimeapi.AuthConfig{Username: registrytest.User, Password: registrytest.Password}
		ref, err := w.runtime(t, Link).PullImage(t.Context(), spec(w), auth, nil)
		testutil.Must(t, err)
		if !strings.HasPrefix(ref, "sha256:") {
			t.Errorf("the reference is %q", ref)
		}
	})
	t.Run("auto", func(t *testing.T) {
		var asked atomic.Int64
		w := newWorld(t, func(w *world) {
			w.host.Before = func(method string) error {
				if method == "PullImage" {
					asked.Add(1)
				}
				return nil
			}
		})
		now := time.Now()
		r, err := NewRuntime(RuntimeConfig{Mode: Auto, CRI: w.client, Puller: w.puller, Platform: amd64,
			Now: func() time.Time { return now }})
		testutil.Must(t, err)
		// The host is asked at first, and again when what was learned is old.
		for n, want := range []int64{1, 1, 2} {
			if n == 2 {
				now = now.Add(remembered)
			}
			_, err := r.PullImage(t.Context(), spec(w), nil, nil)
			testutil.Must(t, err)
			if got := asked.Load(); got != want {
				t.Errorf("pull %d: the host was asked %d times, want %d", n+1, got, want)
			}
		}
	})
	t.Run("auto, and the registry refuses", func(t *testing.T) {
		w := newWorld(t, func(w *world) { w.registry.Auth = registrytest.Private })
		r := w.runtime(t, Auto)
		_, err := r.PullImage(t.Context(), spec(w), nil, nil)
		var linked *Error
		if status.Code(err) != codes.Unknown || cri.IsTransport(err) || !errors.As(err, &linked) ||
			r.memory.unreached(w.registry.Host, time.Now()) {
			t.Error(err)
		}
	})
	t.Run("auto, and the host refuses", func(t *testing.T) {
		w := newWorld(t, func(w *world) {
			w.host.Before = func(method string) error {
				if method == "PullImage" {
					return status.Error(codes.NotFound, "not found")
				}
				return nil
			}
		})
		if _, err := w.runtime(t, Auto).PullImage(t.Context(), spec(w), nil, nil); !cri.IsNotFound(err) ||
			len(w.registry.Requests()) > 0 {
			t.Errorf("%v after %v", err, w.registry.Requests())
		}
	})
	t.Run("auto without containerd", func(t *testing.T) {
		w := newWorld(t, func(w *world) { w.host.Bare = true })
		_, err := w.runtime(t, Auto).PullImage(t.Context(), spec(w), nil, nil)
		var linked *Error
		if status.Code(err) != codes.Unknown || errors.As(err, &linked) {
			t.Error(err)
		}
	})
}

// TestNotShown: a CRI that never lists the image does not keep the pull waiting.
func TestNotShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &Runtime{config: RuntimeConfig{CRI: blind{}}}
		image := &runtimeapi.ImageSpec{Image: "registry.example/app:1"}
		began := time.Now()
		_, err := r.shown(t.Context(), image, Result{ID: oci.Sum(nil)})
		if !errors.Is(err, errNotShown) || time.Since(began) != shownTime {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

type blind struct{ CRI }

func (blind) ImageStatus(context.Context, *runtimeapi.ImageSpec) (*runtimeapi.Image, error) {
	return nil, nil
}

// TestMemory: it is bounded, and forgets.
func TestMemory(t *testing.T) {
	var m memory
	now := time.Now()
	for n := range 3 * maxRemembered {
		m.helped(fmt.Sprint(n), now)
		if len(m.until) > maxRemembered || !m.unreached(fmt.Sprint(n), now) {
			t.Fatalf("%d registries after %d", len(m.until), n+1)
		}
	}
	last := fmt.Sprint(3*maxRemembered - 1)
	if m.unreached(last, now.Add(remembered)) || m.unreached("other", now) {
		t.Error("remembered for too long")
	}
	m.helped("new", now.Add(remembered))
	if len(m.until) != 1 {
		t.Errorf("%d registries are kept", len(m.until))
	}
}

func TestProgress(t *testing.T) {
	for want, v := range map[string][2]int64{
		"0 of 1 MiB, over the link":    {0, 1},
		"62 of 410 MiB, over the link": {62 << 20, 410 << 20},
		"1 of 2 MiB, over the link":    {1<<21 - 1, 1 << 21},
	} {
		if got := Progress(v[0], v[1]); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestNames(t *testing.T) {
	digest := string(oci.Sum(nil))
	for image, want := range map[string]string{
		"busybox":                        "docker.io/library/busybox:latest docker.io/library/busybox@" + digest,
		"registry.example:5000/a/b:1":    "registry.example:5000/a/b:1 registry.example:5000/a/b@" + digest,
		"registry.example/a:1@" + digest: "registry.example/a@" + digest,
	} {
		ref, err := reference.ParseDockerRef(image)
		testutil.Must(t, err)
		if got := strings.Join(names(ref, oci.Digest(digest)), " "); got != want {
			t.Errorf("%s: %s, want %s", image, got, want)
		}
		if registryOf(image) == "" {
			t.Errorf("%s has no registry", image)
		}
	}
	if registryOf("UPPER") != "" {
		t.Error("an invalid name has a registry")
	}
}
