package provider

import (
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
)

// quietRecorder drops virtual-kubelet's Provider* events, because they would say "created" of every
// pod long before anything is created. The loop emits events with the kubelet's reasons.
type quietRecorder struct{ record.EventRecorder }

func dropped(reason string) bool { return strings.HasPrefix(reason, "Provider") }

func (r quietRecorder) Event(o runtime.Object, kind, reason, message string) {
	if !dropped(reason) {
		r.EventRecorder.Event(o, kind, reason, message)
	}
}

func (r quietRecorder) Eventf(o runtime.Object, kind, reason, format string, args ...any) {
	if !dropped(reason) {
		r.EventRecorder.Eventf(o, kind, reason, format, args...)
	}
}

func (r quietRecorder) AnnotatedEventf(o runtime.Object, annotations map[string]string, kind, reason, format string, args ...any) {
	if !dropped(reason) {
		r.EventRecorder.AnnotatedEventf(o, annotations, kind, reason, format, args...)
	}
}
