package syncloop

import (
	"context"
	"errors"
	"fmt"
	"maps"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/allocation"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

// resize changes the pod's cgroup and its running containers to the allocation. It first raises the
// limits of the pod's cgroup, then resizes each container, then lowers the limits of the pod's
// cgroup, so that no container ever has more than its pod. out contains the completed steps, also
// after an error.
func (j *job) resize(ctx context.Context, out *plan.Outcome) error {
	m := j.machine()
	was, ok := pod.ParseAllocation(j.op.Was.Allocated)
	if !ok {
		was = pod.AllocationOf(j.pod)
	}
	have, want := spec.PodCgroup(was.Apply(j.pod), m), spec.PodCgroup(j.pod, m)
	containers := j.unsized()
	if err := j.roomToShrink(ctx, have, want, containers); err != nil {
		return err
	}
	record := allocation.Resized{Sandbox: j.op.ID, Allocation: pod.AllocationOf(j.pod), Was: &was, Sized: j.ledger.Sizes()}
	size := func(c *pod.Container) pod.Size { return pod.SizeOf(&j.pod.Spec, j.resizable(c)) }
	for _, c := range containers {
		record.Sized[c.ID] = plan.Unsure(*plan.Actuated(j.ledger, c), size(c))
	}
	// The next process must know that the resize began.
	if err := j.loop.allocation.Save(ctx, j.pod.UID, record); err != nil {
		return err
	}
	grow, shrink := spec.ResizeCgroup(have, want)
	err := j.podCgroup(ctx, m, grow)
	if j.op.Was.Unsure { // the cgroup may exceed the allocation until its containers have shrunk
		shrink = want
		if err != nil && !cri.IsTransport(err) && !errors.Is(err, host.ErrUnreachable) {
			klog.FromContext(ctx).V(1).Info("Failed to grow the pod's cgroup, will retry", "err", err)
			err = nil
		}
	}
	if err != nil {
		return err
	}
	out.Sized = make(map[string]pod.Size, len(containers))
	for _, c := range containers {
		out.Sized[c.ID] = record.Sized[c.ID]
		given := &runtimeapi.ContainerResources{Linux: spec.ContainerResources(j.pod, j.resizable(c), m)}
		if err := j.loop.cfg.Runtime.UpdateContainerResources(ctx, c.ID, given); err != nil {
			return fmt.Errorf("resize container %q: %w", c.Name, err)
		}
		out.Sized[c.ID] = size(c)
	}
	if err := j.podCgroup(ctx, m, shrink); err != nil {
		return err
	}
	record.Was = nil
	record.Sized = maps.Clone(record.Sized) // the saved map is shared
	maps.Copy(record.Sized, out.Sized)
	return j.loop.allocation.Save(ctx, j.pod.UID, record)
}

// unsized returns the running containers whose size is not the allocated one.
func (j *job) unsized() []*pod.Container {
	var out []*pod.Container
	for i := range j.observed.Containers {
		c := &j.observed.Containers[i]
		if c.State != pod.StateRunning || c.SandboxID != j.op.ID || j.observed.Newest(c.Name) != c {
			continue
		}
		s, have := j.resizable(c), plan.Actuated(j.ledger, c)
		if s != nil && have != nil && *have != pod.SizeOf(&j.pod.Spec, s) {
			out = append(out, c)
		}
	}
	return out
}

// podCgroup sets the limits of the pod's cgroup; it does nothing if limits has none.
func (j *job) podCgroup(ctx context.Context, m spec.Machine, limits spec.CgroupLimits) error {
	if limits.CPUShares == 0 && limits.CPUQuotaUS == 0 && limits.MemoryBytes == 0 {
		return nil
	}
	if err := j.loop.cfg.Host.EnsureCgroup(ctx, spec.CgroupPath(j.pod, m), host.CgroupResources(limits)); err != nil {
		return fmt.Errorf("resize the pod's cgroup: %w", err)
	}
	return nil
}

// roomToShrink returns an error if a memory limit is to be lowered below the current usage. The
// kernel would kill a process, or refuse with the resize half done.
func (j *job) roomToShrink(ctx context.Context, have, want spec.CgroupLimits, containers []*pod.Container) error {
	lowered := func(from, to int64) bool { return to > 0 && (from <= 0 || to < from) }
	limits := map[string]int64{}
	for _, c := range containers {
		to := pod.SizeOf(&j.pod.Spec, j.resizable(c)).MemoryLimit
		if lowered(plan.Actuated(j.ledger, c).MemoryLimit, to) {
			limits[c.ID] = to
		}
	}
	whole := lowered(have.MemoryBytes, want.MemoryBytes)
	if !whole && len(limits) == 0 {
		return nil
	}
	stats, err := j.loop.cfg.Runtime.ListContainerStats(ctx, j.op.ID)
	if err != nil {
		return fmt.Errorf("unable to read memory usage for pod %q: %w", j.pod.Name+"_"+j.pod.Namespace+"("+string(j.pod.UID)+")", err)
	}
	var errs []error
	total := uint64(0)
	for _, s := range stats {
		used := s.GetMemory().GetUsageBytes().GetValue()
		total += used
		if limit, ok := limits[s.GetAttributes().GetId()]; ok && used >= uint64(limit) {
			errs = append(errs, fmt.Errorf("attempting to set container %q memory limit (%d) below current usage (%d)",
				s.GetAttributes().GetMetadata().GetName(), limit, used))
		}
	}
	if whole && total >= uint64(want.MemoryBytes) {
		errs = append([]error{fmt.Errorf("attempting to set pod memory limit (%d) below current usage (%d)", want.MemoryBytes, total)}, errs...)
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("cannot decrease memory limits: %w", errors.Join(errs...))
}

// resizable returns the spec of a container of the pod, or nil if it is ephemeral.
func (j *job) resizable(c *pod.Container) *v1.Container {
	return pod.Find(pod.Containers(&j.pod.Spec), c.Name)
}
