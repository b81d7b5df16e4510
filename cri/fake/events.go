package fake

import (
	"context"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	eventsapi "github.com/containerd/containerd/api/services/events/v1"
	versionapi "github.com/containerd/containerd/api/services/version/v1"
	"github.com/containerd/containerd/api/types"

	"github.com/bowline-k8s/bowline/notify"
)

// subscriber has its own unlimited queue, as in containerd.
type subscriber struct {
	filters []string
	queue   []*types.Envelope // under Runtime.mu
	wake    notify.Signal
}

// publish queues an event for every subscriber with a matching filter; the caller holds r.mu.
func (r *Runtime) publish(topic string, event proto.Message) {
	payload, err := proto.Marshal(event)
	if err != nil {
		return
	}
	e := &types.Envelope{Timestamp: timestamppb.New(r.now()), Namespace: "k8s.io", Topic: topic, Event: &anypb.Any{
		// containerd's type URL is the bare name.
		TypeUrl: string(event.ProtoReflect().Descriptor().FullName()), Value: payload,
	}}
	for s := range r.subs {
		if s.takes(topic) {
			s.queue = append(s.queue, e)
			s.wake.Send()
		}
	}
}

// takes supports the one relevant form of filter: an exact topic.
func (s *subscriber) takes(topic string) bool {
	for _, f := range s.filters {
		_, want, found := strings.Cut(f, "topic==")
		if !found || strings.Trim(want, `"`) == topic {
			return true
		}
	}
	return len(s.filters) == 0
}

type eventServer struct {
	eventsapi.UnimplementedEventsServer
	r *Runtime
}

func (s *eventServer) Subscribe(req *eventsapi.SubscribeRequest, out eventsapi.Events_SubscribeServer) error {
	return s.r.stream(out.Context(), req.Filters, out.Send)
}

// stream sends one subscriber the events that match its filters, until ctx or the runtime ends.
func (r *Runtime) stream(ctx context.Context, filters []string, send func(*types.Envelope) error) error {
	sub := &subscriber{filters: filters, wake: notify.New()}
	r.mu.Lock()
	r.subs[sub] = true
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.subs, sub)
	}()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.life.Done():
			return r.life.Err()
		case <-sub.wake:
		}
		r.mu.Lock()
		queue := sub.queue
		sub.queue = nil
		r.mu.Unlock()
		for _, e := range queue {
			if err := send(e); err != nil {
				return err
			}
		}
	}
}

// Subscribers returns how many event streams are open.
func (r *Runtime) Subscribers() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.subs)
}

type versionServer struct {
	versionapi.UnimplementedVersionServer
}

func (versionServer) Version(context.Context, *emptypb.Empty) (*versionapi.VersionResponse, error) {
	return &versionapi.VersionResponse{Version: "v2.0.0-fake", Revision: "fake"}, nil
}
