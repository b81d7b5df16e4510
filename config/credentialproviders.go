package config

import "k8s.io/apimachinery/pkg/util/validation/field"

// validateCredentialProviders: one without the other would do nothing. What is in them
// is read when a host is driven.
func validateCredentialProviders(at func(...string) *field.Path, n *NodeSettings) (errs field.ErrorList) {
	file, dir := n.ImageCredentialProviderConfig, n.ImageCredentialProviderBinDir
	if file != "" && dir == "" {
		errs = append(errs, field.Required(at("imageCredentialProviderBinDir"), "imageCredentialProviderConfig is set: where are its programs?"))
	}
	if file == "" && dir != "" {
		errs = append(errs, field.Required(at("imageCredentialProviderConfig"), "imageCredentialProviderBinDir is set: which of its programs are for which images?"))
	}
	return errs
}
