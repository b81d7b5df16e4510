package plan

import (
	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// currentSandbox is the newest sandbox if it is ready and has an address where it is
// to have one; an older one that is ready is a leftover.
func currentSandbox(o *pod.Observed) *pod.Sandbox {
	if len(o.Sandboxes) > 0 && o.Sandboxes[0].Ready && !o.Sandboxes[0].NoAddress {
		return &o.Sandboxes[0]
	}
	return nil
}

// live reports whether processes of the container may be running. A runtime
// that lost its shim (Unknown) cannot tell, so it may.
func live(c *pod.Container) bool {
	return c.State == pod.StateRunning || c.State == pod.StateUnknown
}

// anyLive reports whether an instance of the named container may be running, in
// any sandbox.
func (d *decision) anyLive(name string) bool {
	for i := range d.in.Observed.Containers {
		if c := &d.in.Observed.Containers[i]; c.Name == name && live(c) {
			return true
		}
	}
	return false
}

// here is the newest instance of the named container in the current sandbox.
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

// specOf is the named container's spec, or nil: init, main, then ephemeral.
func specOf(s *v1.PodSpec, name string) *v1.Container {
	for i := range s.InitContainers {
		if s.InitContainers[i].Name == name {
			return &s.InitContainers[i]
		}
	}
	for i := range s.Containers {
		if s.Containers[i].Name == name {
			return &s.Containers[i]
		}
	}
	for i := range s.EphemeralContainers {
		if s.EphemeralContainers[i].Name == name {
			return (*v1.Container)(&s.EphemeralContainers[i].EphemeralContainerCommon)
		}
	}
	return nil
}

// sidecar reports whether an init container is kept running (restartPolicy Always).
func sidecar(c *v1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways
}

// sidecarIndex is the place of the named sidecar among the init containers, or -1.
func sidecarIndex(s *v1.PodSpec, name string) int {
	for i := range s.InitContainers {
		if c := &s.InitContainers[i]; c.Name == name && sidecar(c) {
			return i
		}
	}
	return -1
}

// reported is the named container's status as the API server has it, or nil.
func (d *decision) reported(name string) *v1.ContainerStatus {
	if d.in.Pod == nil {
		return nil
	}
	st := &d.in.Pod.Status
	for _, list := range [...][]v1.ContainerStatus{st.ContainerStatuses, st.InitContainerStatuses, st.EphemeralContainerStatuses} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}
