package images

import "strings"

// Verification says for which images a pod must prove that its credentials may pull them
// (KubeletConfiguration.imagePullCredentialsVerificationPolicy).
type Verification string

const (
	NeverVerify                  Verification = "NeverVerify"
	NeverVerifyPreloadedImages   Verification = "NeverVerifyPreloadedImages"
	NeverVerifyAllowlistedImages Verification = "NeverVerifyAllowlistedImages"
	AlwaysVerify                 Verification = "AlwaysVerify"
)

// verifies reports whether a pod must prove that it may use the image, which is present. ours is
// set if we pulled it, or may have. allowed has names without tag and digest; one that ends in /*
// matches as a prefix.
func (v Verification) verifies(image string, ours bool, allowed []string) bool {
	switch v {
	case NeverVerify:
		return false
	case AlwaysVerify:
		return true
	case NeverVerifyAllowlistedImages:
		name := bareName(image)
		for _, a := range allowed {
			if prefix, all := strings.CutSuffix(a, "*"); a == name || all && strings.HasPrefix(name, prefix) {
				return false
			}
		}
		return true
	}
	return ours
}

// bareName is an image's name as written, without tag and digest.
func bareName(image string) string {
	name, _, _ := strings.Cut(image, "@")
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		name = name[:i]
	}
	return name
}
