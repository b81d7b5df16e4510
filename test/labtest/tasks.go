package labtest

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/containerd/containerd/api/events"
	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	eventsapi "github.com/containerd/containerd/api/services/events/v1"
	containerdtypes "github.com/containerd/containerd/api/types"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	kubelettypes "k8s.io/kubelet/pkg/types"
)

// Tasks follows containerd's own events of creates, starts and exits on a host, independent of the
// process that manages it. containerd's event service has a queue for each subscriber: no event is
// lost, and a slow subscriber does not delay others.
type Tasks struct {
	Conn *grpc.ClientConn // to containerd's socket

	cancel context.CancelFunc
	done   chan struct{}

	mu              sync.Mutex
	creates, starts int
	instances       map[string]*Instance
	order           []string
	err             error
}

// Instance is one container in containerd: a pod's container or its sandbox.
type Instance struct {
	ID      string
	Sandbox bool
	// The pod and container, as in the CRI; empty if the container was gone before it could be
	// looked up.
	Namespace, Pod, UID, Container string
	Attempt                        int
	// When containerd says that it was created, its process started, and ended; zero if that has
	// not happened.
	Created, Started, Exited time.Time
	PID                      int // on the machine, from its start
	Code                     int // exit code
}

// Runs reports whether its process was started and has not ended.
func (i *Instance) Runs() bool { return !i.Started.IsZero() && i.Exited.IsZero() }

// Topics of containerd's events.
const (
	topicCreate = "/containers/create"
	topicStart  = "/tasks/start"
	topicExit   = "/tasks/exit"
)

// WatchTasks begins to follow the containerd at a socket; Stop ends it.
func WatchTasks(ctx context.Context, socket string) (*Tasks, error) {
	conn, err := grpc.NewClient("passthrough:///containerd", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		}))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(context.WithoutCancel(ctx), "containerd-namespace", "k8s.io"))
	var filters []string
	for _, topic := range []string{topicCreate, topicStart, topicExit} {
		filters = append(filters, fmt.Sprintf("namespace==k8s.io,topic==%q", topic))
	}
	stream, err := eventsapi.NewEventsClient(conn).Subscribe(ctx, &eventsapi.SubscribeRequest{Filters: filters})
	if err != nil {
		cancel()
		_ = conn.Close()
		return nil, err
	}
	w := &Tasks{Conn: conn, cancel: cancel, done: make(chan struct{}), instances: map[string]*Instance{}}
	go func() {
		defer close(w.done)
		for {
			e, err := stream.Recv()
			if err == nil {
				err = w.take(ctx, e)
			}
			if err != nil {
				w.mu.Lock()
				w.err = fmt.Errorf("follow containerd's events: %w", err)
				w.mu.Unlock()
				return
			}
		}
	}()
	return w, nil
}

// take records one event.
func (w *Tasks) take(ctx context.Context, e *containerdtypes.Envelope) error {
	at := e.Timestamp.AsTime()
	switch e.Topic {
	case topicCreate:
		var c events.ContainerCreate
		if err := proto.Unmarshal(e.Event.GetValue(), &c); err != nil {
			return err
		}
		who := w.identify(ctx, c.ID)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.creates++
		i := w.instance(c.ID)
		who.ID, who.Created, who.Started, who.Exited, who.PID, who.Code = i.ID, at, i.Started, i.Exited, i.PID, i.Code
		*i = who
	case topicStart:
		var s events.TaskStart
		if err := proto.Unmarshal(e.Event.GetValue(), &s); err != nil {
			return err
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.starts++
		i := w.instance(s.ContainerID)
		i.Started, i.PID = at, int(s.Pid)
	case topicExit:
		var x events.TaskExit
		if err := proto.Unmarshal(e.Event.GetValue(), &x); err != nil {
			return err
		}
		if x.ID != x.ContainerID {
			return nil // an exec in the container
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		i := w.instance(x.ContainerID)
		i.Exited, i.Code = x.ExitedAt.AsTime(), int(x.ExitStatus)
	}
	return nil
}

// instance returns the instance with this ID, and makes it if it is new. The caller holds w.mu.
func (w *Tasks) instance(id string) *Instance {
	i := w.instances[id]
	if i == nil {
		i = &Instance{ID: id}
		w.instances[id] = i
		w.order = append(w.order, id)
	}
	return i
}

// identify asks containerd for the pod of a container.
func (w *Tasks) identify(ctx context.Context, id string) Instance {
	r, err := containersapi.NewContainersClient(w.Conn).Get(ctx, &containersapi.GetContainerRequest{ID: id})
	if err != nil {
		return Instance{} // it has gone already
	}
	labels := r.Container.Labels
	i := Instance{
		Sandbox:   labels["io.cri-containerd.kind"] == "sandbox",
		Namespace: labels[kubelettypes.KubernetesPodNamespaceLabel],
		Pod:       labels[kubelettypes.KubernetesPodNameLabel],
		UID:       labels[kubelettypes.KubernetesPodUIDLabel],
		Container: labels[kubelettypes.KubernetesContainerNameLabel],
	}
	for name, extension := range r.Container.Extensions {
		if name != "io.cri-containerd.container.metadata" {
			continue
		}
		var kept struct {
			Metadata struct {
				Config struct {
					Metadata struct {
						Attempt int `json:"attempt"`
					} `json:"metadata"`
				}
			}
		}
		if json.Unmarshal(extension.GetValue(), &kept) == nil {
			i.Attempt = kept.Metadata.Config.Metadata.Attempt
		}
	}
	return i
}

// Counts returns the creates and starts so far, and an error if some are missing.
func (w *Tasks) Counts() (creates, starts int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.creates, w.starts, w.err
}

// Instances returns the instances so far, in the order of their first event, and an error if some
// are missing.
func (w *Tasks) Instances() ([]Instance, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := make([]Instance, 0, len(w.order))
	for _, id := range w.order {
		list = append(list, *w.instances[id])
	}
	return slices.Clip(list), w.err
}

// Stop ends it.
func (w *Tasks) Stop() {
	w.cancel()
	<-w.done
	_ = w.Conn.Close()
}
