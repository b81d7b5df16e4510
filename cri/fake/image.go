package fake

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// RegistryImage is an image that can be pulled.
type RegistryImage struct {
	Size     uint64        // bytes; 0 is 1 MiB
	Delay    time.Duration // how long its pull takes
	Err      error         // its pull fails
	UID      *int64        // USER of the image, by number
	Username string        // USER of the image, by name
	// Password, if not empty, is the required AuthConfig.Password.
	Password string
}

type image struct {
	id       string
	tags     []string
	digests  []string
	size     uint64
	uid      *int64
	username string
	pulled   time.Time
}

func (i *image) message() *runtimeapi.Image {
	m := &runtimeapi.Image{Id: i.id, RepoTags: slices.Clone(i.tags), RepoDigests: slices.Clone(i.digests),
		Size: i.size, Username: i.username}
	if i.uid != nil {
		m.Uid = &runtimeapi.Int64Value{Value: *i.uid}
	}
	return m
}

// holdsTestProgram reports whether one of the image's references names the test image.
func (i *image) holdsTestProgram() bool {
	return strings.Contains(strings.Join(append(slices.Clone(i.tags), i.digests...), " "), TestImage)
}

// Normalize completes a reference with its registry, its library and its tag.
func Normalize(ref string) string {
	first, _, found := strings.Cut(ref, "/")
	if !found || !strings.ContainsAny(first, ".:") && first != "localhost" {
		if !found {
			ref = "library/" + ref
		}
		ref = "docker.io/" + ref
	}
	if strings.Contains(ref, "@") {
		return ref
	}
	if last := ref[strings.LastIndexByte(ref, '/'):]; !strings.Contains(last, ":") {
		ref += ":latest"
	}
	return ref
}

func digestOf(s string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(s))) }

// image finds an image by reference, digest or ID, or returns nil; the caller holds r.mu.
func (r *Runtime) image(ref string) *image {
	if ref == "" {
		return nil
	}
	if i, ok := r.images[ref]; ok {
		return i
	}
	if i, ok := r.images["sha256:"+ref]; ok {
		return i
	}
	full := Normalize(ref)
	for _, i := range r.images {
		if slices.Contains(i.tags, full) || slices.Contains(i.digests, full) {
			return i
		}
	}
	return nil
}

// AddImage adds an image without a pull and returns its ID.
func (r *Runtime) AddImage(ref string, from RegistryImage) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.addImage(Normalize(ref), from).id
}

func (r *Runtime) addImage(full string, from RegistryImage) *image {
	repo, _, _ := strings.Cut(full, "@")
	if i := strings.LastIndexByte(repo, ':'); i > strings.LastIndexByte(repo, '/') {
		repo = repo[:i]
	}
	img := &image{id: digestOf("config " + full), digests: []string{repo + "@" + digestOf(full)}, size: from.Size,
		uid: from.UID, username: from.Username, pulled: r.now()}
	if strings.Contains(full, "@") {
		img.digests = []string{full}
	} else {
		img.tags = []string{full}
	}
	if img.size == 0 {
		img.size = 1 << 20
	}
	if img.uid == nil && img.username == "" {
		img.uid = new(int64)
	}
	r.images[img.id] = img
	return img
}

// imageServer is the ImageService.
type imageServer struct {
	runtimeapi.UnimplementedImageServiceServer
	r *Runtime
}

func (s *imageServer) PullImage(ctx context.Context, req *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	full := Normalize(req.GetImage().GetImage())
	s.r.mu.Lock()
	from, ok := s.r.config.Registry[full]
	if s.r.config.Registry == nil {
		ok = true
	}
	s.r.note(Entry{Op: OpPull, Detail: full})
	s.r.mu.Unlock()
	if from.Delay > 0 {
		select {
		case <-time.After(from.Delay):
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
	switch {
	case from.Err != nil:
		return nil, from.Err
	case !ok:
		return nil, status.Errorf(codes.NotFound, "failed to pull and unpack image %q: failed to resolve reference %q: %s: not found", full, full, full)
	case from.Password != "" && req.GetAuth().GetPassword() != from.Password:
		return nil, status.Errorf(codes.Unknown, "failed to pull and unpack image %q: failed to resolve reference %q: authorization failed: no basic auth credentials", full, full)
	}
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	return &runtimeapi.PullImageResponse{ImageRef: s.r.addImage(full, from).id}, nil
}

func (s *imageServer) ImageStatus(_ context.Context, req *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	if img := s.r.image(req.GetImage().GetImage()); img != nil {
		return &runtimeapi.ImageStatusResponse{Image: img.message()}, nil
	}
	return &runtimeapi.ImageStatusResponse{}, nil
}

func (s *imageServer) ListImages(context.Context, *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	resp := &runtimeapi.ListImagesResponse{}
	for _, img := range sorted(s.r.images, func(i *image) time.Time { return i.pulled }) {
		resp.Images = append(resp.Images, img.message())
	}
	return resp, nil
}

func (s *imageServer) RemoveImage(_ context.Context, req *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	if img := s.r.image(req.GetImage().GetImage()); img != nil {
		delete(s.r.images, img.id)
	}
	return &runtimeapi.RemoveImageResponse{}, nil
}

func (s *imageServer) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	var used uint64
	for _, i := range s.r.images {
		used += i.size
	}
	return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: []*runtimeapi.FilesystemUsage{{
		Timestamp: s.r.now().UnixNano(), FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: s.r.config.Dir},
		UsedBytes: &runtimeapi.UInt64Value{Value: used}, InodesUsed: &runtimeapi.UInt64Value{Value: uint64(len(s.r.images))},
	}}}, nil
}
