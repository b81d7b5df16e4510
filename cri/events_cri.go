package cri

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/host/budget"
)

// refusalTime is how long a runtime has to end an event stream that it does not serve: CRI-O
// without enable_pod_events ends it at once, without an error. A stream that it does serve sends
// nothing before the first event.
const refusalTime = 2 * time.Second

// received is one message of the stream.
type received struct {
	response *runtimeapi.ContainerEventResponse
	err      error
}

// criEvents subscribes to the CRI's own events.
func (c *Client) criEvents(ctx context.Context) (<-chan Event, error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := c.runtime.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		cancel()
		return nil, fmt.Errorf("subscribe to the runtime's events: %w", err)
	}
	first := make(chan received, 1)
	go func() {
		got := received{err: budget.ErrPanicked}
		defer c.config.Budget.Recover("read the runtime's first event")
		defer func() { first <- got }()
		got.response, got.err = stream.Recv()
	}()
	// held is an event that came while we waited; it is forwarded first.
	var held *received
	select {
	case got := <-first:
		if got.err != nil {
			cancel()
			if errors.Is(got.err, io.EOF) || status.Code(got.err) == codes.Unimplemented {
				return nil, ErrNoEvents
			}
			return nil, fmt.Errorf("subscribe to the runtime's events: %w", got.err)
		}
		held = &got
	case <-time.After(refusalTime):
	}
	return c.forward(ctx, cancel, func() (Event, int, error) {
		var got received
		switch {
		case held != nil:
			got, held = *held, nil
		case first != nil:
			got = <-first
		default:
			got.response, got.err = stream.Recv()
		}
		first = nil
		if got.err != nil {
			return Event{}, 0, got.err
		}
		e, ok := decodeCRI(got.response)
		return e.ifHint(ok), proto.Size(got.response), nil
	}), nil
}

// decodeCRI decodes an event of the CRI. It drops the creation of containers: we created them.
func decodeCRI(r *runtimeapi.ContainerEventResponse) (Event, bool) {
	e := Event{ContainerID: r.GetContainerId()}
	switch r.GetContainerEventType() {
	case runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT:
		e.Type = EventStarted
	case runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT:
		e.Type = EventExited
	case runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT:
		e.Type = EventDeleted
	default:
		return Event{}, false
	}
	return e.checked()
}
