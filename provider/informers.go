package provider

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corev1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// PodSource is the pod informer of this node, shared by virtual-kubelet and the api source of
// syncloop. Handlers may be added before Node.Run starts it.
type PodSource struct {
	informer cache.SharedIndexInformer
	lister   corev1listers.PodLister
}

// Lister reads the pods bound to this node. The returned pods must not be modified.
func (s *PodSource) Lister() corev1listers.PodLister { return s.lister }

// HasSynced reports whether the first list is complete.
func (s *PodSource) HasSynced() bool { return s.informer.HasSynced() }

// AddEventHandler is that of cache.SharedInformer. The handler gets objects without managedFields.
func (s *PodSource) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return s.informer.AddEventHandler(h)
}

// Informer makes PodSource a corev1 PodInformer.
func (s *PodSource) Informer() cache.SharedIndexInformer { return s.informer }

// NewPodSource makes the pod informer of a node.
func NewPodSource(c kubernetes.Interface, nodeName string) (*PodSource, error) {
	informer := coreinformers.NewFilteredPodInformer(c, metav1.NamespaceAll, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc},
		func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", nodeName).String()
		})
	if err := informer.SetTransform(dropManagedFields); err != nil {
		return nil, fmt.Errorf("pod informer: %w", err)
	}
	return &PodSource{informer: informer, lister: corev1listers.NewPodLister(informer.GetIndexer())}, nil
}

func newNodeInformer(c kubernetes.Interface, nodeName string) (cache.SharedIndexInformer, error) {
	informer := coreinformers.NewFilteredNodeInformer(c, 0, cache.Indexers{},
		func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("metadata.name", nodeName).String()
		})
	if err := informer.SetTransform(dropManagedFields); err != nil {
		return nil, err
	}
	return informer, nil
}

// dropManagedFields saves a third of an object's memory. Nothing here writes whole objects back.
func dropManagedFields(obj any) (any, error) {
	// Do not write to an object without them: a fake API server shares one object among all
	// clients.
	if m, err := meta.Accessor(obj); err == nil && len(m.GetManagedFields()) > 0 {
		m.SetManagedFields(nil)
	}
	return obj, nil
}

// virtual-kubelet's constructor requires informers of configMaps, secrets and services to resolve
// environment variables. Bowline resolves those itself, object by object, so these are never
// started and always empty.
type (
	noConfigMaps struct{}
	noSecrets    struct{}
	noServices   struct{}
)

func emptyIndexer() cache.Indexer {
	return cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
}

func (noConfigMaps) Informer() cache.SharedIndexInformer { return nil }
func (noSecrets) Informer() cache.SharedIndexInformer    { return nil }
func (noServices) Informer() cache.SharedIndexInformer   { return nil }

func (noConfigMaps) Lister() corev1listers.ConfigMapLister {
	return corev1listers.NewConfigMapLister(emptyIndexer())
}
func (noSecrets) Lister() corev1listers.SecretLister {
	return corev1listers.NewSecretLister(emptyIndexer())
}
func (noServices) Lister() corev1listers.ServiceLister {
	return corev1listers.NewServiceLister(emptyIndexer())
}

func nodeOf(obj any) *v1.Node {
	n, _ := obj.(*v1.Node)
	return n
}
