package plan

import (
	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// currentSandbox is the newest sandbox, if it is ready and has the address that it should have. Any
// older ready sandbox is a leftover.
func currentSandbox(o *pod.Observed) *pod.Sandbox {
	if len(o.Sandboxes) > 0 && o.Sandboxes[0].Ready && !o.Sandboxes[0].NoAddress {
		return &o.Sandboxes[0]
	}
	return nil
}

// live reports whether processes of the container may be running. In state Unknown (the runtime
// lost the shim) they may.
func live(c *pod.Container) bool {
	return c.State == pod.StateRunning || c.State == pod.StateUnknown
}

// anyLive reports whether an instance of the named container may be running, in any sandbox.
func (d *decision) anyLive(name string) bool {
	for i := range d.in.Observed.Containers {
		if c := &d.in.Observed.Containers[i]; c.Name == name && live(c) {
			return true
		}
	}
	return false
}

// here returns the newest instance of the named container in the current sandbox, or nil.
func (d *decision) here(name string) *pod.Container {
	if d.sandbox == nil {
		return nil
	}
	for i := range d.in.Observed.Containers {
		if c := &d.in.Observed.Containers[i]; c.Name == name && c.SandboxID == d.sandbox.ID {
			return c
		}
	}
	return nil
}

// sidecarIndex is the index of the named sidecar among the init containers, or -1.
func sidecarIndex(s *v1.PodSpec, name string) int {
	for i := range s.InitContainers {
		if c := &s.InitContainers[i]; c.Name == name && pod.Sidecar(c) {
			return i
		}
	}
	return -1
}

// reported returns the named container's status in the API object, or nil.
func (d *decision) reported(name string) *v1.ContainerStatus {
	if d.in.Pod == nil {
		return nil
	}
	return pod.FindStatus(&d.in.Pod.Status, name)
}
