package fake

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	apievents "github.com/containerd/containerd/api/events"
)

type container struct {
	id      string
	sandbox *sandbox
	config  *runtimeapi.ContainerConfig
	imageID string
	program bool // the image is the test image
	logPath string

	// Runtime.mu guards the following fields.
	state                      runtimeapi.ContainerState
	created, started, finished time.Time
	code                       int32
	reason, message            string
	resources                  *runtimeapi.LinuxContainerResources
	termed                     bool // the stop signal was sent; it is sent only once

	kill     context.CancelFunc // SIGKILL; nil until started
	killOnce sync.Once
	oom      bool
	term     chan struct{}
	forced   chan int32    // an exit that a test requested
	exited   chan struct{} // closed when exited
	log      *logFile
	out      *fanOut // attached clients
	stdin    *stdinPipe
}

func (c *container) name() string {
	m, s := c.config.GetMetadata(), c.sandbox.config.GetMetadata()
	return fmt.Sprintf("%s_%s_%s_%s_%d", m.GetName(), s.GetName(), s.GetNamespace(), s.GetUid(), m.GetAttempt())
}

func (c *container) entry(op Op) Entry {
	m := c.config.GetMetadata()
	return Entry{Op: op, Pod: c.sandbox.pod(), Name: m.GetName(), Attempt: m.GetAttempt(), ID: c.id, SandboxID: c.sandbox.id}
}

func noContainer(id string) error {
	return status.Errorf(codes.NotFound, "an error occurred when try to find container %q: not found", id)
}

func (r *Runtime) container(id string) (*container, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := find(r.containers, id)
	if !ok {
		return nil, noContainer(id)
	}
	return c, nil
}

func (r *Runtime) containersOf(sandboxID string) []*container {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []*container
	for _, c := range sorted(r.containers, func(c *container) time.Time { return c.created }) {
		if c.sandbox.id == sandboxID {
			all = append(all, c)
		}
	}
	return all
}

func (s *runtimeServer) CreateContainer(_ context.Context, req *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	r := s.r
	r.mu.Lock()
	defer r.mu.Unlock()
	sb, ok := find(r.sandboxes, req.PodSandboxId)
	if !ok {
		return nil, status.Errorf(codes.NotFound, "failed to find sandbox id %q: not found", req.PodSandboxId)
	}
	if !sb.ready {
		return nil, status.Errorf(codes.Unknown, "sandbox container %q is not running", sb.id)
	}
	if req.GetConfig().GetMetadata() == nil {
		return nil, status.Error(codes.InvalidArgument, "container config must include metadata")
	}
	c := &container{
		id: newID(), sandbox: sb, config: req.Config, created: r.now(), state: runtimeapi.ContainerState_CONTAINER_CREATED,
		resources: req.Config.GetLinux().GetResources(),
		term:      make(chan struct{}, 8), forced: make(chan int32, 1), exited: make(chan struct{}), out: &fanOut{},
	}
	if c.config.Stdin {
		c.stdin = newStdinPipe(c.config.StdinOnce)
	}
	if holder, taken := r.names[c.name()]; taken {
		return nil, status.Errorf(codes.Unknown, "failed to reserve container name %q: name %q is reserved for %q", c.name(), c.name(), holder)
	}
	img := r.image(c.config.GetImage().GetImage())
	if img == nil {
		return nil, status.Errorf(codes.NotFound, "failed to resolve image %q: not found", c.config.GetImage().GetImage())
	}
	c.imageID = img.id
	c.program = img.holdsTestProgram()
	if sb.config.LogDirectory != "" && c.config.LogPath != "" {
		c.logPath = filepath.Join(sb.config.LogDirectory, c.config.LogPath)
	}
	r.names[c.name()] = c.id
	r.containers[c.id] = c
	r.note(c.entry(OpCreate))
	return &runtimeapi.CreateContainerResponse{ContainerId: c.id}, nil
}

func (s *runtimeServer) RemoveContainer(ctx context.Context, req *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	c, err := s.r.container(req.ContainerId)
	if err != nil {
		return &runtimeapi.RemoveContainerResponse{}, nil
	}
	return &runtimeapi.RemoveContainerResponse{}, s.r.removeContainer(ctx, c)
}

func (r *Runtime) removeContainer(ctx context.Context, c *container) error {
	if err := r.stop(ctx, c, 0); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.containers[c.id] == nil {
		return nil
	}
	if f := r.forgotten[c.id]; f != nil && f.task {
		return status.Errorf(codes.Unknown, "failed to delete containerd container %q: cannot delete running task %v", c.id, c.id)
	}
	delete(r.containers, c.id)
	delete(r.names, c.name())
	r.note(c.entry(OpRemove))
	r.publish("/containers/delete", &apievents.ContainerDelete{ID: c.id})
	return nil
}

func (s *runtimeServer) ListContainers(_ context.Context, req *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	f := req.GetFilter()
	wanted, sandboxID := f.GetId(), f.GetPodSandboxId()
	resp := &runtimeapi.ListContainersResponse{}
	if wanted != "" {
		c, ok := find(s.r.containers, wanted)
		if !ok {
			return resp, nil
		}
		wanted = c.id
	}
	if sandboxID != "" {
		sb, ok := find(s.r.sandboxes, sandboxID)
		if !ok {
			return resp, nil
		}
		sandboxID = sb.id
	}
	for _, c := range sorted(s.r.containers, func(c *container) time.Time { return c.created }) {
		if wanted != "" && c.id != wanted || sandboxID != "" && c.sandbox.id != sandboxID ||
			f.GetState() != nil && f.State.State != c.state || !matches(c.config.Labels, f.GetLabelSelector()) {
			continue
		}
		resp.Containers = append(resp.Containers, &runtimeapi.Container{
			Id: c.id, PodSandboxId: c.sandbox.id, Metadata: c.config.Metadata, Image: c.config.Image, ImageRef: c.imageID,
			ImageId: c.imageID, State: c.state, CreatedAt: c.created.UnixNano(),
			Labels: maps.Clone(c.config.Labels), Annotations: maps.Clone(c.config.Annotations),
		})
	}
	return resp, nil
}

func (s *runtimeServer) ContainerStatus(_ context.Context, req *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	c, ok := find(s.r.containers, req.ContainerId)
	if !ok {
		return nil, noContainer(req.ContainerId)
	}
	ref := c.imageID
	if img := s.r.images[c.imageID]; img != nil && len(img.digests) > 0 {
		ref = img.digests[0]
	}
	st := &runtimeapi.ContainerStatus{
		Id: c.id, Metadata: c.config.Metadata, State: c.state, CreatedAt: c.created.UnixNano(), ExitCode: c.code,
		Image: c.config.Image, ImageRef: ref, ImageId: c.imageID, Reason: c.reason, Message: c.message,
		Labels: maps.Clone(c.config.Labels), Annotations: maps.Clone(c.config.Annotations), Mounts: c.config.Mounts,
		LogPath: c.logPath,
	}
	if c.resources != nil {
		st.Resources = &runtimeapi.ContainerResources{Linux: proto.Clone(c.resources).(*runtimeapi.LinuxContainerResources)}
	}
	if !c.started.IsZero() {
		st.StartedAt = c.started.UnixNano()
	}
	if !c.finished.IsZero() {
		st.FinishedAt = c.finished.UnixNano()
	}
	return &runtimeapi.ContainerStatusResponse{Status: st}, nil
}

func (s *runtimeServer) UpdateContainerResources(_ context.Context, req *runtimeapi.UpdateContainerResourcesRequest) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	c, ok := find(s.r.containers, req.ContainerId)
	if !ok {
		return nil, noContainer(req.ContainerId)
	}
	merged := &runtimeapi.LinuxContainerResources{}
	if c.resources != nil {
		merged = proto.Clone(c.resources).(*runtimeapi.LinuxContainerResources)
	}
	proto.Merge(merged, req.GetLinux())
	c.resources = merged
	e := c.entry(OpUpdate)
	e.Detail = fmt.Sprintf("shares %d quota %d memory %d", merged.CpuShares, merged.CpuQuota, merged.MemoryLimitInBytes)
	s.r.note(e)
	return &runtimeapi.UpdateContainerResourcesResponse{}, nil
}

func (s *runtimeServer) ReopenContainerLog(_ context.Context, req *runtimeapi.ReopenContainerLogRequest) (*runtimeapi.ReopenContainerLogResponse, error) {
	c, err := s.r.container(req.ContainerId)
	if err != nil {
		return nil, err
	}
	s.r.mu.Lock()
	state, log := c.state, c.log
	s.r.mu.Unlock()
	if state != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return nil, status.Error(codes.Unknown, "container is not running")
	}
	if err := log.reopen(); err != nil {
		return nil, status.Error(codes.Unknown, err.Error())
	}
	return &runtimeapi.ReopenContainerLogResponse{}, nil
}
