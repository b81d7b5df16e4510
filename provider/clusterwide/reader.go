package clusterwide

import (
	"context"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	nodelisters "k8s.io/client-go/listers/node/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/logonce"
)

// reader reads one kind for one node.
type reader struct {
	shared *Shared
	kind   *kind
	view   atomic.Pointer[view] // nil until the node may read; kept after it has left
}

// Services are those of the cluster, read for one node. They are shared with other nodes, and must
// not be modified.
type Services struct{ reader }

// Services returns a node's reader of Services.
func (s *Shared) Services() *Services { return &Services{reader{shared: s, kind: services}} }

// List is that of corelisters.ServiceLister.
func (r *Services) List(selector labels.Selector) ([]*v1.Service, error) {
	return corelisters.NewServiceLister(r.indexer()).List(selector)
}

// Services is that of corelisters.ServiceLister.
func (r *Services) Services(namespace string) corelisters.ServiceNamespaceLister {
	return corelisters.NewServiceLister(r.indexer()).Services(namespace)
}

// RuntimeClasses are those of the cluster, read for one node. They are shared with other nodes, and
// must not be modified.
type RuntimeClasses struct{ reader }

// RuntimeClasses returns a node's reader of RuntimeClasses.
func (s *Shared) RuntimeClasses() *RuntimeClasses {
	return &RuntimeClasses{reader{shared: s, kind: runtimeClasses}}
}

// Get is that of nodelisters.RuntimeClassLister.
func (r *RuntimeClasses) Get(name string) (*nodev1.RuntimeClass, error) {
	return nodelisters.NewRuntimeClassLister(r.indexer()).Get(name)
}

// HasSynced reports whether the node may read the kind, and the first list is complete.
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

// Run reads until ctx ends: for this node, and with its client for the others of the cluster. It
// may be called only once.
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

// allowed waits until the node's own client has read one object, with an informer's back-off. It
// returns false if ctx ends first.
func (r *reader) allowed(ctx context.Context, client kubernetes.Interface) bool {
	var logged logonce.Failure
	retry := wait.Backoff{Duration: time.Second, Factor: 2, Steps: 10, Cap: 30 * time.Second}
	for {
		err := r.one(ctx, client)
		switch {
		case ctx.Err() != nil:
			return false
		case err == nil:
			return true
		case logged.Changed(err):
			klog.FromContext(ctx).Error(err, "Failed to read from the node's cluster, will retry", "objects", r.kind.name)
		}
		select {
		case <-time.After(retry.Step()):
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
