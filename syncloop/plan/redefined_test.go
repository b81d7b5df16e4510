package plan

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// TestRedefined checks that an instance is replaced because of another image only, never because of
// a hash.
func TestRedefined(t *testing.T) {
	for name, c := range map[string]struct {
		hash, made, shown, wants string
		want                     bool
	}{
		"the same":                     {hash: "now", wants: "app:2"},
		"a former form":                {hash: "former", shown: "app:1", wants: "app:2"},
		"no hash":                      {made: "app:1", wants: "app:2"},
		"another image":                {hash: "x", made: "app:1", wants: "app:2", want: true},
		"unknown form":                 {hash: "x", made: "app:2", wants: "app:2"},
		"the image goes by two names":  {hash: "x", made: "app:1", shown: "docker.io/library/app:2", wants: "app:2", want: true},
		"without our word, another":    {hash: "x", shown: "docker.io/library/app:1", wants: "app:2", want: true},
		"without our word, the same":   {hash: "x", shown: "docker.io/library/app:2", wants: "app:2"},
		"without our word, latest":     {hash: "x", shown: "registry:5000/a/app:latest", wants: "registry:5000/a/app"},
		"without our word, a digest":   {hash: "x", shown: "app@sha256:a", wants: "docker.io/library/app@sha256:a"},
		"without our word, two":        {hash: "x", shown: "app@sha256:a", wants: "app@sha256:b", want: true},
		"without our word, an ID":      {hash: "x", shown: "sha256:aaaa", wants: "app:2"},
		"without our word, not alike":  {hash: "x", shown: "app:1", wants: "app@sha256:b"},
		"without our word, not at all": {hash: "x", wants: "app:2"},
	} {
		d := decision{in: &Input{Hashes: map[string]string{"c": "now"}, FormerHashes: map[string][]string{"c": {"old", "former"}}}}
		o := pod.Container{SpecHash: c.hash, Image: c.shown}
		if c.made != "" {
			o.Annotations = map[string]string{pod.AnnotationImage: c.made}
		}
		if got := d.redefined(&v1.Container{Name: "c", Image: c.wants}, &o); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
