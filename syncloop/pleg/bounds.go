package pleg

import (
	"strings"

	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/pod"
)

const (
	// maxRuntimeMessage is how much of the runtime's own message on a container is kept.
	maxRuntimeMessage = 8 << 10
	// maxUID and maxName are the longest labels that pods of ours have.
	maxUID, maxName = 128, 253
	// maxPromises is how many hints may wait for a look; more are a relist.
	maxPromises = 4096
)

// usedAnnotations are those of sandboxes and containers that are read later. A pod's own
// are on its sandbox as well, and are not kept.
var usedAnnotations = []string{
	pod.AnnotationSize, pod.AnnotationAllocation, pod.AnnotationHash, pod.AnnotationRestartCount,
	pod.AnnotationTerminationPath, pod.AnnotationTerminationPolicy, pod.AnnotationPodGrace, pod.AnnotationPodDeletionGrace,
	pod.AnnotationPreStop, pod.AnnotationPorts, pod.AnnotationSource, pod.AnnotationConfigHash,
	pod.AnnotationManifest, pod.AnnotationImage,
}

func used(annotations map[string]string) map[string]string {
	var kept map[string]string
	for _, k := range usedAnnotations {
		if v, ok := annotations[k]; ok {
			if kept == nil {
				kept = make(map[string]string, 4)
			}
			kept[k] = v
		}
	}
	return kept
}

// cut shortens what the runtime says of a container. The copy lets the rest go.
func cut(message string) string {
	if len(message) <= maxRuntimeMessage {
		return message
	}
	return strings.ToValidUTF8(message[:maxRuntimeMessage], "") + "..."
}

// ours tells whether labels are such as we stamp: with our owner, and of a pod that an
// API server could have.
func (g *Generator) ours(labels map[string]string) bool {
	return labels[pod.LabelOwner] == g.cfg.Owner && len(labels[pod.LabelPodUID]) <= maxUID &&
		len(labels[pod.LabelPodNamespace]) <= maxName && len(labels[pod.LabelPodName]) <= maxName && len(labels[pod.LabelContainerName]) <= maxName
}

// Bytes that an observation takes beside its strings, roughly.
const (
	ofPod       = 512
	ofSandbox   = 256
	ofContainer = 512
	ofEntry     = 64
)

// size is what an observation takes in memory, roughly.
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

// affordable tells whether what the cache keeps, with the observation o in the place of
// what it has of that pod, is within the budget. It counts double: the garbage collector
// lets as much again be used before it runs.
func (g *Generator) affordable(o pod.Observed) error {
	return g.cfg.Budget.Check(budget.Memory, 2*g.cache.sizeWith(o), "what is kept of the runtime's statuses")
}
