package release

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri/shims"

	"github.com/bowline-k8s/bowline/host/logind"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/allocation"
	"github.com/bowline-k8s/bowline/syncloop/gc"
	"github.com/bowline-k8s/bowline/syncloop/images"
	"github.com/bowline-k8s/bowline/syncloop/lifecycle"
	"github.com/bowline-k8s/bowline/syncloop/volume"
)

// preStop runs the preStop hook that the container's annotation names.
func (r *Release) preStop(ctx context.Context, hooks *lifecycle.Runner, sb *runtimeapi.PodSandbox, c *runtimeapi.Container) {
	h := &v1.LifecycleHandler{}
	if err := json.Unmarshal([]byte(c.GetAnnotations()[pod.AnnotationPreStop]), h); err != nil {
		return // not written by Bowline
	}
	ip := ""
	if st, err := r.client.PodSandboxStatus(ctx, sb.GetId()); err == nil {
		ip = st.GetNetwork().GetIp()
	}
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: sb.GetMetadata().GetNamespace(), Name: sb.GetMetadata().GetName(), UID: types.UID(sb.GetMetadata().GetUid())}}
	container := &v1.Container{Name: c.GetMetadata().GetName()}
	_ = json.Unmarshal([]byte(c.GetAnnotations()[pod.AnnotationPorts]), &container.Ports) // to resolve a named port
	if _, err := hooks.Run(ctx, p, c.GetId(), container, h, ip); err != nil {
		r.Step(Step{What: HookFailed, Object: p.Namespace + "/" + p.Name, Container: container.Name})
	}
}

const (
	sweepTime  = 3 * time.Minute
	sweepPause = 500 * time.Millisecond
	// quietSweeps is how many sweeps in a row must find nothing. An interrupted write is removed
	// only by the second sweep that sees it.
	quietSweeps = 2
)

// list returns all sandboxes and containers of the runtime.
func (r *Release) list(ctx context.Context) ([]*runtimeapi.PodSandbox, []*runtimeapi.Container, error) {
	seen, err := See(ctx, r.client)
	return seen.Sandboxes, seen.Containers, err
}

// sweep removes what the pods left, with the node's own garbage collector, to which no pod is
// known.
func (r *Release) sweep(ctx context.Context) error {
	volumes, err := volume.New(volume.Config{
		Host: r.machine, Objects: noObjects{}, Tokens: noTokens{}, RootDir: r.Cfg.RootDirectory,
		Allocatable: func() v1.ResourceList { return nil },
	})
	if err != nil {
		return err
	}
	records := volume.RecordDir(r.Cfg.RootDirectory)
	sweeper, err := gc.New(gc.Config{
		Host: r.machine, Runtime: gc.CRI{
			Client: r.client, Files: r.machine, Offset: func() time.Duration { return r.offset }, Logs: r.Cfg.PodLogsDirectory, ListAll: r.list,
		},
		Volumes: volumes, Pods: noPods{}, Owner: r.id.Stamp(), RecordDir: records,
		LogsRoot: r.Cfg.PodLogsDirectory, LinksDir: gc.ContainerLogsDir, MinAge: time.Nanosecond,
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, sweepTime)
	defer cancel()
	for quiet := 0; quiet < quietSweeps; {
		result, err := sweeper.Sweep(ctx)
		left, leftErr := r.machine.List(ctx, records)
		switch {
		case err == nil && result.Empty() && result.Records+result.CutOff == 0 && (len(left) == 0 || isMissing(leftErr)):
			quiet++
			continue
		default:
			quiet = 0
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("could not remove everything that pods left within %s; %d pods still have a record", sweepTime, len(left)), err)
		case <-time.After(sweepPause):
		}
	}
	// A shim that the runtime has forgotten would survive all of this.
	reaper := &shims.Reaper{Machine: r.machine, Runtime: r.client, Address: r.Cfg.SocketPath()}
	if _, err := reaper.Reap(ctx); err != nil {
		return err
	}
	root := r.Cfg.RootDirectory
	for _, file := range []string{records, images.RecordFile(root), allocation.Checkpoint(root)} {
		if err := r.machine.Remove(ctx, file); err != nil && !isMissing(err) {
			return fmt.Errorf("remove %s: %w", file, err)
		}
	}
	if err := logind.Restore(ctx, r.machine); err != nil {
		return err
	}
	return removeCgroups(ctx, r.machine)
}
