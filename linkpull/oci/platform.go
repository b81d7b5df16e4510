package oci

import (
	"fmt"
	"slices"
	"strings"
)

// Platform is an operating system and a processor, in Go's names (GOOS, GOARCH); Variant is "v7" for example.
type Platform struct {
	OS           string `json:"os"`
	Architecture string `json:"architecture"`
	Variant      string `json:"variant,omitempty"`
}

func (p Platform) String() string {
	s := p.OS + "/" + p.Architecture
	if p.Variant != "" {
		s += "/" + p.Variant
	}
	return s
}

var aliases = map[string]Platform{
	"x86_64":  {Architecture: "amd64"},
	"x86-64":  {Architecture: "amd64"},
	"i386":    {Architecture: "386"},
	"aarch64": {Architecture: "arm64"},
	"armhf":   {Architecture: "arm", Variant: "v7"},
	"armel":   {Architecture: "arm", Variant: "v6"},
}

// Normal returns the form in which equal platforms are equal: lower case, without aliases, and with the
// variant that is meant where none is written.
func (p Platform) Normal() Platform {
	p.OS, p.Architecture, p.Variant = strings.ToLower(p.OS), strings.ToLower(p.Architecture),
		strings.ToLower(p.Variant)
	if a, ok := aliases[p.Architecture]; ok {
		p.Architecture = a.Architecture
		if p.Variant == "" {
			p.Variant = a.Variant
		}
	}
	switch {
	case p.Architecture == "arm64" && (p.Variant == "v8" || p.Variant == "8"),
		p.Architecture == "amd64" && p.Variant == "v1":
		p.Variant = ""
	case p.Architecture == "arm" && (p.Variant == "" || p.Variant == "7"):
		p.Variant = "v7"
	case p.Architecture == "arm" && len(p.Variant) == 1:
		p.Variant = "v" + p.Variant
	}
	return p
}

// Runs returns the platforms whose programs run on p, the best first. They are those that containerd accepts.
func (p Platform) Runs() []Platform {
	p = p.Normal()
	out := []Platform{p}
	add := func(architecture string, variants ...string) {
		for _, v := range variants {
			if other := (Platform{OS: p.OS, Architecture: architecture, Variant: v}); !slices.Contains(out, other) {
				out = append(out, other)
			}
		}
	}
	arm := []string{"v8", "v7", "v6", "v5"}
	switch p.Architecture {
	case "amd64":
		for _, v := range []string{"v4", "v3", "v2"} {
			if v < p.Variant {
				add("amd64", v)
			}
		}
		add("amd64", "")
		add("386", "")
	case "arm64":
		add("arm64", "")
		add("arm", arm...)
	case "arm":
		if i := slices.Index(arm, p.Variant); i >= 0 {
			add("arm", arm[i:]...)
		}
	}
	return out
}

// Select returns the position of the manifest for a platform in an index. The error is ErrNoPlatform, or
// ErrUnsupported if that manifest is an index itself.
func Select(manifests []Descriptor, want Platform) (int, error) {
	for _, p := range want.Runs() {
		i := slices.IndexFunc(manifests, func(d Descriptor) bool {
			return d.Platform != nil &&
				d.Platform.Normal() == p
		})
		switch {
		case i < 0:
			continue
		case manifests[i].MediaType != ManifestType && manifests[i].MediaType != DockerManifestType:
			return 0, fmt.Errorf("entry for %s of type %.100q: %w", p, manifests[i].MediaType, ErrUnsupported)
		case manifests[i].Size > MaxDocument:
			return 0, fmt.Errorf("manifest of %d bytes for %s: %w", manifests[i].Size, p, ErrTooLarge)
		}
		return i, nil
	}
	return 0, fmt.Errorf("%s: %w", want, ErrNoPlatform)
}
