package critest

import (
	"slices"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

func testImages(s *suite, t *testing.T) {
	ctx, missing := t.Context(), &runtimeapi.ImageSpec{Image: s.Missing}
	ref, err := s.Client.PullImage(ctx, s.spec(), nil, nil) // already present: no error
	testutil.Must(t, err)
	img, err := s.Client.ImageStatus(ctx, s.spec())
	if err != nil || img == nil {
		t.Fatalf("status of a pulled image: %v, %v", img, err)
	}
	if img.Id == "" || img.Size == 0 || !slices.Contains(img.RepoTags, s.Image) {
		t.Errorf("image %v", img)
	}
	for _, by := range []string{ref, img.Id} {
		if same, err := s.Client.ImageStatus(ctx, &runtimeapi.ImageSpec{Image: by}); err != nil || same.GetId() != img.Id {
			t.Errorf("status by %q: %v, %v", by, same, err)
		}
	}
	list, err := s.Client.ListImages(ctx)
	if err != nil || !slices.ContainsFunc(list, func(i *runtimeapi.Image) bool { return i.Id == img.Id }) {
		t.Errorf("list %v, %v", list, err)
	}
	if fs, err := s.Client.ImageFsInfo(ctx); err != nil || len(fs.ImageFilesystems) == 0 || fs.ImageFilesystems[0].GetFsId().GetMountpoint() == "" {
		t.Errorf("file systems %v, %v", fs, err)
	}
	if _, err := s.Client.PullImage(ctx, missing, nil, nil); !s.notFound(err) {
		t.Errorf("pull of an image that is nowhere: %v, want not found", err)
	}
	if img, err := s.Client.ImageStatus(ctx, missing); img != nil || err != nil {
		t.Errorf("status of an absent image: %v, %v, want neither", img, err)
	}
	sandbox := s.sandboxConfig(t)
	sandboxID := s.runSandbox(t, sandbox)
	config := s.script("c", "wait")
	config.Image = missing
	if _, err := s.Client.CreateContainer(ctx, sandboxID, config, sandbox); !s.notFound(err) {
		t.Errorf("a container of an absent image: %v, want not found", err)
	}
	for range 2 {
		testutil.Must(t, s.Client.RemoveImage(ctx, s.spec()))
		if img, err := s.Client.ImageStatus(ctx, s.spec()); img != nil || err != nil {
			t.Errorf("after its removal: %v, %v, want neither", img, err)
		}
	}
	if again, err := s.Client.PullImage(ctx, s.spec(), nil, nil); err != nil || again != ref {
		t.Errorf("pulled again: %q, %v, want %q", again, err, ref)
	}
}

// notFound reports whether the runtime refused because the image does not exist; CRI-O has no code
// for that.
func (s *suite) notFound(err error) bool {
	return cri.IsNotFound(err) || s.CRIO && err != nil && !cri.IsTransport(err)
}
