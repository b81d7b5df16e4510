package plan

import (
	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// resize has the pod's cgroup and its running containers brought to what was
// allocated, once the containers that must restart for it have stopped.
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
	case d.paused(ResizeKey): // containers that are to start do not wait for it
		d.note("the resize is tried again later" + because(d.book.Backoff[ResizeKey]))
	default:
		d.resizing = true
		d.begin(Operation{Kind: OpResize, ID: d.sandbox.ID, Allocated: d.in.Allocated, Was: d.cgroup(),
			Reason: "other resources were allocated"})
	}
}

// resizeDue reports whether there is something to resize in place, and whether a
// container that is resized by a restart is still to stop.
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

// cgroup is what the pod's own cgroup was made for.
func (d *decision) cgroup() Cgroup { return cgroupOf(d.book.Ledger, d.sandbox) }

func cgroupOf(l Ledger, s *pod.Sandbox) Cgroup {
	if c, ok := l.Cgroups[s.ID]; ok {
		return c
	}
	return Cgroup{Allocated: s.Annotations[pod.AnnotationAllocation]}
}

// ActuatedPod is what the pod's own cgroup was made for last, as Input.Allocated writes
// it; empty where the pod has no sandbox that is ready, or nobody knows.
func ActuatedPod(l Ledger, o *pod.Observed) string {
	if s := currentSandbox(o); s != nil {
		return cgroupOf(l, s).Allocated
	}
	return ""
}

// unsized reports whether a container has other resources than were allocated to
// it, and whether its resizePolicy wants it restarted for that.
func (d *decision) unsized(c *pod.Container) (differs, restart bool) {
	spec := resizable(d.spec, c.Name)
	have := Actuated(d.book.Ledger, c)
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

// resizable is the spec of a container that can be resized: any but an ephemeral one.
func resizable(s *v1.PodSpec, name string) *v1.Container {
	for i := range s.EphemeralContainers {
		if s.EphemeralContainers[i].Name == name {
			return nil
		}
	}
	return specOf(s, name)
}

// Actuated is the size that a container has: by its last resize, or by what it was
// made with; nil where nobody knows.
func Actuated(l Ledger, c *pod.Container) *pod.Size {
	if s, ok := l.Sized[c.ID]; ok {
		return &s
	}
	return c.Size
}

// Unsure is the size of a container that is being resized from have to want, of which
// nobody knows how far it came: it differs from any other in what is being changed,
// and in nothing else.
func Unsure(have, want pod.Size) pod.Size {
	if have.CPURequest != want.CPURequest || have.CPULimit != want.CPULimit {
		have.CPURequest, have.CPULimit = -1, -1
	}
	if have.MemoryRequest != want.MemoryRequest || have.MemoryLimit != want.MemoryLimit {
		have.MemoryRequest, have.MemoryLimit = -1, -1
	}
	return have
}

// Resizing reports whether the pod, of which in.Observed tells, does not have yet
// what was allocated to it. Containers that do not run get it when they start.
func Resizing(in Input) bool {
	d := decision{in: &in, spec: &noSpec, book: book{Ledger: in.Ledger}, sandbox: currentSandbox(&in.Observed)}
	if in.Pod == nil || in.Allocated == "" || d.sandbox == nil {
		return false
	}
	d.spec = &in.Pod.Spec
	due, _ := d.resizeDue()
	return due
}
