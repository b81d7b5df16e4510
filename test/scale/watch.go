package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/bowline-k8s/bowline/test/labtest"
)

// readyWatch knows when each pod was first seen Ready, and which are gone.
type readyWatch struct {
	mu      sync.Mutex
	at      map[string]time.Time // pod -> first seen Ready
	there   map[string]string    // pod -> its state
	changed chan struct{}        // closed and replaced at each change
}

// watchPods watches a namespace until ctx ends.
func watchPods(ctx context.Context, c kubernetes.Interface, namespace string) (*readyWatch, error) {
	w := &readyWatch{at: map[string]time.Time{}, there: map[string]string{}, changed: make(chan struct{})}
	factory := informers.NewSharedInformerFactoryWithOptions(c, 0, informers.WithNamespace(namespace))
	informer := factory.Core().V1().Pods().Informer()
	see := func(o any) {
		if p, ok := o.(*v1.Pod); ok {
			w.see(p)
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    see,
		UpdateFunc: func(_, o any) { see(o) },
		DeleteFunc: func(o any) {
			if last, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = last.Obj
			}
			if p, ok := o.(*v1.Pod); ok {
				w.gone(p.Name)
			}
		},
	}); err != nil {
		return nil, err
	}
	factory.StartWithContext(ctx)
	factory.WaitForCacheSyncWithContext(ctx)
	return w, ctx.Err()
}

func (w *readyWatch) see(p *v1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.there[p.Name] = labtest.Describe(p)
	if _, known := w.at[p.Name]; !known && labtest.IsReady(p) {
		w.at[p.Name] = time.Now()
		w.announce()
	}
}

func (w *readyWatch) gone(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.there, name)
	w.announce()
}

func (w *readyWatch) announce() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// ready waits for a pod to be Ready, and returns when it was first seen so.
func (w *readyWatch) ready(ctx context.Context, name string, limit time.Duration) (time.Time, error) {
	var at time.Time
	err := w.await(ctx, limit, func() (ok bool) { at, ok = w.at[name]; return ok })
	if err != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		return at, fmt.Errorf("pod %s is not Ready within %s: %s: %w", name, limit, w.there[name], err)
	}
	return at, nil
}

// left waits for a pod to be gone.
func (w *readyWatch) left(ctx context.Context, name string, limit time.Duration) error {
	err := w.await(ctx, limit, func() bool { _, there := w.there[name]; return !there })
	if err != nil {
		return fmt.Errorf("pod %s is not gone within %s: %w", name, limit, err)
	}
	return nil
}

// await waits until done returns true. done is called with the lock held.
func (w *readyWatch) await(ctx context.Context, limit time.Duration, done func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		w.mu.Lock()
		ok, changed := done(), w.changed
		w.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
