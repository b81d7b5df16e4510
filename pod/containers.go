package pod

import (
	"iter"

	v1 "k8s.io/api/core/v1"
)

// Containers iterates over the init containers of a pod and then its containers, without the
// ephemeral ones.
func Containers(s *v1.PodSpec) iter.Seq[*v1.Container] {
	return func(yield func(*v1.Container) bool) {
		for _, list := range [][]v1.Container{s.InitContainers, s.Containers} {
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

// Terminal reports whether a pod in this phase has ended.
func Terminal(phase v1.PodPhase) bool { return phase == v1.PodSucceeded || phase == v1.PodFailed }
