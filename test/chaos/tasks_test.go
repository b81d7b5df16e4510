package chaos

import (
	"context"
	"net"
	"strings"
	"sync"

	eventsapi "github.com/containerd/containerd/api/services/events/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
)

// tasks counts what containerd itself says of creates and starts.
type tasks struct {
	conn   *grpc.ClientConn
	cancel context.CancelFunc
	done   chan struct{}

	mu              sync.Mutex
	creates, starts int
	err             error
}

func watchTasks(ctx context.Context, socket string) (*tasks, error) {
	conn, err := grpc.NewClient("passthrough:///containerd", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		}))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(context.WithoutCancel(ctx), "containerd-namespace", "k8s.io"))
	stream, err := eventsapi.NewEventsClient(conn).Subscribe(ctx, &eventsapi.SubscribeRequest{
		Filters: []string{`namespace==k8s.io,topic=="/containers/create"`, `namespace==k8s.io,topic=="/tasks/start"`},
	})
	if err != nil {
		cancel()
		_ = conn.Close()
		return nil, err
	}
	w := &tasks{conn: conn, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		for {
			e, err := stream.Recv()
			w.mu.Lock()
			if err != nil {
				w.err = err
				w.mu.Unlock()
				return
			}
			if strings.HasPrefix(e.Topic, "/containers/") {
				w.creates++
			} else {
				w.starts++
			}
			w.mu.Unlock()
		}
	}()
	return w, nil
}

// counts of creates and starts so far; an error if they are not all that were.
func (w *tasks) counts() (creates, starts int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.creates, w.starts, w.err
}

func (w *tasks) stop() {
	w.cancel()
	<-w.done
	_ = w.conn.Close()
}
