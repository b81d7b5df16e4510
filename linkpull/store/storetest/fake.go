// Package storetest has a containerd for tests of what writes images: its content, images, leases, snapshots
// and diff services, in memory. They behave like those of containerd 2.4 (core/metadata and plugins/content):
// ingests have offsets and locks, and outlive their streams; whatever no lease and no image refers to is
// collected. Run is a suite that a real containerd passes too.
package storetest

import (
	"context"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	diffapi "github.com/containerd/containerd/api/services/diff/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// Snapshotter is the only one that the fake has.
const Snapshotter = "overlayfs"

// Containerd is the fake. Set its fields before it serves.
type Containerd struct {
	// Before is called before each call, with its method ("Info", "Apply"), and before each message of Write
	// ("Write"). Its error is the answer. It may be nil.
	Before func(method string) error
	// After is called after each call, but those of Write. Its error replaces the answer, as if that were
	// lost. It may be nil.
	After func(method string) error
	// Collecting runs the garbage collector after each change.
	Collecting bool
	// Ahead is how much the host's clock is ahead of the test's.
	Ahead time.Duration
	// Altered changes the data of each message of Write; nil: it stays.
	Altered func(offset int64, data []byte) []byte
	// Wrap is put around each connection; nil: it stays.
	Wrap func(net.Conn) net.Conn
	// Bare leaves out all services but those of the CRI, as CRI-O does.
	Bare bool

	mu        sync.Mutex
	blobs     map[string]*content
	ingests   map[string]*ingest
	leases    map[string]*lease
	images    map[string]*imagesapi.Image
	snapshots map[string]*snapshot
	shown     map[string]bool // by the CRI
	received  int64
}

type content struct {
	data   []byte
	labels map[string]string
}

type ingest struct {
	data   []byte
	locked bool
}

type lease struct {
	info      *leasesapi.Lease
	resources map[string]bool // "content/sha256:…", "ingests/ref", "snapshots/overlayfs/key"
}

type snapshot struct {
	parent    string
	committed bool
	applied   string // the uncompressed digest
}

// New returns an empty Containerd.
func New() *Containerd {
	return &Containerd{blobs: map[string]*content{}, ingests: map[string]*ingest{}, leases: map[string]*lease{},
		images: map[string]*imagesapi.Image{}, snapshots: map[string]*snapshot{}, shown: map[string]bool{}}
}

// Connect serves the fake until the test ends, and returns a client of it.
func (c *Containerd) Connect(t testing.TB) *cri.Client {
	t.Helper()
	l, err := net.Listen("unix", t.TempDir()+"/s")
	testutil.Must(t, err)
	s := grpc.NewServer(grpc.ChainUnaryInterceptor(c.unary), grpc.MaxRecvMsgSize(16<<20))
	runtimeapi.RegisterRuntimeServiceServer(s, version{})
	runtimeapi.RegisterImageServiceServer(s, criImages{Containerd: c})
	if !c.Bare {
		contentapi.RegisterContentServer(s, contentServer{Containerd: c})
		imagesapi.RegisterImagesServer(s, imagesServer{Containerd: c})
		leasesapi.RegisterLeasesServer(s, leasesServer{Containerd: c})
		snapshotsapi.RegisterSnapshotsServer(s, snapshotsServer{Containerd: c})
		diffapi.RegisterDiffServer(s, diffServer{Containerd: c})
	}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	client, err := cri.Connect(t.Context(), cri.Config{Dial: func(ctx context.Context) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", l.Addr().String())
		if err == nil && c.Wrap != nil {
			conn = c.Wrap(conn)
		}
		return conn, err
	}})
	testutil.Must(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

type version struct {
	runtimeapi.UnimplementedRuntimeServiceServer
}

func (version) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{RuntimeName: "containerd", RuntimeVersion: "v2.4.2", RuntimeApiVersion: "v1"},
		nil
}

// criImages lists what the images service has. Like the real one, it learns of an image a moment later.
type criImages struct {
	runtimeapi.UnimplementedImageServiceServer
	*Containerd
}

func (c criImages) ImageStatus(_ context.Context,
	r *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.Containerd.images[r.Image.Image]
	if i == nil || i.Labels["io.cri-containerd.image"] != "managed" {
		return &runtimeapi.ImageStatusResponse{}, nil
	}
	if !c.shown[r.Image.Image] {
		c.shown[r.Image.Image] = true
		return &runtimeapi.ImageStatusResponse{}, nil
	}
	for name, other := range c.Containerd.images {
		if strings.HasPrefix(name, "sha256:") && other.Target.Digest == i.Target.Digest {
			return &runtimeapi.ImageStatusResponse{Image: &runtimeapi.Image{Id: name, RepoTags: []string{r.Image.Image}}},
				nil
		}
	}
	return &runtimeapi.ImageStatusResponse{}, nil
}

// PullImage fails as on a host that reaches no registry.
func (c criImages) PullImage(_ context.Context, r *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse,
	error) {
	if err := c.fault("PullImage"); err != nil {
		return nil, err
	}
	return nil, status.Errorf(codes.Unknown, "failed to pull and unpack image %q: dial tcp: i/o timeout",
		r.Image.Image)
}

// unary requires the namespace, and plays the faults.
func (c *Containerd) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	handle grpc.UnaryHandler) (any, error) {
	if strings.HasPrefix(info.FullMethod, "/runtime.") {
		return handle(ctx, req)
	}
	if err := named(ctx); err != nil {
		return nil, err
	}
	method := info.FullMethod[strings.LastIndexByte(info.FullMethod, '/')+1:]
	if err := c.fault(method); err != nil {
		return nil, err
	}
	reply, err := handle(ctx, req)
	if c.Collecting {
		c.Collect()
	}
	if c.After != nil {
		if lost := c.After(method); lost != nil {
			return nil, lost
		}
	}
	return reply, err
}

func (c *Containerd) fault(method string) error {
	if c.Before == nil {
		return nil
	}
	return c.Before(method)
}

func named(ctx context.Context) error {
	if got := metadata.ValueFromIncomingContext(ctx, "containerd-namespace"); !slices.Equal(got, []string{"k8s.io"}) {
		return status.Errorf(codes.FailedPrecondition, "namespace %v", got)
	}
	return nil
}

// lend adds a resource to the lease of the context, which must exist if there is one. The caller holds mu.
func (c *Containerd) lend(ctx context.Context, resource string) error {
	for _, id := range metadata.ValueFromIncomingContext(ctx, "containerd-lease") {
		l := c.leases[id]
		if l == nil {
			return status.Errorf(codes.NotFound, "lease %q", id)
		}
		l.resources[resource] = true
	}
	return nil
}

// Collect removes what no lease and no image refers to.
func (c *Containerd) Collect() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now().Add(c.Ahead)
	kept := map[string]bool{}
	var keep func(resource string)
	keep = func(resource string) {
		if kept[resource] {
			return
		}
		kept[resource] = true
		kind, id, _ := strings.Cut(resource, "/")
		switch b, s := c.blobs[id], c.snapshots[strings.TrimPrefix(id, Snapshotter+"/")]; {
		case kind == "content" && b != nil:
			for label, to := range b.labels {
				if strings.HasPrefix(label, "containerd.io/gc.ref.content.") {
					keep("content/" + to)
				}
				if label == "containerd.io/gc.ref.snapshot."+Snapshotter {
					keep("snapshots/" + Snapshotter + "/" + to)
				}
			}
		case kind == "snapshots" && s != nil && s.parent != "":
			keep("snapshots/" + Snapshotter + "/" + s.parent)
		}
	}
	for id, l := range c.leases {
		if end, err := time.Parse(time.RFC3339, l.info.Labels["containerd.io/gc.expire"]); err == nil && now.After(end) {
			delete(c.leases, id)
			continue
		}
		for r := range l.resources {
			keep(r)
		}
	}
	for _, i := range c.images {
		keep("content/" + i.Target.Digest)
	}
	maps.DeleteFunc(c.blobs, func(id string, _ *content) bool { return !kept["content/"+id] })
	maps.DeleteFunc(c.snapshots, func(id string, _ *snapshot) bool { return !kept["snapshots/"+Snapshotter+"/"+id] })
	maps.DeleteFunc(c.ingests, func(ref string, i *ingest) bool { return !kept["ingests/"+ref] && !i.locked })
}

// State is what the fake has, for tests.
type State struct {
	Blobs     map[string][]byte
	Labels    map[string]map[string]string // of the blobs
	Ingests   map[string]int               // bytes, by ref
	Leases    []string
	Images    map[string]*imagesapi.Image
	Snapshots []string // committed
	Received  int64    // bytes of all messages of Write
}

// State returns a copy.
func (c *Containerd) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := State{Blobs: map[string][]byte{}, Labels: map[string]map[string]string{}, Ingests: map[string]int{},
		Images: maps.Clone(c.images), Leases: slices.Sorted(maps.Keys(c.leases)), Received: c.received}
	for id, b := range c.blobs {
		s.Blobs[id], s.Labels[id] = slices.Clone(b.data), maps.Clone(b.labels)
	}
	for ref, i := range c.ingests {
		s.Ingests[ref] = len(i.data)
	}
	for id, one := range c.snapshots {
		if one.committed {
			s.Snapshots = append(s.Snapshots, id)
		}
	}
	slices.Sort(s.Snapshots)
	return s
}
