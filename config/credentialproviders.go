package config

import "k8s.io/apimachinery/pkg/util/validation/field"

// validateCredentialProviders: one field without the other would have no effect. The content of the
// files is read when a host is started.
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
