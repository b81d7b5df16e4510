package images

import (
	"fmt"
	"regexp"
	"strings"
)

// Reference is an image name taken apart, in normal form.
type Reference struct {
	Domain string // "docker.io" where the name has none
	Path   string // "library/busybox"
	Tag    string // empty with a digest alone; "latest" where the name has neither
	Digest string // "sha256:…"
}

// Repository is what pull secrets are matched with: domain and path.
func (r Reference) Repository() string { return r.Domain + "/" + r.Path }

// The grammar of image names: https://github.com/distribution/reference.
const (
	domainPart = `(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])`
	domain     = `(?:` + domainPart + `(?:\.` + domainPart + `)*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?`
	pathPart   = `[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*`
	remote     = pathPart + `(?:/` + pathPart + `)*`
)

var (
	domainForm = regexp.MustCompile(`^` + domain + `$`)
	pathForm   = regexp.MustCompile(`^` + remote + `$`)
	tagForm    = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)
	digestForm = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*):([0-9a-fA-F]{32,})$`)
	bareID     = regexp.MustCompile(`^[a-f0-9]{64}$`)
)

// digestLength is the length in hex of those algorithms that are in use.
var digestLength = map[string]int{"sha256": 64, "sha384": 96, "sha512": 128}

// The longest repository name, domain not counted.
const maxPath = 255

// Parse takes an image name apart. The error says what is wrong with the name.
func Parse(image string) (Reference, error) {
	r, err := parse(image)
	if err != nil {
		return Reference{}, fmt.Errorf("couldn't parse image name %q: invalid reference format: %w", image, err)
	}
	return r, nil
}

func parse(image string) (Reference, error) {
	var r Reference
	if bareID.MatchString(image) {
		return r, fmt.Errorf("64 hexadecimal digits are an image ID, not a name")
	}
	name, digest, hasDigest := strings.Cut(image, "@")
	if hasDigest {
		if err := checkDigest(digest); err != nil {
			return r, err
		}
		r.Digest = digest
	}
	r.Domain, name = splitDomain(name)
	if i := strings.IndexByte(name, ':'); i >= 0 {
		r.Tag, name = name[i+1:], name[:i]
		if !tagForm.MatchString(r.Tag) {
			return r, fmt.Errorf("tag %q is not valid", r.Tag)
		}
	}
	r.Path = name
	switch {
	case !domainForm.MatchString(r.Domain) && !pathForm.MatchString(r.Domain):
		// A host with an underscore is no domain name; as a path it passes, and
		// runtimes do pull from there.
		return r, fmt.Errorf("registry %q is not valid", r.Domain)
	case strings.ToLower(name) != name:
		return r, fmt.Errorf("repository name (%s) must be lowercase", name)
	case !pathForm.MatchString(name):
		return r, fmt.Errorf("repository name (%s) is not valid", name)
	case len(name) > maxPath:
		return r, fmt.Errorf("repository name must not be more than %d characters", maxPath)
	}
	if r.Tag == "" && r.Digest == "" {
		r.Tag = "latest"
	}
	return r, nil
}

func checkDigest(digest string) error {
	m := digestForm.FindStringSubmatch(digest)
	if m == nil {
		return fmt.Errorf("digest %q is not valid", digest)
	}
	want, known := digestLength[m[1]]
	switch {
	case !known:
		return fmt.Errorf("digest algorithm %q is not supported", m[1])
	case len(m[2]) != want || strings.ToLower(m[2]) != m[2]:
		return fmt.Errorf("digest %q must have %d lower-case hexadecimal digits", digest, want)
	}
	return nil
}

// splitDomain tells a registry from the first part of a path: it has a dot or a
// port, is localhost, or has upper-case letters, which a path cannot.
func splitDomain(name string) (domain, rest string) {
	first, after, ok := strings.Cut(name, "/")
	switch {
	case !ok:
		return "docker.io", "library/" + name
	case first == "index.docker.io", first == "docker.io":
		domain, rest = "docker.io", after
	case first == "localhost", strings.ContainsAny(first, ".:"), strings.ToLower(first) != first:
		return first, after
	default:
		return "docker.io", name
	}
	if !strings.Contains(rest, "/") {
		rest = "library/" + rest
	}
	return domain, rest
}

// withDefaultTag is the name that the runtime is asked for: as it was written,
// with :latest where it has neither tag nor digest.
func withDefaultTag(image string, r Reference) string {
	if r.Digest == "" && r.Tag != "" && !strings.HasSuffix(image, ":"+r.Tag) {
		return image + ":" + r.Tag
	}
	return image
}
