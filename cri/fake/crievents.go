package fake

import (
	"google.golang.org/protobuf/proto"

	apievents "github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/api/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// GetContainerEvents serves the CRI's own events.
func (s *runtimeServer) GetContainerEvents(_ *runtimeapi.GetEventsRequest, out runtimeapi.RuntimeService_GetContainerEventsServer) error {
	if !s.r.config.CRIEvents {
		return nil // as CRI-O does
	}
	return s.r.stream(out.Context(), nil, func(e *types.Envelope) error {
		response := criEvent(e)
		if response == nil {
			return nil
		}
		return out.Send(response)
	})
}

// criEvent converts a containerd event to the CRI's; nil if there is none.
func criEvent(e *types.Envelope) *runtimeapi.ContainerEventResponse {
	var id string
	var kind runtimeapi.ContainerEventType
	value := e.GetEvent().GetValue()
	switch e.Topic {
	case "/tasks/start":
		var start apievents.TaskStart
		_ = proto.Unmarshal(value, &start)
		id, kind = start.ContainerID, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT
	case "/tasks/exit":
		var exit apievents.TaskExit
		if _ = proto.Unmarshal(value, &exit); exit.ID != exit.ContainerID {
			return nil // of an exec in the container
		}
		id, kind = exit.ContainerID, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT
	case "/containers/delete":
		var deleted apievents.ContainerDelete
		_ = proto.Unmarshal(value, &deleted)
		id, kind = deleted.ID, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT
	default:
		return nil
	}
	return &runtimeapi.ContainerEventResponse{ContainerId: id, ContainerEventType: kind, CreatedAt: e.Timestamp.AsTime().UnixNano()}
}
