package pod

import (
	"iter"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// Containers iterates over the init containers of a pod and then its containers, without the
// ephemeral ones.
func Containers(s *v1.PodSpec) iter.Seq[*v1.Container] { return each(s.InitContainers, s.Containers) }

// Statuses iterates over the statuses of Containers.
func Statuses(s *v1.PodStatus) iter.Seq[*v1.ContainerStatus] {
	return each(s.InitContainerStatuses, s.ContainerStatuses)
}

// AllStatuses is Statuses and then those of the ephemeral containers.
func AllStatuses(s *v1.PodStatus) iter.Seq[*v1.ContainerStatus] {
	return each(s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses)
}

func each[T any](lists ...[]T) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for _, list := range lists {
			for i := range list {
				if !yield(&list[i]) {
					return
				}
			}
		}
	}
}

// AllContainers is Containers and then the ephemeral containers.
func AllContainers(s *v1.PodSpec) iter.Seq[*v1.Container] {
	return func(yield func(*v1.Container) bool) {
		for c := range Containers(s) {
			if !yield(c) {
				return
			}
		}
		for i := range s.EphemeralContainers {
			if !yield((*v1.Container)(&s.EphemeralContainers[i].EphemeralContainerCommon)) {
				return
			}
		}
	}
}

// Find returns the container of this name among Containers or AllContainers, or nil.
func Find(containers iter.Seq[*v1.Container], name string) *v1.Container {
	for c := range containers {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// IsInit reports whether the pod has an init container of this name.
func IsInit(s *v1.PodSpec, name string) bool {
	return slices.ContainsFunc(s.InitContainers, func(c v1.Container) bool { return c.Name == name })
}

// FindStatus returns the status of the container of this name, or nil.
func FindStatus(s *v1.PodStatus, name string) *v1.ContainerStatus {
	for c := range AllStatuses(s) {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// Sidecar reports whether an init container keeps running beside the main containers.
func Sidecar(c *v1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways
}

// Terminal reports whether a pod in this phase has ended.
func Terminal(phase v1.PodPhase) bool { return phase == v1.PodSucceeded || phase == v1.PodFailed }
