package release

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/owner"
)

// Runtime is the part of a cri.Client that this package needs.
type Runtime interface {
	ListPodSandbox(ctx context.Context, filter *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error)
	ListContainers(ctx context.Context, filter *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error)
	StopContainer(ctx context.Context, id string, grace time.Duration) error
	StopPodSandbox(ctx context.Context, id string) error
}

// Whose is the owner of the machine by its owner file or, without one, by the stamps of its
// sandboxes. It returns false if there is no owner, or more than one. It is pure.
func Whose(file *owner.Record, sandboxes []owner.Sandbox) (owner.Identity, bool) {
	if file != nil {
		return file.Identity, true
	}
	var id owner.Identity
	for _, s := range sandboxes {
		cluster, node, ok := strings.Cut(s.Stamp, "/")
		switch this := (owner.Identity{ClusterUID: cluster, NodeName: node}); {
		case !ok || this == id:
		case id != owner.Identity{}:
			return owner.Identity{}, false
		default:
			id = this
		}
	}
	return id, id != owner.Identity{}
}

// Seen is what a runtime lists.
type Seen struct {
	Sandboxes  []*runtimeapi.PodSandbox
	Containers []*runtimeapi.Container
}

// See lists all sandboxes and containers of the runtime, of every owner.
func See(ctx context.Context, r Runtime) (s Seen, err error) {
	if s.Sandboxes, err = r.ListPodSandbox(ctx, nil); err != nil {
		return s, fmt.Errorf("list the runtime's sandboxes: %w", err)
	}
	if s.Containers, err = r.ListContainers(ctx, nil); err != nil {
		return s, fmt.Errorf("list the runtime's containers: %w", err)
	}
	return s, nil
}

// AddTo adds the sandboxes and containers to a listing.
func (s Seen) AddTo(l Listing) {
	for _, sb := range s.Sandboxes {
		l[KindSandboxes] = append(l[KindSandboxes], fmt.Sprintf("%s %s", podName(sb), sb.GetId()))
	}
	for _, c := range s.Containers {
		l[KindContainers] = append(l[KindContainers], fmt.Sprintf("%s %s", c.GetMetadata().GetName(), c.GetId()))
	}
}

func podName(sb *runtimeapi.PodSandbox) string {
	return sb.GetMetadata().GetNamespace() + "/" + sb.GetMetadata().GetName()
}

// lister is the part of a host.Host that lists a directory.
type lister interface {
	List(ctx context.Context, dir string) ([]host.FileInfo, error)
}

// Ours is the part with the stamp, and the pods recorded below rootDir.
func (s Seen) Ours(ctx context.Context, m lister, stamp, rootDir string) (Ours, error) {
	var o Ours
	for _, sb := range s.Sandboxes {
		if sb.GetLabels()[pod.LabelOwner] == stamp {
			o.IDs = append(o.IDs, sb.GetId())
			o.Pods = append(o.Pods, sb.GetLabels()[pod.LabelPodUID])
		}
	}
	for _, c := range s.Containers {
		if c.GetLabels()[pod.LabelOwner] == stamp {
			o.IDs = append(o.IDs, c.GetId())
		}
	}
	records, err := m.List(ctx, path.Join(rootDir, "bowline", "pods"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return o, fmt.Errorf("list the records of pods: %w", err)
	}
	for _, r := range records {
		if r.Mode.IsRegular() && !host.IsTemporary(r.Name) {
			o.Pods = append(o.Pods, r.Name)
		}
	}
	return o, nil
}

// Stopper stops the pods of one owner.
type Stopper struct {
	Runtime Runtime
	Stamp   string
	// MaxGrace caps the grace periods; 0: no cap. Each is two seconds at least.
	MaxGrace time.Duration
	// Hook runs a container's preStop hook. Its context ends with the grace period. Its result is
	// ignored, as a kubelet does.
	Hook func(ctx context.Context, sb *runtimeapi.PodSandbox, c *runtimeapi.Container)
	// Step gets each pod when it is stopped. Several goroutines call it.
	Step func(Step)
}

// Stop stops all pods with the stamp in parallel, each with its own grace period.
func (s *Stopper) Stop(ctx context.Context, seen Seen) error {
	var all sync.WaitGroup
	var mu sync.Mutex
	var faults []error
	for _, sb := range seen.Sandboxes {
		if sb.GetLabels()[pod.LabelOwner] != s.Stamp {
			continue
		}
		all.Go(func() {
			defer budget.From(ctx).Recover("the stop of a pod")
			err := budget.ErrPanicked // unless stopPod returns
			defer func() {
				if err != nil {
					mu.Lock()
					defer mu.Unlock()
					faults = append(faults, fmt.Errorf("stop pod %s: %w", podName(sb), err))
				}
			}()
			err = s.stopPod(ctx, sb, seen.Containers)
		})
	}
	all.Wait()
	return errors.Join(faults...)
}

func (s *Stopper) stopPod(ctx context.Context, sb *runtimeapi.PodSandbox, containers []*runtimeapi.Container) error {
	if sb.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY {
		s.Step(Step{What: Stopping, Object: podName(sb)})
	}
	var all sync.WaitGroup
	errs := make([]error, len(containers))
	for i, c := range containers {
		if c.GetPodSandboxId() != sb.GetId() || c.GetLabels()[pod.LabelOwner] != s.Stamp || c.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
			continue
		}
		all.Go(func() {
			defer budget.From(ctx).Recover("the stop of a container")
			errs[i] = budget.ErrPanicked // unless stopContainer returns
			errs[i] = s.stopContainer(ctx, sb, c)
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return s.Runtime.StopPodSandbox(ctx, sb.GetId())
}

// leastGrace is the shortest grace period of a container, as in package syncloop: with less the
// runtime would kill it without the stop signal.
const leastGrace = 2 * time.Second

func (s *Stopper) stopContainer(ctx context.Context, sb *runtimeapi.PodSandbox, c *runtimeapi.Container) error {
	grace := Grace(c.GetAnnotations())
	if s.MaxGrace > 0 {
		grace = min(grace, s.MaxGrace)
	}
	if c.GetAnnotations()[pod.AnnotationPreStop] != "" && grace > 0 {
		began := time.Now()
		hooked, cancel := context.WithTimeout(ctx, grace)
		s.Hook(hooked, sb, c)
		cancel()
		grace -= time.Since(began)
	}
	return s.Runtime.StopContainer(ctx, c.GetId(), max(grace, leastGrace))
}

// defaultGrace is the API's default of terminationGracePeriodSeconds.
const defaultGrace = 30 * time.Second

// Grace is a container's grace period by the annotations that it was created with. It is pure.
func Grace(annotations map[string]string) time.Duration {
	for _, key := range []string{pod.AnnotationPodDeletionGrace, pod.AnnotationPodGrace} {
		if n, err := strconv.ParseInt(annotations[key], 10, 64); err == nil && n >= 0 {
			return time.Duration(n) * time.Second
		}
	}
	return defaultGrace
}

// removeCgroups removes the empty cgroups of the QoS classes, of both cgroup drivers: the runtime's
// driver may have changed.
func removeCgroups(ctx context.Context, m host.Host) error {
	for _, p := range []string{
		"/kubepods/burstable", "/kubepods/besteffort", "/kubepods",
		"/kubepods.slice/kubepods-burstable.slice", "/kubepods.slice/kubepods-besteffort.slice", "/kubepods.slice",
	} {
		children, err := m.ListCgroups(ctx, p)
		if err != nil {
			return fmt.Errorf("list cgroups in %s: %w", p, err)
		}
		if len(children) > 0 {
			continue // it has pods of another owner
		}
		if err := m.RemoveCgroup(ctx, p, false); err != nil {
			return fmt.Errorf("remove cgroup %s: %w", p, err)
		}
	}
	return nil
}
