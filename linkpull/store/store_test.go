package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/linkpull/build"
	"github.com/bowline-k8s/bowline/linkpull/oci"
	"github.com/bowline-k8s/bowline/linkpull/store/storetest"
)

const name = "registry.example/app:1"

func target(t *testing.T, conn grpc.ClientConnInterface, snapshotter string) storetest.Target {
	s := newStore(t, conn, func(c *Config) { c.Snapshotter, c.Rate = snapshotter, nil })
	return storetest.Target{Conn: conn, Snapshotter: snapshotter, Write: func(ctx context.Context, i build.Image,
		name string) (int64, error) {
		r, err := s.Write(ctx, Image{Image: i.Image, Names: []string{name}, Source: Memory{i.Layers[0].Digest: i.Layer}})
		return r.Missing, err
	}}
}

// TestSuite runs the suite against the fake, whose collector runs after each step.
func TestSuite(t *testing.T) {
	c := storetest.New()
	c.Collecting = true
	storetest.Run(t, target(t, c.Connect(t).Containerd(), storetest.Snapshotter))
}

// TestContainerd runs the suite against the containerd whose socket is in BOWLINE_STORE_CONTAINERD.
func TestContainerd(t *testing.T) {
	socket := os.Getenv("BOWLINE_STORE_CONTAINERD")
	if socket == "" {
		t.Skip("BOWLINE_STORE_CONTAINERD is not set")
	}
	client, err := cri.Connect(t.Context(), cri.Config{Dial: func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}})
	testutil.Must(t, err)
	defer client.Close()
	info, err := client.ImageFsInfo(t.Context())
	testutil.Must(t, err)
	storetest.Run(t, target(t, client.Containerd(), SnapshotterOf(info)))
}

// TestWrite: an index, and a layer that occurs twice.
func TestWrite(t *testing.T) {
	c := storetest.New()
	c.Collecting = true
	c.Ahead = 30 * time.Hour // longer than a lease
	s := newStore(t, c.Connect(t).Containerd(), nil)
	i, layers := imageOf(t, 5*small, 1, 2, 1)
	var mu sync.Mutex
	var seen []int64
	r, err := s.Write(t.Context(), Image{Image: i, Names: []string{name}, Source: layers, Progress: func(done,
		total int64) {
		mu.Lock()
		defer mu.Unlock()
		if total != i.Size() {
			t.Errorf("the total is %d, want %d", total, i.Size())
		}
		seen = append(seen, done)
	}})
	testutil.Must(t, err)
	whole(t, c, i, name)
	if r.Missing != i.Size() || len(seen) < 10 || slices.Max(seen) != i.Size() {
		t.Errorf("%d bytes were missing, progress %v; want %d", r.Missing, seen, i.Size())
	}
	if got := c.State().Received; got != i.Size() {
		t.Errorf("%d bytes were sent, want %d", got, i.Size())
	}
}

// TestLostCalls fails the first call of each method, once before it has an effect and once after it.
func TestLostCalls(t *testing.T) {
	methods := []string{"Create", "List", "AddResource", "Info", "Write", "Update", "Prepare", "Apply", "Commit",
		"Delete"}
	i, layers := imageOf(t, small, 1, 2)
	for _, m := range methods {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s %v", m, after), func(t *testing.T) {
				c := storetest.New()
				var once sync.Once
				lose := func(method string) (err error) {
					if method == m {
						once.Do(func() { err = status.Error(codes.Unavailable, "lost") })
					}
					return err
				}
				if after {
					c.After = lose
				} else {
					c.Before = lose
				}
				s := newStore(t, c.Connect(t).Containerd(), nil)
				if _, err := s.Write(t.Context(), Image{Image: i, Names: []string{name}, Source: layers}); err != nil {
					t.Fatal(err)
				}
				if m == "Delete" && !after { // the lease stays until it expires
					_, err := s.Write(t.Context(), Image{Image: i, Names: []string{name}, Source: layers})
					testutil.Must(t, err)
				}
				whole(t, c, i, name)
			})
		}
	}
}

// TestRefusedCalls: each call that containerd refuses for good ends Write with that error, and leaves neither
// lease nor ingest.
func TestRefusedCalls(t *testing.T) {
	i, layers := imageOf(t, small, 1)
	for _, m := range []string{"Create", "AddResource", "Info", "Write", "Update", "Prepare", "Apply", "Commit"} {
		c := storetest.New()
		c.Before = func(method string) error {
			if method == m {
				return status.Error(codes.ResourceExhausted, "no space left on device")
			}
			return nil
		}
		s := newStore(t, c.Connect(t).Containerd(), nil)
		_, err := s.Write(t.Context(), Image{Image: i, Names: []string{name}, Source: layers})
		if status.Code(err) != codes.ResourceExhausted {
			t.Errorf("%s: %v", m, err)
		}
		c.Collect()
		if s := c.State(); len(s.Leases)+len(s.Ingests)+len(s.Blobs)+len(s.Snapshots)+len(s.Images) > 0 {
			t.Errorf("%s leaves %+v", m, s)
		}
	}
}

func TestNoContentStore(t *testing.T) {
	c := storetest.New()
	c.Bare = true
	i, layers := imageOf(t, small, 1)
	if _, err := newStore(t, c.Connect(t).Containerd(), nil).Write(t.Context(), Image{Image: i,
		Source: layers}); !errors.Is(err, ErrNoContentStore) {
		t.Error(err)
	}
}

// TestUnpackChecks: a layer whose plain content is not what the configuration says is no layer of the image.
func TestUnpackChecks(t *testing.T) {
	data, _ := layer(t, 1, small)
	l := oci.Describe(oci.LayerGzipType, data)
	i := assemble(t, oci.Config{RootFS: oci.RootFS{Type: "layers", DiffIDs: []oci.Digest{oci.Sum([]byte("other"))}}},
		oci.Document{SchemaVersion: 2, Layers: []oci.Descriptor{l}})
	c := storetest.New()
	_, err := newStore(t, c.Connect(t).Containerd(), nil).Write(t.Context(), Image{Image: i, Names: []string{name},
		Source: Memory{l.Digest: data}})
	if !errors.Is(err, oci.ErrMismatch) {
		t.Error(err)
	}
	c.Collect()
	if s := c.State(); len(s.Snapshots)+len(s.Images)+len(s.Blobs) > 0 {
		t.Errorf("left: %+v", s)
	}
}

// TestTogether: images that are written at the same time, some of them twice, send each blob once.
func TestTogether(t *testing.T) {
	c := storetest.New()
	c.Collecting = true
	s := newStore(t, c.Connect(t).Containerd(), nil)
	first, layers := imageOf(t, 3*small, 1, 2)
	second, more := imageOf(t, 3*small, 1, 2, 3)
	for d, data := range more {
		layers[d] = data
	}
	var all sync.WaitGroup
	for n := range 6 {
		all.Go(func() {
			i := []oci.Image{first, second}[n%2]
			if _, err := s.Write(t.Context(), Image{Image: i, Names: []string{fmt.Sprintf("registry.example/app:%d", n)},
				Source: layers}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	state := c.State()
	var sum int64
	for _, b := range state.Blobs {
		sum += int64(len(b))
	}
	if state.Received != sum || len(state.Images) != 8 || len(state.Snapshots) != 3 || len(state.Leases) != 0 {
		t.Errorf("%d bytes were sent for %d; images %d, snapshots %v, leases %v", state.Received, sum,
			len(state.Images), state.Snapshots, state.Leases)
	}
	if len(s.writes.named)+len(s.uploads.named) > 0 {
		t.Error("locks are left")
	}
}

// TestSlots: shared slots bound the layers that are open.
func TestSlots(t *testing.T) {
	c := storetest.New()
	s := newStore(t, c.Connect(t).Containerd(), func(c *Config) { c.Slots = NewSlots(1) })
	i, layers := imageOf(t, small, 1, 2, 3, 4)
	source := &recorded{Source: layers}
	_, err := s.Write(t.Context(), Image{Image: i, Names: []string{name}, Source: source})
	testutil.Must(t, err)
	if source.most != 1 {
		t.Errorf("%d layers were open at once", source.most)
	}
}

// TestLeaseOfAnEarlierAttempt: it is used again while it is young, and replaced when it is about to end.
func TestLeaseOfAnEarlierAttempt(t *testing.T) {
	i, layers := imageOf(t, 4*small, 1)
	for age, offset := range map[time.Duration]int64{0: 2 * small, leaseTime: 0, -leaseTime: 0} {
		c := storetest.New()
		client := c.Connect(t)
		first := newStore(t, client.Containerd(),
			func(c *Config) { c.Now = func() time.Time { return time.Now().Add(-age) } })
		cut := &recorded{Source: layers}
		left := 2
		cut.read = func(int) error {
			if left--; left < 0 {
				return passing(true)
			}
			return nil
		}
		if _, err := first.Write(t.Context(), Image{Image: i, Source: cut}); !errors.Is(err, passing(true)) {
			t.Fatal(err)
		}
		if s := c.State(); len(s.Leases) != 1 {
			t.Fatalf("the leases are %v", s.Leases)
		}
		c.Collecting = true
		rest := &recorded{Source: layers}
		_, err := newStore(t, client.Containerd(), nil).Write(t.Context(), Image{Image: i, Names: []string{name},
			Source: rest})
		testutil.Must(t, err)
		if !slices.Equal(rest.offsets, []int64{offset}) {
			t.Errorf("age %v: opened at %v, want %d", age, rest.offsets, offset)
		}
		whole(t, c, i, name)
	}
}

func TestSnapshotterOf(t *testing.T) {
	at := func(mountpoints ...string) *runtimeapi.ImageFsInfoResponse {
		r := &runtimeapi.ImageFsInfoResponse{}
		for _, m := range mountpoints {
			r.ImageFilesystems = append(r.ImageFilesystems,
				&runtimeapi.FilesystemUsage{FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: m}})
		}
		return r
	}
	for _, c := range []struct {
		info *runtimeapi.ImageFsInfoResponse
		want string
	}{
		{nil, "overlayfs"},
		{at(), "overlayfs"},
		{at("/var/lib/containerd/io.containerd.snapshotter.v1.native"), "native"},
		{at("/var/lib/rancher/k3s/agent/containerd/io.containerd.snapshotter.v1.zfs",
			"/x/io.containerd.snapshotter.v1.native"), "zfs"},
		{at("/var/lib/containers/storage/overlay-images"), "overlayfs"},
		{at("/x/io.containerd.snapshotter.v1."), "overlayfs"},
	} {
		if got := SnapshotterOf(c.info); got != c.want {
			t.Errorf("%v: %s, want %s", c.info, got, c.want)
		}
	}
}
