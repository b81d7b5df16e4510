package clusterwide

import (
	"context"

	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// kind is one kind of object, and how a client lists and watches it.
type kind struct {
	name   string
	object runtime.Object
	list   func(context.Context, kubernetes.Interface, metav1.ListOptions) (runtime.Object, error)
	watch  func(context.Context, kubernetes.Interface, metav1.ListOptions) (watch.Interface, error)
}

var services = &kind{
	name: "Services", object: &v1.Service{},
	list: func(ctx context.Context, c kubernetes.Interface, o metav1.ListOptions) (runtime.Object, error) {
		return c.CoreV1().Services(metav1.NamespaceAll).List(ctx, o)
	},
	watch: func(ctx context.Context, c kubernetes.Interface, o metav1.ListOptions) (watch.Interface, error) {
		return c.CoreV1().Services(metav1.NamespaceAll).Watch(ctx, o)
	},
}

var runtimeClasses = &kind{
	name: "RuntimeClasses", object: &nodev1.RuntimeClass{},
	list: func(ctx context.Context, c kubernetes.Interface, o metav1.ListOptions) (runtime.Object, error) {
		return c.NodeV1().RuntimeClasses().List(ctx, o)
	},
	watch: func(ctx context.Context, c kubernetes.Interface, o metav1.ListOptions) (watch.Interface, error) {
		return c.NodeV1().RuntimeClasses().Watch(ctx, o)
	},
}

// lean drops what nodes do not read. Many objects consist mostly of annotations and managed fields.
func lean(obj any) (any, error) {
	if m, err := meta.Accessor(obj); err == nil {
		m.SetManagedFields(nil)
		m.SetAnnotations(nil)
	}
	return obj, nil
}
