package cri

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/time/rate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"

	apievents "github.com/containerd/containerd/api/events"
	eventsapi "github.com/containerd/containerd/api/services/events/v1"
	versionapi "github.com/containerd/containerd/api/services/version/v1"
	"github.com/containerd/containerd/api/types"
)

// namespace is the containerd namespace of the CRI's containers.
const namespace = "k8s.io"

// eventBuffer is how many events may be queued for a slow reader.
const eventBuffer = 1024

// Events are read at up to eventRate bytes per second, with bursts of eventBurst. An event counts as
// at least eventCost bytes. What a runtime sends beyond that waits on the host: a flood of events must
// not take CPU time from other hosts. A node that starts all its pods at once stays below the burst.
const (
	eventRate  = 1 << 20
	eventBurst = 8 << 20
	eventCost  = 512
)

// maxEventID is the longest ID in an event, in bytes. Runtimes give IDs of 64.
const maxEventID = 128

// ErrNoEvents means that the runtime has no usable event service; relist instead.
var ErrNoEvents = errors.New("the runtime serves no container events")

// EventType is the kind of an event.
type EventType int

const (
	EventStarted EventType = iota + 1 // a container's process started
	EventExited                       // a container's process exited
	EventOOM                          // the kernel's OOM killer acted in the container's cgroup
	EventDeleted                      // the container, or its task, was removed
)

var eventNames = [...]string{"Invalid", "Started", "Exited", "OOM", "Deleted"}

func (t EventType) String() string {
	if t < 0 || int(t) >= len(eventNames) {
		return eventNames[0]
	}
	return eventNames[t]
}

// Event is a hint that something changed; the truth is a list or a status.
type Event struct {
	// ContainerID is the container, or the sandbox if this is the sandbox's own process: containerd
	// has one ID namespace for both, so look up both.
	ContainerID string
	// SandboxID is set only if the event explicitly names a sandbox.
	SandboxID string
	Type      EventType
}

// topics are the subscribed topics. The exit of an exec in a container also comes under
// /tasks/exit; decode drops it by its ID.
var topics = []string{"/tasks/start", "/tasks/exit", "/tasks/oom", "/tasks/delete", "/containers/delete", "/sandboxes/exit"}

// Events subscribes to the events of the CRI's containers: containerd's native events, or with
// other runtimes those of the CRI (GetContainerEvents). ErrNoEvents means that the runtime has
// neither.
//
// The channel closes when the stream ends, for any reason: the runtime or the link went away, ctx
// ended, or the reader was so slow that events had to be dropped. Relist after every subscription:
// what happened during its setup may have no event.
//
// containerd's GetContainerEvents is not used: one stalled subscriber blocks container starts on
// the whole host. With CRI-O it blocks only other subscribers.
func (c *Client) Events(ctx context.Context) (<-chan Event, error) {
	native, err := c.nativeEvents(ctx)
	if errors.Is(err, ErrNoEvents) {
		return c.criEvents(ctx)
	}
	return native, err
}

func (c *Client) nativeEvents(ctx context.Context) (<-chan Event, error) {
	ctx = containerdContext(ctx)
	// A subscription returns nothing before its first event, so only a unary call shows whether the
	// service exists.
	if _, err := versionapi.NewVersionClient(c.conn).Version(ctx, &emptypb.Empty{}); err != nil {
		if IsUnimplemented(err) {
			return nil, ErrNoEvents
		}
		return nil, fmt.Errorf("subscribe to the runtime's events: %w", err)
	}
	filters := make([]string, 0, len(topics))
	for _, t := range topics {
		filters = append(filters, fmt.Sprintf("namespace==%s,topic==%q", namespace, t))
	}
	ctx, cancel := context.WithCancel(ctx)
	stream, err := eventsapi.NewEventsClient(c.conn).Subscribe(ctx, &eventsapi.SubscribeRequest{Filters: filters})
	if err != nil {
		cancel()
		return nil, fmt.Errorf("subscribe to the runtime's events: %w", err)
	}
	return c.forward(ctx, cancel, func() (Event, int, error) {
		envelope, err := stream.Recv()
		if err != nil {
			return Event{}, 0, err
		}
		e, ok := decode(envelope)
		return e.ifHint(ok), proto.Size(envelope), nil
	}), nil
}

// forward sends the events that next returns to a channel, until next fails or the reader falls
// behind; then it ends the stream. next also returns the size of what it read, and the zero Event if
// that is no hint.
func (c *Client) forward(ctx context.Context, cancel func(), next func() (Event, int, error)) <-chan Event {
	out := make(chan Event, eventBuffer)
	pace := rate.NewLimiter(eventRate, eventBurst)
	c.streams.Add(1)
	go func() {
		defer c.config.Budget.Recover("read the runtime's events")
		defer c.streams.Done()
		defer close(out)
		defer cancel()
		for {
			e, size, err := next()
			if err != nil || pace.WaitN(ctx, min(max(size, eventCost), eventBurst)) != nil {
				return
			}
			if e.Type == 0 {
				continue
			}
			select {
			case out <- e:
			default:
				return
			}
		}
	}()
	return out
}

// decode decodes the events that serve as hints; it drops others and malformed ones.
func decode(envelope *types.Envelope) (Event, bool) {
	any := envelope.GetEvent()
	name := any.GetTypeUrl()
	name = name[strings.LastIndexByte(name, '/')+1:]
	switch name {
	case "containerd.events.TaskStart":
		var e apievents.TaskStart
		return Event{Type: EventStarted}.with(any, &e, &e.ContainerID)
	case "containerd.events.TaskExit":
		var e apievents.TaskExit
		event, ok := Event{Type: EventExited}.with(any, &e, &e.ContainerID)
		return event, ok && (e.ID == "" || e.ID == e.ContainerID)
	case "containerd.events.TaskOOM":
		var e apievents.TaskOOM
		return Event{Type: EventOOM}.with(any, &e, &e.ContainerID)
	case "containerd.events.TaskDelete":
		var e apievents.TaskDelete
		event, ok := Event{Type: EventDeleted}.with(any, &e, &e.ContainerID)
		return event, ok && (e.ID == "" || e.ID == e.ContainerID)
	case "containerd.events.ContainerDelete":
		var e apievents.ContainerDelete
		return Event{Type: EventDeleted}.with(any, &e, &e.ID)
	case "containerd.events.SandboxExit":
		var e apievents.SandboxExit
		event, ok := Event{Type: EventExited}.with(any, &e, &e.SandboxID)
		event.SandboxID = event.ContainerID
		return event, ok
	}
	return Event{}, false
}

// with unmarshals the payload and sets the ID from it.
func (e Event) with(any *anypb.Any, into proto.Message, id *string) (Event, bool) {
	if err := proto.Unmarshal(any.GetValue(), into); err != nil {
		return Event{}, false
	}
	e.ContainerID = *id
	return e.checked()
}

// ifHint returns the zero Event if e is no hint.
func (e Event) ifHint(hint bool) Event {
	if !hint {
		return Event{}
	}
	return e
}

// checked drops an event without an ID, or with one that no runtime gives. Readers keep the IDs of
// thousands of events, so a host must not choose their size.
func (e Event) checked() (Event, bool) {
	if e.ContainerID == "" || len(e.ContainerID) > maxEventID {
		return Event{}, false
	}
	return e, true
}
