package fake

import (
	"context"
	"maps"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// containerMemory and containerDisk are the usage of each running container, in bytes.
// SetMemoryUsage overrides the memory.
const (
	containerMemory = 4 << 20
	containerDisk   = 4 << 10
)

// SetMemoryUsage sets the reported memory usage of each container, in bytes.
func (r *Runtime) SetMemoryUsage(bytes uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.memoryUsage = bytes
}

func (s *runtimeServer) ListContainerStats(_ context.Context, req *runtimeapi.ListContainerStatsRequest) (*runtimeapi.ListContainerStatsResponse, error) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	f, resp := req.GetFilter(), &runtimeapi.ListContainerStatsResponse{}
	at := s.r.now().UnixNano()
	memory := &runtimeapi.UInt64Value{Value: containerMemory}
	if s.r.memoryUsage != 0 {
		memory.Value = s.r.memoryUsage
	}
	for _, c := range sorted(s.r.containers, func(c *container) time.Time { return c.created }) {
		if c.state != runtimeapi.ContainerState_CONTAINER_RUNNING || f.GetId() != "" && f.GetId() != c.id ||
			f.GetPodSandboxId() != "" && f.GetPodSandboxId() != c.sandbox.id || !matches(c.config.Labels, f.GetLabelSelector()) {
			continue
		}
		resp.Stats = append(resp.Stats, &runtimeapi.ContainerStats{
			Attributes: &runtimeapi.ContainerAttributes{Id: c.id, Metadata: c.config.Metadata, Labels: maps.Clone(c.config.Labels), Annotations: maps.Clone(c.config.Annotations)},
			Memory:     &runtimeapi.MemoryUsage{Timestamp: at, UsageBytes: memory, WorkingSetBytes: memory},
			WritableLayer: &runtimeapi.FilesystemUsage{Timestamp: at, UsedBytes: &runtimeapi.UInt64Value{Value: containerDisk},
				InodesUsed: &runtimeapi.UInt64Value{Value: 1}},
		})
	}
	return resp, nil
}
