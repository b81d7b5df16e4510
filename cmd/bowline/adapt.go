package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/cri/stream"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/provider/api"
	"github.com/bowline-k8s/bowline/syncloop"
	"github.com/bowline-k8s/bowline/syncloop/config"
	"github.com/bowline-k8s/bowline/syncloop/gc/choose"
	"github.com/bowline-k8s/bowline/syncloop/pleg"
)

// The types below join packages that do not know each other.

// loopHooks is the loop as virtual-kubelet's side sees it.
type loopHooks struct {
	source *config.API
	loop   *syncloop.Loop
}

func (h *loopHooks) PodByName(namespace, name string) (*v1.Pod, bool) {
	return h.loop.PodByName(namespace, name)
}

func (h *loopHooks) PodChanged(ref pod.Ref) { h.source.Hint(ref.Namespace, ref.Name) }

func (h *loopHooks) TerminateRequested(namespace, name string, uid types.UID) {
	h.source.Hint(namespace, name)
	h.loop.Wake(uid)
}

// apiPods is the loop as the node's HTTP API sees it.
type apiPods struct{ *loopHooks }

func (a apiPods) Pods() []*v1.Pod                 { return a.loop.Pods() }
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

// apiNotFound keeps the loop's words and the API's kind.
type apiNotFound struct{ error }

func (e *apiNotFound) Is(target error) bool {
	return target == api.ErrNotFound
}

// streams are the runtime's verbs for commands and streams.
type streams struct {
	*cri.Client
	dial stream.Dial
}

func (s streams) Proxy(w http.ResponseWriter, r *http.Request, url string, o api.StreamOptions) {
	stream.Proxy(w, r, url, s.dial, stream.Options{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, TTY: o.TTY})
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

// hints reduces the runtime's events to what pleg wants.
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
					continue // if it ended the container, an exit follows
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

// sweepRuntime is the runtime as the garbage collection sees it.
type sweepRuntime struct {
	client *cri.Client
	files  host.Host
	offset func() time.Duration
	// logs is the directory of the pods' logs on the machine.
	logs string

	// list gives everything that the runtime has.
	list func(context.Context) ([]*runtimeapi.PodSandbox, []*runtimeapi.Container, error)
}

func (r sweepRuntime) List(ctx context.Context) ([]choose.Sandbox, []choose.Container, error) {
	sandboxes, containers, err := r.list(ctx)
	if err != nil {
		return nil, nil, err
	}
	var outS []choose.Sandbox
	for _, s := range sandboxes {
		out := choose.Sandbox{ID: s.Id, UID: types.UID(s.Labels[pod.LabelPodUID]), Owner: s.Labels[pod.LabelOwner],
			State: choose.Dead, CreatedAt: time.Unix(0, s.CreatedAt).Add(-r.offset())}
		if s.State == runtimeapi.PodSandboxState_SANDBOX_READY {
			out.State = choose.Running
		}
		outS = append(outS, out)
	}
	var outC []choose.Container
	for _, c := range containers {
		out := choose.Container{ID: c.Id, Name: c.Labels[pod.LabelContainerName], UID: types.UID(c.Labels[pod.LabelPodUID]),
			Owner: c.Labels[pod.LabelOwner], SandboxID: c.PodSandboxId, State: choose.Dead,
			CreatedAt: time.Unix(0, c.CreatedAt).Add(-r.offset()), LogPath: logPath(r.logs, c)}
		switch c.State {
		case runtimeapi.ContainerState_CONTAINER_CREATED:
			out.State = choose.Created
		case runtimeapi.ContainerState_CONTAINER_RUNNING:
			out.State = choose.Running
		case runtimeapi.ContainerState_CONTAINER_UNKNOWN:
			out.State = choose.Unknown
		}
		outC = append(outC, out)
	}
	return outS, outC, nil
}

// logPath is where the log of an instance of ours is, below the directory of all logs.
// A list does not say it; it follows from what the instance is.
func logPath(logs string, c *runtimeapi.Container) string {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: c.Labels[pod.LabelPodNamespace], Name: c.Labels[pod.LabelPodName], UID: types.UID(c.Labels[pod.LabelPodUID]),
	}}
	name := c.Labels[pod.LabelContainerName]
	if p.Namespace == "" || p.Name == "" || p.UID == "" || name == "" || c.Metadata == nil {
		return "" // not of a pod
	}
	return path.Join(spec.LogDir(spec.Machine{PodLogsDir: logs}, p), spec.LogPath(name, c.Metadata.Attempt))
}

func (r sweepRuntime) RemoveContainer(ctx context.Context, id string) error {
	if err := r.client.RemoveContainer(ctx, id); err != nil && !cri.IsNotFound(err) {
		return err
	}
	return nil
}

func (r sweepRuntime) RemoveRemnants(ctx context.Context, uid types.UID, minAge time.Duration) (bool, error) {
	younger, err := r.client.RemoveRemnants(ctx, uid, time.Now().Add(r.offset()-minAge))
	return younger > 0, err
}

func (r sweepRuntime) RemoveSandbox(ctx context.Context, id string) error {
	if err := r.client.StopPodSandbox(ctx, id); err != nil && !cri.IsNotFound(err) {
		return err
	}
	if err := r.client.RemovePodSandbox(ctx, id); err != nil && !cri.IsNotFound(err) {
		return err
	}
	return nil
}
