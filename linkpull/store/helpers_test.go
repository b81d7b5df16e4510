package store

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/linkpull/oci"
	"github.com/bowline-k8s/bowline/linkpull/store/storetest"
)

// small is the size of messages in most tests, in bytes.
const small = 4 << 10

// newStore returns a Store that sends small messages and hardly pauses.
func newStore(t testing.TB, conn grpc.ClientConnInterface, change func(*Config)) *Store {
	t.Helper()
	c := Config{Conn: conn, Snapshotter: storetest.Snapshotter, Rate: rate.NewLimiter(1<<40, small),
		Pause: time.Millisecond}
	if change != nil {
		change(&c)
	}
	s, err := New(c)
	testutil.Must(t, err)
	return s
}

// layer returns a compressed layer of about n bytes, and the digest of its plain content.
func layer(t testing.TB, seed uint64, n int) (data []byte, diffID oci.Digest) {
	t.Helper()
	plain := make([]byte, n)
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range plain {
		plain[i] = byte(r.Uint32())
	}
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(plain)
	testutil.Must(t, err)
	testutil.Must(t, w.Close())
	return b.Bytes(), oci.Sum(plain)
}

// imageOf returns an image of these layers; each is a seed and has about n bytes.
func imageOf(t testing.TB, n int, seeds ...uint64) (oci.Image, Memory) {
	t.Helper()
	m := Memory{}
	c := oci.Config{OS: "linux", Architecture: "amd64", RootFS: oci.RootFS{Type: "layers"}}
	d := oci.Document{SchemaVersion: 2, MediaType: oci.ManifestType}
	for _, seed := range seeds {
		data, id := layer(t, seed, n)
		l := oci.Describe(oci.LayerGzipType, data)
		m[l.Digest] = data
		c.RootFS.DiffIDs, d.Layers = append(c.RootFS.DiffIDs, id), append(d.Layers, l)
	}
	return assemble(t, c, d), m
}

// assemble makes an image with an index, whose first manifest is for another platform.
func assemble(t testing.TB, c oci.Config, d oci.Document) oci.Image {
	t.Helper()
	config, err := json.Marshal(c)
	testutil.Must(t, err)
	described := oci.Describe(oci.ConfigType, config)
	d.Config = &described
	manifest, err := json.Marshal(d)
	testutil.Must(t, err)
	index, err := json.Marshal(oci.Document{SchemaVersion: 2, MediaType: oci.IndexType,
		Manifests: []oci.Descriptor{oci.Describe(oci.ManifestType, []byte("other")), oci.Describe(oci.ManifestType,
			manifest)}})
	testutil.Must(t, err)
	i, err := oci.NewImage(oci.Describe(oci.IndexType, index), index, 1, manifest, config)
	testutil.Must(t, err)
	return i
}

// recorded is a Source that counts, and that tests can make fail.
type recorded struct {
	Source
	opened func(d oci.Descriptor, offset int64) error
	read   func(n int) error

	mu      sync.Mutex
	offsets []int64
	open    int
	most    int // that were open at once
}

func (r *recorded) Open(ctx context.Context, d oci.Descriptor, offset int64) (io.ReadCloser, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.offsets = append(r.offsets, offset)
	if r.opened != nil {
		if err := r.opened(d, offset); err != nil {
			return nil, err
		}
	}
	body, err := r.Source.Open(ctx, d, offset)
	r.open++
	r.most = max(r.most, r.open)
	return &recordedBody{r, body}, err
}

type recordedBody struct {
	r *recorded
	io.ReadCloser
}

func (b *recordedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.r.read != nil && err == nil {
		b.r.mu.Lock()
		defer b.r.mu.Unlock()
		if fault := b.r.read(n); fault != nil {
			return 0, fault
		}
	}
	return n, err
}

func (b *recordedBody) Close() error {
	b.r.mu.Lock()
	defer b.r.mu.Unlock()
	b.r.open--
	return b.ReadCloser.Close()
}

// passing is an error of a source that may succeed later, or that will not.
type passing bool

func (p passing) Error() string   { return "the source failed" }
func (p passing) Temporary() bool { return bool(p) }

// whole fails the test unless containerd has exactly this image under this name, unpacked.
func whole(t testing.TB, c *storetest.Containerd, i oci.Image, name string) {
	t.Helper()
	c.Collect()
	s := c.State()
	for _, n := range []string{name, string(i.ID())} {
		if s.Images[n].GetTarget().GetDigest() != string(i.Target.Digest) {
			t.Errorf("the image %s is %v", n, s.Images[n])
		}
	}
	blobs := Image{Image: i}.blobs()
	for _, b := range blobs {
		if testErr := b.Verify(s.Blobs[string(b.Digest)]); testErr != nil {
			t.Error(testErr)
		}
	}
	if len(s.Blobs) != len(blobs) || len(s.Snapshots) != len(i.DiffIDs) || len(s.Ingests) > 0 || len(s.Leases) > 0 {
		t.Errorf("%d blobs of %d, snapshots %v, ingests %v, leases %v", len(s.Blobs), len(blobs), s.Snapshots,
			s.Ingests, s.Leases)
	}
}
