package pleg

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/pod"
)

// Runtime is the part of the CRI that a look calls.
type Runtime interface {
	ListPodSandbox(ctx context.Context, f *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error)
	PodSandboxStatus(ctx context.Context, id string) (*runtimeapi.PodSandboxStatus, error)
	ListContainers(ctx context.Context, f *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error)
	ContainerStatus(ctx context.Context, id string) (*runtimeapi.ContainerStatus, error)
}

// listed are the sandboxes and containers of one pod in the replies of the two list calls.
type listed struct {
	ref        pod.Ref
	sandboxes  []*runtimeapi.PodSandbox
	containers []*runtimeapi.Container
}

// lists is the result of the list calls: as the runtime returned it, and our objects by pod.
// foreign counts the sandboxes that do not carry our stamp.
type lists struct {
	sandboxes  []*runtimeapi.PodSandbox
	containers []*runtimeapi.Container
	byUID      map[types.UID]*listed
	foreign    int
}

// list lists everything, or one pod if uid is set.
func (g *Generator) list(ctx context.Context, uid types.UID) (lists, error) {
	var sf *runtimeapi.PodSandboxFilter
	var cf *runtimeapi.ContainerFilter
	if uid != "" {
		sel := map[string]string{pod.LabelPodUID: string(uid), pod.LabelOwner: g.cfg.Owner}
		sf = &runtimeapi.PodSandboxFilter{LabelSelector: sel}
		cf = &runtimeapi.ContainerFilter{LabelSelector: sel}
	}
	// In parallel: over SSH a look takes as long as its round trips.
	var containers []*runtimeapi.Container
	asked := make(chan error, 1)
	go func() {
		err := budget.ErrPanicked
		defer g.cfg.Budget.Recover("list the containers")
		defer func() { asked <- err }()
		containers, err = g.cfg.Runtime.ListContainers(ctx, cf)
	}()
	sandboxes, err := g.cfg.Runtime.ListPodSandbox(ctx, sf)
	errContainers := <-asked
	if err != nil {
		return lists{}, fmt.Errorf("list sandboxes: %w", err)
	}
	if errContainers != nil {
		return lists{}, fmt.Errorf("list containers: %w", errContainers)
	}
	byUID, foreign := map[types.UID]*listed{}, 0
	at := func(labels map[string]string) *listed {
		id := types.UID(labels[pod.LabelPodUID])
		l := byUID[id]
		if l == nil {
			l = &listed{ref: pod.Ref{Namespace: labels[pod.LabelPodNamespace], Name: labels[pod.LabelPodName], UID: id}}
			byUID[id] = l
		}
		return l
	}
	for _, s := range sandboxes {
		if !g.ours(s.Labels) {
			foreign++
			continue
		}
		l := at(s.Labels)
		l.sandboxes = append(l.sandboxes, s)
	}
	for _, c := range containers {
		if !g.ours(c.Labels) {
			continue
		}
		l := at(c.Labels)
		l.containers = append(l.containers, c)
	}
	if err := g.cfg.Budget.Check(budget.Pods, int64(len(byUID)), "the pods that the runtime shows as ours"); err != nil {
		return lists{}, err
	}
	return lists{sandboxes, containers, byUID, foreign}, nil
}

// unchanged reports whether the lists show exactly what old already holds.
func unchanged(l *listed, old pod.Observed) bool {
	if len(l.sandboxes) != len(old.Sandboxes) || len(l.containers) != len(old.Containers) {
		return false
	}
	for _, s := range l.sandboxes {
		o := findSandbox(old.Sandboxes, s.Id)
		if o == nil || o.Ready != (s.State == runtimeapi.PodSandboxState_SANDBOX_READY) {
			return false
		}
	}
	for _, c := range l.containers {
		o := findContainer(old.Containers, c.Id)
		if o == nil || o.State != stateOf(c.State) {
			return false
		}
	}
	return true
}

func findSandbox(all []pod.Sandbox, id string) *pod.Sandbox {
	for i := range all {
		if all[i].ID == id {
			return &all[i]
		}
	}
	return nil
}

func findContainer(all []pod.Container, id string) *pod.Container {
	for i := range all {
		if all[i].ID == id {
			return &all[i]
		}
	}
	return nil
}

// prefetched holds statuses that Observe requested in parallel with the lists. A status is used only
// if the lists show the same state.
type prefetched struct {
	sandboxes  map[string]*runtimeapi.PodSandboxStatus
	containers map[string]*runtimeapi.ContainerStatus
}

// prefetch requests the statuses of what changed. It ignores errors: the look requests a missing
// status again.
func (g *Generator) prefetch(ctx context.Context, changed Changed) (f prefetched) {
	if changed.Sandbox != "" {
		if st, err := g.cfg.Runtime.PodSandboxStatus(ctx, changed.Sandbox); err == nil {
			f.sandboxes = map[string]*runtimeapi.PodSandboxStatus{changed.Sandbox: st}
		}
	}
	if changed.Container != "" {
		if st, err := g.cfg.Runtime.ContainerStatus(ctx, changed.Container); err == nil {
			f.containers = map[string]*runtimeapi.ContainerStatus{changed.Container: st}
		}
	}
	return f
}

// sandboxes returns the sandboxes of an observation. It copies those whose state did not change
// from old and requests the status of the rest. It omits a sandbox that vanished between list and
// status.
func (g *Generator) sandboxes(ctx context.Context, l *listed, old pod.Observed, early prefetched) ([]pod.Sandbox, error) {
	var all []pod.Sandbox
	for _, s := range l.sandboxes {
		ready := s.State == runtimeapi.PodSandboxState_SANDBOX_READY
		if known := findSandbox(old.Sandboxes, s.Id); known != nil && known.Ready == ready {
			all = append(all, *known)
			continue
		}
		if st := early.sandboxes[s.Id]; st != nil && st.State == s.State {
			all = append(all, g.sandbox(st, old))
			continue
		}
		st, err := g.cfg.Runtime.PodSandboxStatus(ctx, s.Id)
		if g.cfg.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("status of sandbox %s: %w", s.Id, err)
		}
		all = append(all, g.sandbox(st, old))
	}
	sort.SliceStable(all, func(i, j int) bool {
		a, b := all[i], all[j]
		if a.Attempt != b.Attempt {
			return a.Attempt > b.Attempt
		}
		return a.CreatedAt.After(b.CreatedAt)
	})
	return all, nil
}

// containers returns the containers of an observation, in the same way as sandboxes.
func (g *Generator) containers(ctx context.Context, l *listed, old pod.Observed, early prefetched) ([]pod.Container, error) {
	var all []pod.Container
	for _, c := range l.containers {
		if known := findContainer(old.Containers, c.Id); known != nil && known.State == stateOf(c.State) {
			all = append(all, *known)
			continue
		}
		if st := early.containers[c.Id]; st != nil && st.State == c.State {
			all = append(all, g.container(ctx, st, c.PodSandboxId, old))
			continue
		}
		st, err := g.cfg.Runtime.ContainerStatus(ctx, c.Id)
		if g.cfg.IsNotFound(err) {
			continue
		}
		if tooLarge(err) {
			st, err = unread(c), nil
		}
		if err != nil {
			return nil, fmt.Errorf("status of container %s: %w", c.Id, err)
		}
		all = append(all, g.container(ctx, st, c.PodSandboxId, old))
	}
	sort.SliceStable(all, func(i, j int) bool {
		a, b := all[i], all[j]
		if a.Name != b.Name {
			return a.Name < b.Name
		}
		if a.Attempt != b.Attempt {
			return a.Attempt > b.Attempt
		}
		return a.CreatedAt.After(b.CreatedAt)
	})
	shorten(all)
	return all, nil
}

func (g *Generator) sandbox(st *runtimeapi.PodSandboxStatus, old pod.Observed) pod.Sandbox {
	known := findSandbox(old.Sandboxes, st.Id)
	if known == nil {
		known = &pod.Sandbox{}
	}
	s := pod.Sandbox{
		ID:             st.Id,
		Attempt:        st.GetMetadata().GetAttempt(),
		Ready:          st.State == runtimeapi.PodSandboxState_SANDBOX_READY,
		CreatedAt:      g.ourTime(st.CreatedAt, known.CreatedAt, old.At),
		HostNetwork:    st.GetLinux().GetNamespaces().GetOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE,
		RuntimeHandler: st.RuntimeHandler,
		Annotations:    used(st.Annotations, usedAnnotations),
	}
	if users := st.GetLinux().GetNamespaces().GetOptions().GetUsernsOptions(); users.GetMode() == runtimeapi.NamespaceMode_POD && len(users.GetUids()) > 0 {
		s.Users = &pod.IDRange{HostID: users.Uids[0].HostId, Length: users.Uids[0].Length}
	}
	if ip := st.GetNetwork().GetIp(); ip != "" {
		s.IPs = append(s.IPs, ip)
	}
	for _, ip := range st.GetNetwork().GetAdditionalIps() {
		s.IPs = append(s.IPs, ip.Ip)
	}
	s.NoAddress = st.Network != nil && st.Network.Ip == "" && !s.HostNetwork
	return s
}

func (g *Generator) container(ctx context.Context, st *runtimeapi.ContainerStatus, sandboxID string, old pod.Observed) pod.Container {
	known := findContainer(old.Containers, st.Id)
	if known == nil {
		known = &pod.Container{}
	}
	keys := usedAnnotations
	if st.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
		keys = usedWhileRunning
	}
	c := pod.Container{
		ID:          st.Id,
		Name:        st.Labels[pod.LabelContainerName],
		SandboxID:   sandboxID,
		Attempt:     attemptOf(st),
		State:       stateOf(st.State),
		CreatedAt:   g.ourTime(st.CreatedAt, known.CreatedAt, old.At),
		StartedAt:   g.ourTime(st.StartedAt, known.StartedAt, old.At),
		FinishedAt:  g.ourTime(st.FinishedAt, known.FinishedAt, old.At),
		ExitCode:    st.ExitCode,
		Reason:      st.Reason,
		Message:     cut(st.Message),
		Image:       st.GetImage().GetUserSpecifiedImage(),
		ImageRef:    st.ImageRef,
		ImageID:     st.ImageId,
		LogPath:     st.LogPath,
		SpecHash:    st.Annotations[pod.AnnotationHash],
		Annotations: used(st.Annotations, keys),
		Size:        pod.ParseSize(st.Annotations[pod.AnnotationSize]),
		Crashes:     crashesOf(st),
		StopSignal:  spec.SignalName(st.StopSignal),
	}
	c.Resources = resources(st.GetResources().GetLinux(), c.Size)
	if c.Image == "" {
		c.Image = st.GetImage().GetImage()
	}
	if u := st.GetUser().GetLinux(); u != nil {
		c.User = &pod.User{UID: u.Uid, GID: u.Gid, SupplementalGroups: slices.Clone(u.SupplementalGroups[:min(len(u.SupplementalGroups), spec.MaxGroups)])}
	}
	if c.State == pod.StateExited {
		c.Message = cut(g.terminationMessage(ctx, st))
	}
	return c
}

// resources converts the kernel's values back to amounts. Values that the runtime does not report
// come from made, the size at creation. The result is nil if neither has a value.
func resources(r *runtimeapi.LinuxContainerResources, made *pod.Size) *pod.Size {
	var out pod.Size
	if made != nil {
		out = *made
	}
	if r.GetCpuShares() > 0 {
		out.CPURequest = (r.CpuShares*1000 + 1023) / 1024
	}
	if r.GetCpuPeriod() > 0 && r.GetCpuQuota() > 0 {
		out.CPULimit = r.CpuQuota * 1000 / r.CpuPeriod
	}
	if r.GetMemoryLimitInBytes() > 0 {
		out.MemoryLimit = r.MemoryLimitInBytes
	}
	if out == (pod.Size{}) {
		return nil
	}
	return &out
}

// attemptOf prefers the annotation: containerd keeps both, other runtimes may not.
func attemptOf(st *runtimeapi.ContainerStatus) uint32 {
	if n, err := strconv.ParseUint(st.Annotations[pod.AnnotationRestartCount], 10, 32); err == nil {
		return uint32(n)
	}
	return st.GetMetadata().GetAttempt()
}

// crashesOf returns nil for a container that carries no crash count.
func crashesOf(st *runtimeapi.ContainerStatus) *uint32 {
	n, err := strconv.ParseUint(st.Annotations[pod.AnnotationCrashes], 10, 32)
	if err != nil {
		return nil
	}
	crashes := uint32(n)
	return &crashes
}

func stateOf(s runtimeapi.ContainerState) pod.ContainerState {
	switch s {
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		return pod.StateCreated
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		return pod.StateRunning
	case runtimeapi.ContainerState_CONTAINER_EXITED:
		return pod.StateExited
	}
	return pod.StateUnknown
}

// Tolerances for times that the runtime reports.
const (
	// lateShow is how long after an exit the runtime's lists may first show it.
	lateShow = 10 * time.Second
	// clockSlack is how far a time may be off before the clock offset is in doubt.
	clockSlack = 2 * time.Second
)

// ourTime converts the host's nanoseconds to our clock; zero stays zero. A time that is already
// known is kept, because the host's clock may have been set since. after is when we last looked at
// the pod, by our clock. An event that the last look did not show happened after it; if the host's
// clock says otherwise, that clock was set, and ourTime reports the offset as doubtful. The result
// has no monotonic reading, because it is compared with times from the API.
func (g *Generator) ourTime(ns int64, known, after time.Time) time.Time {
	if ns <= 0 {
		return time.Time{}
	}
	if !known.IsZero() {
		return known
	}
	t, now := time.Unix(0, ns).Add(-g.cfg.ClockOffset()), time.Now()
	if t.After(now.Add(clockSlack)) || t.Before(after.Add(-lateShow)) {
		g.cfg.ClockDoubt()
	}
	switch {
	case t.After(now):
		return now.Round(0)
	case t.Before(after.Add(-lateShow)):
		return after.Round(0)
	}
	return t
}
