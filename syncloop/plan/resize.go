package plan

import (
	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// resize plans to resize the pod's cgroup and its running containers to the allocation, once the
// containers that must restart for it have stopped.
func (d *decision) resize() {
	if d.sandbox == nil || d.in.Allocated == "" {
		return
	}
	if d.flying(OpResize, "") {
		d.resizing = true
		d.note("the pod is being resized")
		return
	}
	due, stopping := d.resizeDue()
	switch {
	case !due:
	case stopping:
		d.resizing = true
		d.note("the resize waits for a container to stop")
	case d.paused(ResizeKey): // containers that have to start do not wait for it
		d.note("the resize is tried again later" + because(d.ledger.Backoff(ResizeKey)))
	default:
		d.resizing = true
		d.begin(Operation{Kind: OpResize, ID: d.sandbox.ID, Allocated: d.in.Allocated, Was: d.cgroup(),
			Reason: "other resources were allocated"})
	}
}

// resizeDue reports whether something has to be resized in place, and whether a container that is
// resized by a restart still has to stop.
func (d *decision) resizeDue() (due, stopping bool) {
	has := d.cgroup()
	due = has.Unsure || has.Allocated != "" && has.Allocated != d.in.Allocated
	for i := range d.in.Observed.Containers {
		c := &d.in.Observed.Containers[i]
		if c.State != pod.StateRunning || c.SandboxID != d.sandbox.ID || d.in.Observed.Newest(c.Name) != c {
			continue
		}
		switch differs, restart := d.unsized(c); {
		case restart:
			due, stopping = true, true
		case differs:
			due = true
		}
	}
	return due, stopping
}

// cgroup is the allocation that the pod's own cgroup was sized for.
func (d *decision) cgroup() Cgroup { return cgroupOf(d.ledger.Ledger, d.sandbox) }

func cgroupOf(l Ledger, s *pod.Sandbox) Cgroup {
	if c := l.Sandboxes[s.ID].Cgroup; c != nil {
		return *c
	}
	return Cgroup{Allocated: s.Annotations[pod.AnnotationAllocation]}
}

// ActuatedPod is the allocation that the pod's cgroup was last sized for, in the form of
// Input.Allocated. It is empty if the pod has no current sandbox, or if that is unknown.
func ActuatedPod(l Ledger, o *pod.Observed) string {
	if s := currentSandbox(o); s != nil {
		return cgroupOf(l, s).Allocated
	}
	return ""
}

// unsized reports whether a container has other resources than its allocation, and whether its
// resizePolicy requires a restart for the difference.
func (d *decision) unsized(c *pod.Container) (differs, restart bool) {
	spec := resizable(d.spec, c.Name)
	have := Actuated(d.ledger.Ledger, c)
	if spec == nil || have == nil || d.in.Allocated == "" {
		return false, false
	}
	want := pod.SizeOf(d.spec, spec)
	if want == *have {
		return false, false
	}
	cpu := want.CPURequest != have.CPURequest || want.CPULimit != have.CPULimit
	memory := want.MemoryRequest != have.MemoryRequest || want.MemoryLimit != have.MemoryLimit
	for _, p := range spec.ResizePolicy {
		if p.RestartPolicy == v1.RestartContainer && (p.ResourceName == v1.ResourceCPU && cpu || p.ResourceName == v1.ResourceMemory && memory) {
			return true, true
		}
	}
	return true, false
}

// resizable returns the spec of a container that can be resized: any but an ephemeral one.
func resizable(s *v1.PodSpec, name string) *v1.Container { return pod.Find(pod.Containers(s), name) }

// Actuated is a container's actual size: of its last resize, or else the one that it was created
// with; nil if unknown.
func Actuated(l Ledger, c *pod.Container) *pod.Size {
	if s := l.Containers[c.ID].Size; s != nil {
		return s
	}
	return c.Size
}

// Unsure is the size of a container whose resize from have to want has an unknown result. What is
// being changed differs from every possible size, and the rest stays as in have.
func Unsure(have, want pod.Size) pod.Size {
	if have.CPURequest != want.CPURequest || have.CPULimit != want.CPULimit {
		have.CPURequest, have.CPULimit = -1, -1
	}
	if have.MemoryRequest != want.MemoryRequest || have.MemoryLimit != want.MemoryLimit {
		have.MemoryRequest, have.MemoryLimit = -1, -1
	}
	return have
}

// Resizing reports whether the pod, as in.Observed shows it, does not have its allocation yet.
// Containers that are not running do not count: they get it when they start.
func Resizing(in Input) bool {
	d := decision{in: &in, spec: &noSpec, ledger: cowLedger{Ledger: in.Ledger}, sandbox: currentSandbox(&in.Observed)}
	if in.Pod == nil || in.Allocated == "" || d.sandbox == nil {
		return false
	}
	d.spec = &in.Pod.Spec
	due, _ := d.resizeDue()
	return due
}
