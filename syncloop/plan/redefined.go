package plan

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// redefined reports whether an instance was created from another image than its container has now. An
// unknown hash alone proves nothing.
func (d *decision) redefined(c *v1.Container, o *pod.Container) bool {
	want := d.in.Hashes[c.Name]
	if want == "" || o.SpecHash == "" || want == o.SpecHash || slices.Contains(d.in.FormerHashes[c.Name], o.SpecHash) {
		return false
	}
	if made := o.Annotations[pod.AnnotationImage]; made != "" {
		return made != c.Image
	}
	return otherImage(o.Image, c.Image)
}

// otherImage reports whether two names surely refer to two images: both have a digest and the
// digests differ, or neither has one and repository or tag differ. A runtime may show an image
// under another of its names, or by its ID.
func otherImage(shown, wanted string) bool {
	shownName, shownDigest, shownPinned := strings.Cut(shown, "@")
	wantedName, wantedDigest, wantedPinned := strings.Cut(wanted, "@")
	switch {
	case shown == "" || wanted == "" || strings.HasPrefix(shown, "sha256:") || shownPinned != wantedPinned:
		return false
	case shownPinned:
		return shownDigest != wantedDigest
	}
	return fullName(shownName) != fullName(wantedName)
}

// fullName completes an image name as a runtime does: with registry, library and tag.
func fullName(name string) string {
	first, _, path := strings.Cut(name, "/")
	if !path || !strings.ContainsAny(first, ".:") && first != "localhost" {
		name = "docker.io/" + name
	}
	if rest, ok := strings.CutPrefix(name, "docker.io/"); ok && !strings.Contains(rest, "/") {
		name = "docker.io/library/" + rest
	}
	if !strings.Contains(name[strings.LastIndex(name, "/")+1:], ":") {
		name += ":latest"
	}
	return name
}
