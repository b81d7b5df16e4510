package syncloop

import (
	"testing"

	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/test/corpus"
)

// FuzzAnnotations reads any annotations of a container whose pod no source has any more.
func FuzzAnnotations(f *testing.F) {
	f.Add(`{"exec":{"command":["sh","-c","exit"]}}`, "30", `[{"name":"http","containerPort":80}]`)
	f.Add(`{"httpGet":{"port":"http"},"sleep":{"seconds":-1}}`, "-9223372036854775808", `[{"containerPort":4294967296}]`)
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, hook, grace, ports string) {
		annotations := map[string]string{pod.AnnotationPreStop: hook, pod.AnnotationPodGrace: grace, pod.AnnotationPorts: ports}
		if l := annotatedPreStop(annotations); l != nil && l.PreStop == nil {
			t.Errorf("%q is a lifecycle without a hook", hook)
		}
		_, _ = annotatedGrace(annotations)
		for _, p := range annotatedPorts(annotations) {
			if len(p.Name) > len(ports) {
				t.Errorf("%q is a port's name, longer than %q", p.Name, ports)
			}
		}
	})
}
