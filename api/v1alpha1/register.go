package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion of this package's types.
var GroupVersion = schema.GroupVersion{Group: "bowline.io", Version: "v1alpha1"}

// AddToScheme makes the types known to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &Host{}, &HostList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
