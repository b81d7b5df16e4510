package clusterwide

import (
	"context"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	nodelisters "k8s.io/client-go/listers/node/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// reader is what one node reads one kind by.
type reader struct {
	shared *Shared
	kind   *kind
	view   atomic.Pointer[view] // nil before the node may read; kept after it has left
}

// Services are those of the cluster, as one node reads them. They are shared with other
// nodes, and must not be changed.
type Services struct{ reader }

// Services returns a node's reader of Services.
func (s *Shared) Services() *Services { return &Services{reader{shared: s, kind: services}} }

// List is as corelisters.ServiceLister's.
func (r *Services) List(selector labels.Selector) ([]*v1.Service, error) {
	return corelisters.NewServiceLister(r.indexer()).List(selector)
}

// Services is as corelisters.ServiceLister's.
func (r *Services) Services(namespace string) corelisters.ServiceNamespaceLister {
	return corelisters.NewServiceLister(r.indexer()).Services(namespace)
}

// RuntimeClasses are those of the cluster, as one node reads them. They are shared with
// other nodes, and must not be changed.
type RuntimeClasses struct{ reader }

// RuntimeClasses returns a node's reader of RuntimeClasses.
func (s *Shared) RuntimeClasses() *RuntimeClasses {
	return &RuntimeClasses{reader{shared: s, kind: runtimeClasses}}
}

// Get is as nodelisters.RuntimeClassLister's.
func (r *RuntimeClasses) Get(name string) (*nodev1.RuntimeClass, error) {
	return nodelisters.NewRuntimeClassLister(r.indexer()).Get(name)
}

// HasSynced: the node may read the kind, and all objects of it have been taken in.
func (r *reader) HasSynced() bool {
	v := r.view.Load()
	return v != nil && v.informer.HasSynced()
}

func (r *reader) indexer() cache.Indexer {
	if v := r.view.Load(); v != nil {
		return v.informer.GetIndexer()
	}
	return cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
}

// Run reads until ctx ends: for this node, and by its client for the others of the cluster.
// It may be called once.
func (r *reader) Run(ctx context.Context, c Cluster, client kubernetes.Interface) error {
	if !r.allowed(ctx, client) {
		return nil
	}
	v, leave, err := r.shared.join(c, r.kind, client)
	if err != nil {
		return err
	}
	defer leave()
	r.view.Store(v)
	<-ctx.Done()
	return nil
}

// Pauses between tries to read, as those of an informer.
const (
	firstPause = time.Second
	mostPause  = 30 * time.Second
)

// allowed waits until the node's own client has read one object. It is false when ctx has
// ended first.
func (r *reader) allowed(ctx context.Context, client kubernetes.Interface) bool {
	said := ""
	for pause := firstPause; ; pause = min(2*pause, mostPause) {
		err := r.one(ctx, client)
		switch {
		case ctx.Err() != nil:
			return false
		case err == nil:
			return true
		case err.Error() != said:
			said = err.Error()
			klog.FromContext(ctx).Error(err, "The node cannot read from its cluster, will retry", "objects", r.kind.name)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return false
		}
	}
}

func (r *reader) one(ctx context.Context, client kubernetes.Interface) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	_, err := r.kind.list(ctx, client, metav1.ListOptions{Limit: 1})
	return err
}
