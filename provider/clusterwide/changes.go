package clusterwide

import (
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
)

// changes signals the changes of a view to those that asked for them. The zero value is ready to use.
type changes struct {
	mu     sync.Mutex
	to     map[chan<- struct{}]int // readers of each channel
	handle sync.Once
}

// add signals every change of the informer's objects to a channel, until remove is called as often as add.
// The informer has no handler before the first one, because each costs two goroutines.
func (c *changes) add(to chan<- struct{}, informer cache.SharedIndexInformer) (err error) {
	c.mu.Lock()
	if c.to == nil {
		c.to = map[chan<- struct{}]int{}
	}
	c.to[to]++
	c.mu.Unlock()
	c.handle.Do(func() {
		_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { c.signal() },
			UpdateFunc: func(before, after any) {
				if !same(before, after) {
					c.signal()
				}
			},
			DeleteFunc: func(any) { c.signal() },
		})
	})
	return err
}

func (c *changes) remove(to chan<- struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.to[to]--; c.to[to] == 0 {
		delete(c.to, to)
	}
}

func (c *changes) signal() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for to := range c.to {
		send(to)
	}
}

// send sends a signal to a channel with room for one.
func send(to chan<- struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// same reports whether an update changed nothing that a view keeps. Most updates of pods and Nodes are of
// their status.
func same(before, after any) bool {
	a, ok := before.(runtime.Object)
	b, also := after.(runtime.Object)
	if !ok || !also {
		return false
	}
	a, b = a.DeepCopyObject(), b.DeepCopyObject()
	for _, o := range []runtime.Object{a, b} {
		if m, err := meta.Accessor(o); err == nil {
			m.SetResourceVersion("")
		}
	}
	return equality.Semantic.DeepEqual(a, b)
}
