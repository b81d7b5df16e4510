package clusterwide

import (
	"context"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
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
	// changed gets a value when the first list is complete and after each change. It has room for one. nil:
	// the reader is only asked.
	changed chan<- struct{}
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

// Objects are those of a kind in the cluster, read for one node. They are shared with other nodes, and must
// not be modified.
type Objects[T any] struct{ reader }

// All returns the objects, in any order.
func (r *Objects[T]) All() []T {
	list := r.indexer().List()
	all := make([]T, 0, len(list))
	for _, object := range list {
		if o, ok := object.(T); ok {
			all = append(all, o)
		}
	}
	return all
}

func objects[T any](s *Shared, k *kind, changed chan<- struct{}) *Objects[T] {
	return &Objects[T]{reader{shared: s, kind: k, changed: changed}}
}

// The functions below return a node's reader of a kind. changed, which has room for one value, gets one when
// the first list is complete, and after each change that All would show.

func (s *Shared) ServiceObjects(changed chan<- struct{}) *Objects[*v1.Service] {
	return objects[*v1.Service](s, services, changed)
}

func (s *Shared) EndpointSlices(changed chan<- struct{}) *Objects[*discoveryv1.EndpointSlice] {
	return objects[*discoveryv1.EndpointSlice](s, endpointSlices, changed)
}

func (s *Shared) ServiceCIDRs(changed chan<- struct{}) *Objects[*networkingv1.ServiceCIDR] {
	return objects[*networkingv1.ServiceCIDR](s, serviceCIDRs, changed)
}

func (s *Shared) NetworkPolicies(changed chan<- struct{}) *Objects[*networkingv1.NetworkPolicy] {
	return objects[*networkingv1.NetworkPolicy](s, networkPolicies, changed)
}

func (s *Shared) Namespaces(changed chan<- struct{}) *Objects[*v1.Namespace] {
	return objects[*v1.Namespace](s, namespaces, changed)
}

// Pods leaves out pods that have ended.
func (s *Shared) Pods(changed chan<- struct{}) *Objects[*v1.Pod] {
	return objects[*v1.Pod](s, pods, changed)
}

func (s *Shared) Nodes(changed chan<- struct{}) *Objects[*v1.Node] {
	return objects[*v1.Node](s, nodes, changed)
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
	if r.changed != nil {
		if err := v.changes.add(r.changed, v.informer); err != nil {
			return err
		}
		defer v.changes.remove(r.changed)
		select {
		case <-v.informer.HasSyncedChecker().Done():
			send(r.changed)
		case <-ctx.Done():
		}
	}
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
