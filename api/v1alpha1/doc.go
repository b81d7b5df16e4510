// Package v1alpha1 is the API group bowline.io: machines that are nodes, as objects
// of the cluster. Its CRD and its deepcopy functions are made by hack/generate.sh.
//
// +kubebuilder:object:generate=true
// +groupName=bowline.io
package v1alpha1
