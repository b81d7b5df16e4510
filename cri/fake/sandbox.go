package fake

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	apievents "github.com/containerd/containerd/api/events"
)

type sandbox struct {
	id      string
	config  *runtimeapi.PodSandboxConfig
	handler string
	ready   bool
	ip      string // empty on the host network
	created time.Time
	// listeners of its containers, by the port that the program asked for.
	listeners map[int]net.Listener
}

func (s *sandbox) name() string {
	m := s.config.GetMetadata()
	return fmt.Sprintf("%s_%s_%s_%d", m.GetName(), m.GetNamespace(), m.GetUid(), m.GetAttempt())
}

func (s *sandbox) pod() string {
	m := s.config.GetMetadata()
	return fmt.Sprintf("%s/%s (%s)", m.GetNamespace(), m.GetName(), m.GetUid())
}

func (s *sandbox) state() runtimeapi.PodSandboxState {
	if s.ready {
		return runtimeapi.PodSandboxState_SANDBOX_READY
	}
	return runtimeapi.PodSandboxState_SANDBOX_NOTREADY
}

func (s *sandbox) hostNetwork() bool {
	return s.config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE
}

func noSandbox(id string) error {
	return status.Errorf(codes.NotFound, "an error occurred when try to find sandbox %q: not found", id)
}

func (s *runtimeServer) RunPodSandbox(_ context.Context, req *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	if req.GetConfig().GetMetadata() == nil {
		return nil, status.Error(codes.InvalidArgument, "sandbox config must include metadata")
	}
	r := s.r
	r.mu.Lock()
	defer r.mu.Unlock()
	sb := &sandbox{id: newID(), config: req.Config, handler: req.RuntimeHandler, ready: true, created: r.now(), listeners: map[int]net.Listener{}}
	if holder, taken := r.names[sb.name()]; taken {
		return nil, status.Errorf(codes.Unknown, "failed to reserve sandbox name %q: name %q is reserved for %q", sb.name(), sb.name(), holder)
	}
	if !sb.hostNetwork() {
		if c := r.conditions[runtimeapi.NetworkReady]; !c.Status {
			return nil, status.Errorf(codes.Unknown, "failed to setup network for sandbox %q: cni plugin not initialized", sb.id)
		}
		r.lastIP++
		sb.ip = fmt.Sprintf("10.88.%d.%d", r.lastIP/250, r.lastIP%250+2)
	}
	r.names[sb.name()] = sb.id
	r.sandboxes[sb.id] = sb
	r.note(Entry{Op: OpRunSandbox, Pod: sb.pod(), ID: sb.id, SandboxID: sb.id, Attempt: sb.config.Metadata.Attempt})
	r.publish("/tasks/start", &apievents.TaskStart{ContainerID: sb.id, Pid: 1})
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: sb.id}, nil
}

func (s *runtimeServer) StopPodSandbox(ctx context.Context, req *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	s.r.mu.Lock()
	sb, ok := find(s.r.sandboxes, req.PodSandboxId)
	s.r.mu.Unlock()
	if !ok {
		return &runtimeapi.StopPodSandboxResponse{}, nil
	}
	return &runtimeapi.StopPodSandboxResponse{}, s.r.stopSandbox(ctx, sb)
}

func (r *Runtime) stopSandbox(ctx context.Context, sb *sandbox) error {
	for _, c := range r.containersOf(sb.id) {
		if err := r.stop(ctx, c, 0); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endSandbox(sb)
	return nil
}

// endSandbox marks the sandbox not ready, once; the caller holds r.mu.
func (r *Runtime) endSandbox(sb *sandbox) {
	if !sb.ready {
		return
	}
	sb.ready = false
	sb.ip = ""
	for _, l := range sb.listeners {
		_ = l.Close()
	}
	r.note(Entry{Op: OpStopSandbox, Pod: sb.pod(), ID: sb.id, SandboxID: sb.id})
	r.publish("/tasks/exit", &apievents.TaskExit{ContainerID: sb.id, ID: sb.id, Pid: 1, ExitStatus: 137})
	r.publish("/tasks/delete", &apievents.TaskDelete{ContainerID: sb.id, Pid: 1, ExitStatus: 137})
}

func (s *runtimeServer) RemovePodSandbox(ctx context.Context, req *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	r := s.r
	r.mu.Lock()
	sb, ok := find(r.sandboxes, req.PodSandboxId)
	r.mu.Unlock()
	if !ok {
		return &runtimeapi.RemovePodSandboxResponse{}, nil
	}
	if err := r.stopSandbox(ctx, sb); err != nil {
		return nil, err
	}
	for _, c := range r.containersOf(sb.id) {
		if err := r.removeContainer(ctx, c); err != nil {
			return nil, err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sandboxes[sb.id] == nil {
		return &runtimeapi.RemovePodSandboxResponse{}, nil
	}
	delete(r.sandboxes, sb.id)
	delete(r.names, sb.name())
	r.note(Entry{Op: OpRemoveSandbox, Pod: sb.pod(), ID: sb.id, SandboxID: sb.id})
	r.publish("/containers/delete", &apievents.ContainerDelete{ID: sb.id})
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

func (s *runtimeServer) PodSandboxStatus(_ context.Context, req *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	sb, ok := find(s.r.sandboxes, req.PodSandboxId)
	if !ok {
		return nil, noSandbox(req.PodSandboxId)
	}
	return &runtimeapi.PodSandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{
		Id: sb.id, Metadata: sb.config.Metadata, State: sb.state(), CreatedAt: sb.created.UnixNano(),
		Network: &runtimeapi.PodSandboxNetworkStatus{Ip: sb.ip},
		Linux: &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{
			Options: sb.config.GetLinux().GetSecurityContext().GetNamespaceOptions(),
		}},
		Labels: maps.Clone(sb.config.Labels), Annotations: maps.Clone(sb.config.Annotations), RuntimeHandler: sb.handler,
	}}, nil
}

func (s *runtimeServer) ListPodSandbox(_ context.Context, req *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	f := req.GetFilter()
	wanted := f.GetId()
	if wanted != "" {
		sb, ok := find(s.r.sandboxes, wanted)
		if !ok {
			return &runtimeapi.ListPodSandboxResponse{}, nil
		}
		wanted = sb.id
	}
	resp := &runtimeapi.ListPodSandboxResponse{}
	for _, sb := range sorted(s.r.sandboxes, func(s *sandbox) time.Time { return s.created }) {
		if wanted != "" && sb.id != wanted || f.GetState() != nil && f.State.State != sb.state() ||
			!matches(sb.config.Labels, f.GetLabelSelector()) {
			continue
		}
		resp.Items = append(resp.Items, &runtimeapi.PodSandbox{
			Id: sb.id, Metadata: sb.config.Metadata, State: sb.state(), CreatedAt: sb.created.UnixNano(),
			Labels: maps.Clone(sb.config.Labels), Annotations: maps.Clone(sb.config.Annotations), RuntimeHandler: sb.handler,
		})
	}
	return resp, nil
}

// sorted returns the values, oldest first.
func sorted[V any](m map[string]V, created func(V) time.Time) []V {
	return slices.SortedFunc(maps.Values(m), func(a, b V) int { return created(a).Compare(created(b)) })
}

// FailSandbox makes a sandbox not ready, as the death of its pause process does. Its containers
// continue to run, as with a real runtime.
func (r *Runtime) FailSandbox(id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	sb, ok := find(r.sandboxes, id)
	if !ok {
		return noSandbox(id)
	}
	r.endSandbox(sb)
	return nil
}

// RemoveAnnotation removes an annotation of a sandbox, as if another program had made the sandbox.
func (r *Runtime) RemoveAnnotation(id, key string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	sb, ok := find(r.sandboxes, id)
	if !ok {
		return noSandbox(id)
	}
	annotations := maps.Clone(sb.config.Annotations)
	delete(annotations, key)
	sb.config.Annotations = annotations
	return nil
}
