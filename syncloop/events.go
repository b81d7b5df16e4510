package syncloop

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/bowline-k8s/bowline/pod"
)

// event records an event on the pod, or on one of its containers.
func (l *Loop) event(p *v1.Pod, container, kind, reason, message string) {
	Event(l.cfg.Recorder, p, container, kind, reason, message)
}

// Event records an event as a kubelet does: on the pod, with the container's field path if it is
// about one.
func Event(r record.EventRecorder, p *v1.Pod, container, kind, reason, message string) {
	r.Event(reference(p, container), kind, reason, message)
}

// AnnotatedEvent records an event with annotations on the pod.
func AnnotatedEvent(r record.EventRecorder, p *v1.Pod, annotations map[string]string, kind, reason, message string) {
	r.AnnotatedEventf(reference(p, ""), annotations, kind, reason, "%s", message)
}

func reference(p *v1.Pod, container string) *v1.ObjectReference {
	return &v1.ObjectReference{
		Kind: "Pod", APIVersion: "v1", Namespace: p.Namespace, Name: p.Name,
		UID: p.UID, ResourceVersion: p.ResourceVersion, FieldPath: fieldPath(p, container),
	}
}

func fieldPath(p *v1.Pod, container string) string {
	if container == "" {
		return ""
	}
	field := "spec.containers"
	if pod.IsInit(&p.Spec, container) {
		field = "spec.initContainers"
	}
	for i := range p.Spec.EphemeralContainers {
		if p.Spec.EphemeralContainers[i].Name == container {
			field = "spec.ephemeralContainers"
		}
	}
	return field + "{" + container + "}"
}
