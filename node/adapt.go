package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/cri/stream"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/provider/api"
	"github.com/bowline-k8s/bowline/syncloop"
	"github.com/bowline-k8s/bowline/syncloop/pleg"
)

// The types below adapt packages that do not import each other.

// loopHooks is the sync loop, and its source of pods, as the virtual-kubelet side (package provider)
// calls it.
type loopHooks struct{ *Node }

func (h *loopHooks) PodByName(namespace, name string) (*v1.Pod, bool) {
	return h.loop.PodByName(namespace, name)
}

func (h *loopHooks) TerminateRequested(namespace, name string, uid types.UID) {
	h.api.PodChanged(pod.Ref{Namespace: namespace, Name: name, UID: uid})
	h.loop.Wake(uid)
}

// apiPods is the sync loop as the node's HTTP API calls it.
type apiPods struct{ *loopHooks }

func (a apiPods) Pods() []*v1.Pod                 { return a.loop.Pods() }
func (a apiPods) AllocatedPods() []*v1.Pod        { return a.loop.AllocatedPods() }
func (a apiPods) Resolve(uid types.UID) types.UID { return a.loop.Resolve(uid) }
func (a apiPods) RunningPods(ctx context.Context) ([]*v1.Pod, error) {
	return a.loop.RunningPods(ctx)
}

func (a apiPods) Container(ctx context.Context, namespace, name string, uid types.UID, container string, previous bool) (api.Container, error) {
	c, err := a.loop.Instance(ctx, namespace, name, uid, container, previous)
	return api.Container{ID: c.ID, Running: c.Running, LogPath: c.LogPath}, notFound(err)
}

func (a apiPods) Sandbox(ctx context.Context, namespace, name string, uid types.UID) (string, error) {
	id, err := a.loop.Sandbox(ctx, namespace, name, uid)
	return id, notFound(err)
}

func (a apiPods) Why(_ context.Context, namespace, name string) (*pod.WhyReport, error) {
	report, ok := a.loop.Why(namespace, name)
	if !ok {
		return nil, fmt.Errorf("pod %s/%s is not on this node: %w", namespace, name, api.ErrNotFound)
	}
	return &report, nil
}

func notFound(err error) error {
	if errors.Is(err, syncloop.ErrNotFound) {
		return &apiNotFound{err}
	}
	return err
}

// apiNotFound keeps the sync loop's message and matches api.ErrNotFound.
type apiNotFound struct{ error }

func (e *apiNotFound) Is(target error) bool {
	return target == api.ErrNotFound
}

// streams provides exec, attach, port-forward and /run through the runtime.
type streams struct {
	*cri.Client
	dial stream.Dial
	idle time.Duration
	// untranslated passes the newer WebSocket protocols to the runtime as they are.
	untranslated bool
}

func (s streams) Proxy(w http.ResponseWriter, r *http.Request, url string, o api.StreamOptions) {
	stream.Proxy(w, r, url, s.dial, stream.Options{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, TTY: o.TTY, Idle: s.idle, Untranslated: s.untranslated})
}

// runTimeout bounds a command of the /run endpoint.
const runTimeout = 2 * time.Minute

func (s streams) Run(ctx context.Context, id string, cmd []string) ([]byte, error) {
	result, err := s.ExecSync(ctx, id, cmd, runTimeout)
	if err != nil {
		return nil, err
	}
	output := append(result.Stdout, result.Stderr...)
	if result.ExitCode != 0 {
		return output, fmt.Errorf("command %q exited with %d", strings.Join(cmd, " "), result.ExitCode)
	}
	return output, nil
}

// podEvents records events as the kubelet would.
type podEvents struct{ record.EventRecorder }

func (e podEvents) Event(p *v1.Pod, container, kind, reason, message string) {
	syncloop.Event(e.EventRecorder, p, container, kind, reason, message)
}

// hints converts the runtime's container events into PLEG hints.
func hints(client *cri.Client) func(context.Context) (<-chan pleg.Hint, error) {
	return func(ctx context.Context) (<-chan pleg.Hint, error) {
		events, err := client.Events(ctx)
		if err != nil {
			return nil, err
		}
		out := make(chan pleg.Hint)
		go func() {
			defer budget.From(ctx).Recover("read the runtime's events")
			defer close(out)
			for e := range events {
				h := pleg.Hint{ID: e.ContainerID, Expect: pleg.Ended}
				switch e.Type {
				case cri.EventStarted:
					h.Expect = pleg.Started
				case cri.EventOOM:
					continue // if it killed the container, an exit event follows
				}
				select {
				case out <- h:
				case <-ctx.Done():
					return
				}
			}
		}()
		return out, nil
	}
}
