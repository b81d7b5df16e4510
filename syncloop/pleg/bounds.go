package pleg

import (
	"errors"
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/pod"
)

const (
	// maxRuntimeMessage is how many bytes of the runtime's own message about a container are kept.
	maxRuntimeMessage = 8 << 10
	// maxUID and maxName are the longest label values that our pods have.
	maxUID, maxName = 128, 253
	// maxPendingHints is how many hints may wait for a look; beyond that, each triggers a relist.
	maxPendingHints = 4096
)

// usedAnnotations are the annotations of sandboxes and containers that are read later. The others
// are not kept, such as the pod's own annotations on its sandbox. The preStop hook of a container and
// the ports that the hook may name can be long, and only a running container needs them.
var (
	usedAnnotations = []string{
		pod.AnnotationSize, pod.AnnotationAllocation, pod.AnnotationHash, pod.AnnotationRestartCount,
		pod.AnnotationPodGrace, pod.AnnotationPodDeletionGrace, pod.AnnotationSource, pod.AnnotationConfigHash,
		pod.AnnotationManifest, pod.AnnotationImage,
	}
	usedWhileRunning = slices.Concat(usedAnnotations, []string{pod.AnnotationPreStop, pod.AnnotationPorts})
)

// used returns the annotations with these keys.
func used(annotations map[string]string, keys []string) map[string]string {
	var kept map[string]string
	for _, k := range keys {
		if v, ok := annotations[k]; ok {
			if kept == nil {
				kept = make(map[string]string, 4)
			}
			kept[k] = v
		}
	}
	return kept
}

// cut shortens the runtime's message about a container. The copy frees the rest.
func cut(message string) string {
	if len(message) <= maxRuntimeMessage {
		return message
	}
	return strings.ToValidUTF8(message[:maxRuntimeMessage], "") + "..."
}

// shorten cuts the messages of a pod's containers to their share of spec.MaxMessages, if all together
// are longer.
func shorten(all []pod.Container) {
	total := 0
	for i := range all {
		total += len(all[i].Message)
	}
	if total <= spec.MaxMessages {
		return
	}
	share := spec.MaxMessages / len(all)
	for i := range all {
		if m := all[i].Message; len(m) > share {
			all[i].Message = strings.Clone(strings.ToValidUTF8(m[:share], "")) // to free the rest
		}
	}
}

// tooLarge reports whether err is about a status that is too large to read.
func tooLarge(err error) bool {
	var e *budget.ExceededError
	return errors.As(err, &e) && e.Kind != budget.OpenCalls
}

// unread is the status of a container whose own is too large to read. A container that was never
// started properly has an error that quotes its command, and the list has everything else that is
// needed to remove it. The end of one that has exited is unknown; a kubelet then reports the same.
func unread(c *runtimeapi.Container) *runtimeapi.ContainerStatus {
	st := &runtimeapi.ContainerStatus{Id: c.Id, Metadata: c.Metadata, State: c.State, CreatedAt: c.CreatedAt, Image: c.Image,
		ImageRef: c.ImageRef, ImageId: c.ImageId, Labels: c.Labels, Annotations: c.Annotations}
	if c.State != runtimeapi.ContainerState_CONTAINER_CREATED {
		st.StartedAt = c.CreatedAt
	}
	if c.State == runtimeapi.ContainerState_CONTAINER_EXITED {
		st.ExitCode, st.Reason = 137, "ContainerStatusUnknown"
		st.Message = "The runtime's status of the container is too large to read"
	}
	return st
}

// ours reports whether labels carry our owner stamp, and a pod that an API server could have.
func (g *Generator) ours(labels map[string]string) bool {
	return labels[pod.LabelOwner] == g.cfg.Owner && len(labels[pod.LabelPodUID]) <= maxUID &&
		len(labels[pod.LabelPodNamespace]) <= maxName && len(labels[pod.LabelPodName]) <= maxName && len(labels[pod.LabelContainerName]) <= maxName
}

// Approximate size in bytes of the parts of an observation, without its strings.
const (
	ofPod       = 512
	ofSandbox   = 256
	ofContainer = 512
	ofEntry     = 64
)

// size returns the approximate size of an observation in memory.
func size(o pod.Observed) int64 {
	n := ofPod + len(o.Ref.Namespace) + len(o.Ref.Name) + len(o.Ref.UID) + len(o.Stale)
	for i := range o.Sandboxes {
		s := &o.Sandboxes[i]
		n += ofSandbox + len(s.ID) + len(s.RuntimeHandler) + entries(s.Annotations)
		for _, ip := range s.IPs {
			n += 16 + len(ip)
		}
	}
	for i := range o.Containers {
		c := &o.Containers[i]
		n += ofContainer + len(c.ID) + len(c.Name) + len(c.SandboxID) + len(c.Reason) + len(c.Message) +
			len(c.Image) + len(c.ImageRef) + len(c.ImageID) + len(c.LogPath) + entries(c.Annotations)
		if c.User != nil {
			n += 8 * len(c.User.SupplementalGroups)
		}
	}
	return int64(n)
}

func entries(m map[string]string) (n int) {
	for k, v := range m {
		n += ofEntry + len(k) + len(v)
	}
	return n
}

// affordable returns an error if the cache would exceed the memory budget with o in place of that
// pod's old observation. The size counts double, because the garbage collector lets the heap grow
// to about twice the live data before it runs.
func (g *Generator) affordable(o pod.Observed) error {
	return g.cfg.Budget.Check(budget.Memory, 2*g.cache.sizeWith(o), "what is kept of the runtime's statuses")
}
