package main

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
	"github.com/bowline-k8s/bowline/handover"
	"github.com/bowline-k8s/bowline/host/logind"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop"
	"github.com/bowline-k8s/bowline/syncloop/gc"
	"github.com/bowline-k8s/bowline/syncloop/lifecycle"
	"github.com/bowline-k8s/bowline/syncloop/volume"
)

// preStop runs a hook that the container's annotation names.
func (r *release) preStop(ctx context.Context, hooks *lifecycle.Runner, sb *runtimeapi.PodSandbox, c *runtimeapi.Container) {
	h := &v1.LifecycleHandler{}
	if err := json.Unmarshal([]byte(c.GetAnnotations()[pod.AnnotationPreStop]), h); err != nil {
		return // not in words of ours
	}
	ip := ""
	if st, err := r.client.PodSandboxStatus(ctx, sb.GetId()); err == nil {
		ip = st.GetNetwork().GetIp()
	}
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: sb.GetMetadata().GetNamespace(), Name: sb.GetMetadata().GetName(), UID: types.UID(sb.GetMetadata().GetUid())}}
	container := &v1.Container{Name: c.GetMetadata().GetName()}
	_ = json.Unmarshal([]byte(c.GetAnnotations()[pod.AnnotationPorts]), &container.Ports) // for a port that has a name
	if _, err := hooks.Run(ctx, p, c.GetId(), container, h, ip); err != nil {
		r.say("preStop of %s in %s/%s failed", container.Name, p.Namespace, p.Name)
	}
}

const (
	sweepTime  = 3 * time.Minute
	sweepPause = 500 * time.Millisecond
	// quietSweeps in a row find nothing more: a write that was cut off is removed by
	// the second that sees it.
	quietSweeps = 2
)

// list gives everything that the runtime has.
func (r *release) list(ctx context.Context) ([]*runtimeapi.PodSandbox, []*runtimeapi.Container, error) {
	sandboxes, err := r.client.ListPodSandbox(ctx, nil)
	if err != nil {
		return nil, nil, err
	}
	containers, err := r.client.ListContainers(ctx, nil)
	return sandboxes, containers, err
}

// sweep removes what the pods left, by the node's own garbage collection; no pod is
// known to it.
func (r *release) sweep(ctx context.Context) error {
	volumes, err := volume.New(volume.Config{
		Host: r.machine, Objects: noObjects{}, Tokens: noTokens{}, RootDir: r.cfg.RootDirectory,
		Allocatable: func() v1.ResourceList { return nil },
	})
	if err != nil {
		return err
	}
	records := volume.RecordDir(r.cfg.RootDirectory)
	sweeper, err := gc.New(gc.Config{
		Host: r.machine, Runtime: sweepRuntime{r.client, r.machine, func() time.Duration { return r.offset }, r.cfg.PodLogsDirectory, r.list},
		Volumes: volumes, Pods: noPods{}, Owner: r.id.Stamp(), RecordDir: records,
		LogsRoot: r.cfg.PodLogsDirectory, LinksDir: containerLogsDir, MinAge: time.Nanosecond,
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
			return errors.Join(fmt.Errorf("what pods left could not be removed within %s, %d of them have a record still", sweepTime, len(left)), err)
		case <-time.After(sweepPause):
		}
	}
	// A shim that its runtime has forgotten would outlive all of this.
	reaper := &shims.Reaper{Machine: r.machine, Runtime: r.client, Address: r.cfg.SocketPath()}
	if _, err := reaper.Reap(ctx); err != nil {
		return err
	}
	root := r.cfg.RootDirectory
	for _, file := range []string{records, pullRecords(root), syncloop.ResizeRecord(root)} {
		if err := r.machine.Remove(ctx, file); err != nil && !isMissing(err) {
			return fmt.Errorf("remove %s: %w", file, err)
		}
	}
	if err := logind.Restore(ctx, r.machine); err != nil {
		return err
	}
	return handover.RemoveCgroups(ctx, r.machine)
}
