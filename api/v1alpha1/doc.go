// Package v1alpha1 is the API group bowline.io: hosts that become nodes, as objects of
// the cluster. hack/generate.sh makes its CRD and its deepcopy functions.
//
// +kubebuilder:object:generate=true
// +groupName=bowline.io
package v1alpha1
