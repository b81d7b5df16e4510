package config

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

var verificationPolicies = []string{"AlwaysVerify", "NeverVerify", "NeverVerifyAllowlistedImages", "NeverVerifyPreloadedImages"}

// validateVerification checks for which images a pod must prove that its credentials may pull them.
func validateVerification(at func(...string) *field.Path, n *NodeSettings) (errs field.ErrorList) {
	policy, list := n.ImagePullCredentialsVerificationPolicy, n.PreloadedImagesVerificationAllowlist
	if policy != "" && !slices.Contains(verificationPolicies, policy) { // "": its feature gate is off
		errs = append(errs, field.NotSupported(at("imagePullCredentialsVerificationPolicy"), policy, verificationPolicies))
	}
	if len(list) > 0 && policy != "NeverVerifyAllowlistedImages" {
		errs = append(errs, field.Forbidden(at("preloadedImagesVerificationAllowlist"), "only with the policy NeverVerifyAllowlistedImages"))
	}
	for i, name := range list {
		bare, all := strings.CutSuffix(name, "/*")
		last := bare[strings.LastIndexByte(bare, '/')+1:]
		if bare == "" || strings.TrimSpace(name) != name || strings.ContainsAny(bare, "*@") || !all && strings.Contains(last, ":") {
			errs = append(errs, field.Invalid(at("preloadedImagesVerificationAllowlist").Index(i), name,
				"the name of an image without tag and digest, or its beginning and /*"))
		}
	}
	return errs
}
