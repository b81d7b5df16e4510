package syncloop

import (
	"testing"

	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/test/corpus"
)

// FuzzAnnotations reads any annotations of a container whose pod no source has any more.
func FuzzAnnotations(f *testing.F) {
	f.Add(`{"exec":{"command":["sh","-c","exit"]}}`, "30")
	f.Add(`{"httpGet":{"port":"http"},"sleep":{"seconds":-1}}`, "-9223372036854775808")
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, hook, grace string) {
		annotations := map[string]string{pod.AnnotationPreStop: hook, pod.AnnotationPodGrace: grace}
		if l := annotatedPreStop(annotations); l != nil && l.PreStop == nil {
			t.Errorf("%q is a lifecycle without a hook", hook)
		}
		_, _ = annotatedGrace(annotations)
	})
}
