package fake

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	sandboxapi "github.com/containerd/containerd/api/services/sandbox/v1"
	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	containerdtypes "github.com/containerd/containerd/api/types"
)

// forgotten is what containerd has but its CRI does not know: a task of a container that is only
// created, a whole container, or a sandbox.
type forgotten struct {
	since   time.Time
	labels  map[string]string // of a container; nil if only its task is forgotten
	task    bool
	sandbox bool // a sandbox record without a container
}

// Planter returns a Planter for critest.
func (r *Runtime) Planter() *Planter { return &Planter{r} }

// Planter is a critest.Planter.
type Planter struct{ r *Runtime }

// Task creates a task that the CRI does not know of.
func (p *Planter) Task(_ context.Context, id string) error {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	p.r.forgotten[id] = &forgotten{since: p.r.now(), task: true}
	return nil
}

// Container creates a container, with its task, that the CRI does not know of.
func (p *Planter) Container(_ context.Context, like string) (string, error) {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	c, ok := p.r.containers[like]
	if !ok {
		return "", noContainer(like)
	}
	id := newID()
	p.r.forgotten[id] = &forgotten{since: p.r.now(), labels: c.config.Labels, task: true}
	return id, nil
}

// Sandbox creates the record of a sandbox that has no container.
func (p *Planter) Sandbox(context.Context) (string, func() error, error) {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	id := newID()
	p.r.forgotten[id] = &forgotten{since: p.r.now(), sandbox: true}
	return id, func() error {
		p.r.mu.Lock()
		defer p.r.mu.Unlock()
		delete(p.r.forgotten, id)
		return nil
	}, nil
}

// Left reports whether containerd has anything with this ID.
func (p *Planter) Left(_ context.Context, id string) (bool, error) {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	return p.r.forgotten[id] != nil || p.r.containers[id] != nil, nil
}

type containerServer struct {
	containersapi.UnimplementedContainersServer
	r *Runtime
}

// List supports the two relevant forms of filter: labels."key"=="value" and id=="value".
func (s *containerServer) List(_ context.Context, req *containersapi.ListContainersRequest) (*containersapi.ListContainersResponse, error) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	resp := &containersapi.ListContainersResponse{}
	add := func(id string, labels map[string]string, since time.Time) {
		for _, f := range req.Filters {
			key, value, _ := strings.Cut(f, "==")
			name, isLabel := strings.CutPrefix(key, "labels.")
			if isLabel && fmt.Sprintf("%q", labels[strings.Trim(name, `"`)]) == value || key == "id" && strings.Trim(value, `"`) == id {
				resp.Containers = append(resp.Containers, &containersapi.Container{ID: id, Labels: labels, CreatedAt: timestamppb.New(since)})
			}
		}
	}
	for id, c := range s.r.containers {
		add(id, c.config.Labels, c.created)
	}
	for id, sb := range s.r.sandboxes {
		add(id, sb.config.Labels, sb.created)
	}
	for id, f := range s.r.forgotten {
		if f.labels != nil {
			add(id, f.labels, f.since)
		}
	}
	return resp, nil
}

func (s *containerServer) Delete(_ context.Context, req *containersapi.DeleteContainerRequest) (*emptypb.Empty, error) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	switch f := s.r.forgotten[req.ID]; {
	case f == nil:
		return nil, status.Errorf(codes.NotFound, "container %q: not found", req.ID)
	case f.task:
		return nil, status.Errorf(codes.FailedPrecondition, "cannot delete running task %v", req.ID)
	}
	delete(s.r.forgotten, req.ID)
	return &emptypb.Empty{}, nil
}

type sandboxServer struct {
	sandboxapi.UnimplementedStoreServer
	r *Runtime
}

// List supports only id=="value".
func (s *sandboxServer) List(_ context.Context, req *sandboxapi.StoreListRequest) (*sandboxapi.StoreListResponse, error) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	resp := &sandboxapi.StoreListResponse{}
	for id, f := range s.r.forgotten {
		if f.sandbox && slices.Contains(req.Filters, fmt.Sprintf("id==%q", id)) {
			resp.List = append(resp.List, &containerdtypes.Sandbox{SandboxID: id, CreatedAt: timestamppb.New(f.since)})
		}
	}
	return resp, nil
}

type taskServer struct {
	tasksapi.UnimplementedTasksServer
	r *Runtime
}

// task returns the task of this ID; the caller holds r.mu.
func (s *taskServer) task(id string) (*forgotten, error) {
	if f := s.r.forgotten[id]; f != nil && f.task {
		return f, nil
	}
	return nil, status.Errorf(codes.NotFound, "task %s: not found", id)
}

func (s *taskServer) Kill(_ context.Context, req *tasksapi.KillRequest) (*emptypb.Empty, error) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	_, err := s.task(req.ContainerID)
	return &emptypb.Empty{}, err
}

func (s *taskServer) Wait(_ context.Context, req *tasksapi.WaitRequest) (*tasksapi.WaitResponse, error) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	_, err := s.task(req.ContainerID)
	return &tasksapi.WaitResponse{ExitStatus: 137}, err
}

func (s *taskServer) Delete(_ context.Context, req *tasksapi.DeleteTaskRequest) (*tasksapi.DeleteResponse, error) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	f, err := s.task(req.ContainerID)
	if err != nil {
		return nil, err
	}
	if f.task = false; f.labels == nil {
		delete(s.r.forgotten, req.ContainerID)
	}
	return &tasksapi.DeleteResponse{ID: req.ContainerID, ExitStatus: 137}, nil
}
