package provider

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	corev1listers "k8s.io/client-go/listers/core/v1"
)

// outlines is the pod informer that virtual-kubelet gets. Its lister returns pods without their spec:
// for each change of a pod, virtual-kubelet copies the pod twice, and compares it field by field with
// the version before. The hooks need only the name and UID. metadata.generation shows it a change of
// the spec.
type outlines struct{ *PodSource }

func (o outlines) Lister() corev1listers.PodLister { return outlineLister{o.PodSource.lister} }

type outlineLister struct{ corev1listers.PodLister }

func (l outlineLister) List(s labels.Selector) ([]*v1.Pod, error) {
	return outlineAll(l.PodLister.List(s))
}

func (l outlineLister) Pods(namespace string) corev1listers.PodNamespaceLister {
	return outlineNamespaceLister{l.PodLister.Pods(namespace)}
}

type outlineNamespaceLister struct {
	corev1listers.PodNamespaceLister
}

func (l outlineNamespaceLister) List(s labels.Selector) ([]*v1.Pod, error) {
	return outlineAll(l.PodNamespaceLister.List(s))
}

func (l outlineNamespaceLister) Get(name string) (*v1.Pod, error) {
	p, err := l.PodNamespaceLister.Get(name)
	if err != nil {
		return nil, err
	}
	return outline(p), nil
}

func outlineAll(pods []*v1.Pod, err error) ([]*v1.Pod, error) {
	out := make([]*v1.Pod, 0, len(pods))
	for _, p := range pods {
		out = append(out, outline(p))
	}
	return out, err
}

// outline shares the metadata and the status with p.
func outline(p *v1.Pod) *v1.Pod {
	return &v1.Pod{TypeMeta: p.TypeMeta, ObjectMeta: p.ObjectMeta, Status: p.Status}
}
