package images

import (
	"fmt"
	"strings"

	"github.com/distribution/reference"
)

// Reference is a parsed image name in normal form.
type Reference struct {
	Repository string // "docker.io/library/busybox"; pull secrets are matched against it
	Tag        string // empty if there is only a digest; "latest" if there is neither
	Digest     string // "sha256:…"
}

// Parse parses an image name. The error says why the name is invalid.
func Parse(image string) (Reference, error) {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return Reference{}, fmt.Errorf("couldn't parse image name %q: %w", image, err)
	}
	named = reference.TagNameOnly(named)
	r := Reference{Repository: named.Name()}
	if tagged, ok := named.(reference.Tagged); ok {
		r.Tag = tagged.Tag()
	}
	if digested, ok := named.(reference.Digested); ok {
		r.Digest = digested.Digest().String()
	}
	return r, nil
}

// withDefaultTag is the name to ask the runtime for: as written, with :latest if it has neither tag
// nor digest.
func withDefaultTag(image string, r Reference) string {
	if r.Digest == "" && r.Tag != "" && !strings.HasSuffix(image, ":"+r.Tag) {
		return image + ":" + r.Tag
	}
	return image
}
