package podconfig

import (
	"context"
	"errors"
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/pod"
)

// SourceAPI is the name of the source that reads the API server.
const SourceAPI = pod.SourceAPI

// API is the api source. It never trusts the object in an event: on each wake-up it reads the
// lister, so a lost, merged or reordered event loses nothing.
type API struct {
	config *PodConfig
	lister corelisters.PodLister
	synced func() bool

	// mu makes reading the lister and updating config one step. Otherwise, of two concurrent looks,
	// the one that read earlier could update config last.
	mu sync.Mutex
}

// NewAPI makes the api source over the pod informer that virtual-kubelet shares.
func NewAPI(c *PodConfig, lister corelisters.PodLister, synced func() bool) *API {
	return &API{config: c, lister: lister, synced: synced}
}

// Run waits for the lister's first list, compares every pod once, and returns. Later changes arrive
// through Look and Handler.
func (a *API) Run(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), a.synced) {
		return fmt.Errorf("the API server did not list this node's pods: %w", context.Cause(ctx))
	}
	if err := a.LookAll(); err != nil {
		return err
	}
	a.config.Seen(SourceAPI)
	return nil
}

// Look compares one pod with the lister.
func (a *API) Look(namespace, name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.look(namespace, name)
}

func (a *API) look(namespace, name string) {
	p, err := a.lister.Pods(namespace).Get(name)
	switch {
	case apierrors.IsNotFound(err):
		a.config.Drop(SourceAPI, namespace, name)
	case err == nil:
		a.config.Set(SourceAPI, p)
	}
}

// PodChanged compares one pod with the lister if the lister has it; virtual-kubelet's hooks call it.
// Deletions are left to Handler, which receives every one of them, with the pod's last version.
func (a *API) PodChanged(ref pod.Ref) {
	if _, err := a.lister.Pods(ref.Namespace).Get(ref.Name); err == nil {
		a.Look(ref.Namespace, ref.Name)
	}
}

// LookAll compares every pod, including those that are missing in the lister.
func (a *API) LookAll() error {
	if !a.synced() {
		return errors.New("the pod lister has not seen the API server yet")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	pods, err := a.lister.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list this node's pods: %w", err)
	}
	have := make(map[pod.Ref]bool, len(pods))
	for _, p := range pods {
		have[pod.Ref{Namespace: p.Namespace, Name: p.Name}] = true
		a.config.Set(SourceAPI, p)
	}
	for _, ref := range a.config.refs(SourceAPI) {
		if !have[pod.Ref{Namespace: ref.Namespace, Name: ref.Name}] {
			a.look(ref.Namespace, ref.Name)
		}
	}
	return nil
}

// Handler returns the handler for the shared informer. virtual-kubelet's own handlers drop
// tombstones and status-only updates; this one does not.
func (a *API) Handler(ctx context.Context) cache.ResourceEventHandler {
	look := func(obj any) {
		if tomb, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = tomb.Obj
		}
		p, ok := obj.(*v1.Pod)
		if !ok {
			klog.FromContext(ctx).Error(nil, "Received an object that is not a pod from the pod informer", "type", fmt.Sprintf("%T", obj))
			return
		}
		a.Look(p.Namespace, p.Name)
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    look,
		UpdateFunc: func(_, obj any) { look(obj) },
		DeleteFunc: func(obj any) {
			if p, ok := obj.(*v1.Pod); ok { // not a tombstone
				a.config.Last(SourceAPI, p)
			}
			look(obj)
		},
	}
}
