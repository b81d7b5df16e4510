package storetest

import (
	"context"
	"fmt"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/linkpull/build"
	"github.com/bowline-k8s/bowline/linkpull/oci"
)

// Target is a containerd under test.
type Target struct {
	Conn        grpc.ClientConnInterface
	Snapshotter string
	// Write writes an image with this name; it is what the suite tests.
	Write func(ctx context.Context, i build.Image, name string) (missing int64, err error)
}

// Run writes an image of its own, checks what containerd then has, and removes it.
func Run(t *testing.T, target Target) {
	name := build.Name("storetest", t.Name())
	image := func(text string) build.Image {
		i, err := build.Make(build.Program{Path: "/program", Binary: []byte(text), Platform: oci.Platform{OS: "linux",
			Architecture: "amd64"}})
		testutil.Must(t, err)
		return i
	}
	first, second := image(t.Name()+" first"), image(t.Name()+" second")
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		for _, n := range []string{name, string(first.ID()), string(second.ID())} {
			_, err := imagesapi.NewImagesClient(target.Conn).Delete(ctx, &imagesapi.DeleteImageRequest{Name: n, Sync: true})
			if err != nil && status.Code(err) != codes.NotFound {
				t.Errorf("remove %s: %v", n, err)
			}
		}
	})
	missing, err := target.Write(t.Context(), first, name)
	testutil.Must(t, err)
	if missing != first.Size() {
		t.Errorf("%d bytes were missing, want %d", missing, first.Size())
	}
	target.check(t, first, name)
	if missing, err = target.Write(t.Context(), first, name); err != nil || missing != 0 {
		t.Errorf("written again: %d bytes were missing: %v", missing, err)
	}
	target.check(t, first, name)
	// The name now means another image.
	_, err = target.Write(t.Context(), second, name)
	testutil.Must(t, err)
	target.check(t, second, name)
}

// check looks at everything that belongs to a written image.
func (target Target) check(t *testing.T, i build.Image, name string) {
	t.Helper()
	images := imagesapi.NewImagesClient(target.Conn)
	for _, n := range []string{name, string(i.ID())} {
		reply, err := images.Get(t.Context(), &imagesapi.GetImageRequest{Name: n})
		testutil.Must(t, err)
		if got := reply.Image; got.Target.Digest != string(i.Target.Digest) || got.Target.Size != i.Target.Size ||
			got.Target.MediaType != i.Target.MediaType ||
			got.Labels["io.cri-containerd.image"] != "managed" {
			t.Errorf("image %s: %v", n, got)
		}
	}
	chain := i.ChainIDs()
	top := string(chain[len(chain)-1])
	labels := map[oci.Digest]map[string]string{
		i.Config.Digest: {"containerd.io/gc.ref.snapshot." + target.Snapshotter: top},
		i.Manifest.Digest: {"containerd.io/gc.ref.content.config": string(i.Config.Digest),
			"containerd.io/gc.ref.content.l.0": string(i.Layers[0].Digest)},
		i.Layers[0].Digest: {"containerd.io/uncompressed": string(i.DiffIDs[0])},
	}
	for d, want := range labels {
		reply, err := contentapi.NewContentClient(target.Conn).Info(t.Context(),
			&contentapi.InfoRequest{Digest: string(d)})
		testutil.Must(t, err)
		for key, value := range want {
			if got := reply.Info.Labels[key]; got != value {
				t.Errorf("%s has the label %s=%q, want %q", d, key, got, value)
			}
		}
	}
	reply, err := snapshotsapi.NewSnapshotsClient(target.Conn).Stat(t.Context(),
		&snapshotsapi.StatSnapshotRequest{Snapshotter: target.Snapshotter, Key: top})
	testutil.Must(t, err)
	if reply.Info.Kind != snapshotsapi.Kind_COMMITTED {
		t.Errorf("the snapshot %s is %v", top, reply.Info.Kind)
	}
	leases, err := leasesapi.NewLeasesClient(target.Conn).List(t.Context(),
		&leasesapi.ListRequest{Filters: []string{fmt.Sprintf("id==%q", "bowline-image-"+i.Target.Digest.Hex())}})
	testutil.Must(t, err)
	if len(leases.Leases) > 0 {
		t.Errorf("the lease is left: %v", leases.Leases)
	}
}
