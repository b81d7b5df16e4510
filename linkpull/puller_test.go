package linkpull

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/linkpull/oci"
	"github.com/bowline-k8s/bowline/linkpull/registry"
	"github.com/bowline-k8s/bowline/linkpull/registry/registrytest"
	"github.com/bowline-k8s/bowline/linkpull/store"
	"github.com/bowline-k8s/bowline/linkpull/store/storetest"
	"github.com/bowline-k8s/bowline/syncloop/images"
)

var amd64 = oci.Platform{OS: "linux", Architecture: "amd64"}

// random returns n bytes that do not compress.
func random(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 0))
	out := make([]byte, n)
	for i := range out {
		out[i] = byte(r.Uint32())
	}
	return out
}

// world is a registry, and a host that reaches it only over the link.
type world struct {
	registry *registrytest.Registry
	host     *storetest.Containerd
	client   *cri.Client
	puller   *Puller
	image    string
}

func newWorld(t *testing.T, change func(*world)) *world {
	t.Helper()
	w := &world{registry: registrytest.New(t), host: storetest.New()}
	w.image = w.registry.Host + "/team/app:1"
	w.registry.Push(t, "team/app", "1", true, random(1, 100<<10), random(2, 10<<10))
	if change != nil {
		change(w)
	}
	w.client = w.host.Connect(t)
	s, err := store.New(store.Config{Conn: w.client.Containerd(), Snapshotter: storetest.Snapshotter,
		Rate: rate.NewLimiter(1<<40, 4<<10), Pause: time.Millisecond})
	testutil.Must(t, err)
	w.puller, err = New(w.registry.Client(t, nil), s)
	testutil.Must(t, err)
	return w
}

func (w *world) runtime(t *testing.T, mode Mode) *Runtime {
	t.Helper()
	r, err := NewRuntime(RuntimeConfig{Mode: mode, CRI: w.client, Puller: w.puller, Platform: amd64})
	testutil.Must(t, err)
	return r
}

func TestPull(t *testing.T) {
	w := newWorld(t, nil)
	var mu sync.Mutex
	var seen [][2]int64
	r, err := w.puller.Pull(t.Context(), Request{Image: w.image, Platform: amd64, Progress: func(done, total int64) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, [2]int64{done, total})
	}})
	testutil.Must(t, err)
	s := w.host.State()
	for _, name := range []string{w.image, w.registry.Host + "/team/app@" + string(r.Digest), string(r.ID)} {
		if s.Images[name].GetTarget().GetDigest() != string(r.Digest) {
			t.Errorf("%s is %v", name, s.Images[name])
		}
	}
	if r.Size != r.Written || len(s.Images) != 3 || len(s.Snapshots) != 2 {
		t.Errorf("%+v with %d images and snapshots %v", r, len(s.Images), s.Snapshots)
	}
	if !slices.Contains(seen, [2]int64{r.Size, r.Size}) || len(seen) < 10 {
		t.Errorf("the progress is %v, want %d at the end", seen, r.Size)
	}
	r, err = w.puller.Pull(t.Context(), Request{Image: w.image, Platform: amd64})
	if err != nil || r.Written != 0 {
		t.Errorf("again: %+v, %v", r, err)
	}
}

// TestPullsShare: calls for one image share a pull, unless their credentials differ.
func TestPullsShare(t *testing.T) {
	var manifests atomic.Int64
	w := newWorld(t, func(w *world) {
		w.registry.Before = func(_ http.ResponseWriter, r *http.Request) bool {
			if strings.HasSuffix(r.URL.Path, "/manifests/1") {
				manifests.Add(1)
			}
			return false
		}
	})
	ready, arrived := make(chan struct{}), make(chan struct{}, 10)
	w.host.Before = func(method string) error {
		if method == "Info" {
			select {
			case arrived <- struct{}{}:
			default:
			}
			<-ready
		}
		return nil
	}
	auths := []*registry.Auth{nil, nil, nil, {Username: registrytest.User, Password: registrytest.Password}}
	var all sync.WaitGroup
	for _, auth := range auths {
		all.Go(func() {
			if _, err := w.puller.Pull(t.Context(), Request{Image: w.image, Platform: amd64, Auth: auth,
				Progress: func(int64, int64) {}}); err != nil {
				t.Error(err)
			}
		})
	}
	<-arrived
	testutil.Eventually(t, "four calls wait for two pulls", func() bool {
		w.puller.flights.mu.Lock()
		defer w.puller.flights.mu.Unlock()
		waiters := 0
		for _, f := range w.puller.flights.byKey {
			waiters += f.waiters
		}
		return waiters == len(auths) && len(w.puller.flights.byKey) == 2
	})
	close(ready)
	all.Wait()
	if n := manifests.Load(); n != 2 || len(w.puller.flights.byKey) != 0 {
		t.Errorf("the registry was asked %d times for 2 credentials, %d pulls are left", n, len(w.puller.flights.byKey))
	}
}

// TestLastCallerLeaves: a pull ends with the last call that waits for it, and not with the first.
func TestLastCallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := flights{byKey: map[string]*flight{}}
		ended := false
		pull := func(ctx context.Context, _ ProgressFunc) (Result, error) {
			<-ctx.Done()
			ended = true
			return Result{}, ctx.Err()
		}
		first, leave := context.WithCancel(t.Context())
		second, leaveToo := context.WithCancel(t.Context())
		for _, ctx := range []context.Context{first, second} {
			go func() { _, _ = f.join(ctx, "key", nil, pull) }()
		}
		synctest.Wait()
		leave()
		synctest.Wait()
		if ended {
			t.Fatal("the pull ended with the first call")
		}
		leaveToo()
		synctest.Wait()
		if !ended || len(f.byKey) > 0 {
			t.Errorf("ended %v, %d pulls left", ended, len(f.byKey))
		}
	})
}

// TestPrivate: an image is pulled with credentials, and not without; on the host there are none of them.
func TestPrivate(t *testing.T) {
	w := newWorld(t, func(w *world) { w.registry.Auth = registrytest.Private })
	for _, auth := range []*registry.Auth{nil, {Username: "other", Password: "other"}} {
		_, err := w.puller.Pull(t.Context(), Request{Image: w.image, Platform: amd64, Auth: auth})
		var e *Error
		if !errors.As(err, &e) || e.Reason != ReasonPull {
			t.Errorf("%v: %v", auth, err)
		}
	}
	if s := w.host.State(); len(s.Images)+len(s.Leases) > 0 {
		t.Errorf("the host has %+v", s)
	}
	_, err := w.puller.Pull(t.Context(), Request{Image: w.image, Platform: amd64,
		Auth: &registry.Auth{Username: registrytest.User, Password: registrytest.Password}})
	testutil.Must(t, err)
	for _, data := range w.host.State().Blobs {
		if bytes.Contains(data, []byte(registrytest.Password)) {
			t.Error("the host has the password")
		}
	}
}

// TestCutsOnBothSides: the registry breaks off, and so does the link, again and again.
func TestCutsOnBothSides(t *testing.T) {
	var n atomic.Int64
	w := newWorld(t, func(w *world) {
		w.registry.Wrap = func(rw http.ResponseWriter, r *http.Request) http.ResponseWriter {
			if strings.Contains(r.URL.Path, "/blobs/") && n.Add(1)%2 == 1 {
				return &cutWriter{ResponseWriter: rw, left: 20 << 10}
			}
			return rw
		}
		var writes atomic.Int64
		w.host.Before = func(method string) error {
			if method == "Write" && writes.Add(1)%9 == 0 {
				return status.Error(codes.Unavailable, "transport is closing")
			}
			return nil
		}
		w.host.Collecting = true
	})
	_, err := w.puller.Pull(t.Context(), Request{Image: w.image, Platform: amd64})
	testutil.Must(t, err)
	if s := w.host.State(); len(s.Snapshots) != 2 || len(s.Ingests) != 0 {
		t.Errorf("snapshots %v, ingests %v", s.Snapshots, s.Ingests)
	}
}

// cutWriter ends the connection after a number of bytes.
type cutWriter struct {
	http.ResponseWriter
	left int
}

func (w *cutWriter) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p[:min(len(p), w.left)])
	if w.left -= n; w.left > 0 {
		return n, err
	}
	_ = http.NewResponseController(w.ResponseWriter).Flush()
	panic(http.ErrAbortHandler)
}

// TestReasons: the kubelet's reason for each kind of failure, and none if the host did not answer.
func TestReasons(t *testing.T) {
	if ReasonPull != images.ReasonPull || ReasonRegistry != images.ReasonRegistry ||
		ReasonInvalidName != images.ReasonInvalidName {
		t.Error("the reasons are not those of package images")
	}
	for what, c := range map[string]struct {
		image  string
		change func(w *world)
		reason string
		lost   bool
	}{
		"invalid name":  {image: "UPPER/app:1", reason: ReasonInvalidName},
		"no such image": {image: "/team/app:2", reason: ReasonPull},
		"registry away": {change: func(w *world) {
			w.registry.Before = func(rw http.ResponseWriter,
				_ *http.Request) bool {
				rw.WriteHeader(http.StatusBadGateway)
				return true
			}
		}, reason: ReasonRegistry},
		"disk full": {change: func(w *world) {
			w.host.Before = func(string) error { return status.Error(codes.ResourceExhausted, "no space left on device") }
		}, reason: ReasonPull},
		"host away": {change: func(w *world) {
			w.host.Before = func(method string) error { return status.Error(codes.Unavailable, "transport is closing") }
		}, lost: true},
		"host away in a layer": {change: func(w *world) {
			w.host.Before = func(method string) error {
				if method == "Write" {
					return status.Error(codes.Unavailable, "transport is closing")
				}
				return nil
			}
		}, lost: true},
		"no containerd": {change: func(w *world) { w.host.Bare = true }, reason: ReasonPull},
	} {
		w := newWorld(t, c.change)
		image := w.image
		switch {
		case strings.HasPrefix(c.image, "/"):
			image = w.registry.Host + c.image
		case c.image != "":
			image = c.image
		}
		_, err := w.puller.Pull(t.Context(), Request{Image: image, Platform: amd64})
		var e *Error
		if errors.As(err, &e) == c.lost || cri.IsTransport(err) != c.lost || !c.lost && e.Reason != c.reason {
			t.Errorf("%s: %v", what, err)
		}
		if c.reason == ReasonRegistry && !strings.HasPrefix(err.Error(), ReasonRegistry+": ") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
