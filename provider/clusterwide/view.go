package clusterwide

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// answerWithin bounds a list, and the start of a watch. An API server gives up a list after a
// minute, and some proxies delay a watch's headers until its first bookmark.
const answerWithin = 90 * time.Second

// silenceLimit ends a watch without events. An API server sends a bookmark each minute.
const silenceLimit = 4 * time.Minute

// view is one kind of object in one cluster.
type view struct {
	kind     *kind
	sources  sources
	informer cache.SharedIndexInformer
	once     sync.Once
	stop     context.CancelFunc
	running  sync.WaitGroup // the informer and the relays of its watches
	changes  changes
}

func newView(k *kind) (*view, error) {
	v := &view{kind: k}
	v.informer = cache.NewSharedIndexInformer(&cache.ListWatch{ListWithContextFunc: v.list, WatchFuncWithContext: v.watch},
		k.object, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	return v, v.informer.SetTransform(lean)
}

// start starts the informer at the first call. The informer belongs to no node, so it does not use
// a node's context.
func (v *view) start() {
	v.once.Do(func() {
		ctx, stop := context.WithCancel(klog.NewContext(context.Background(), klog.Background()))
		v.stop = stop
		v.running.Go(func() { v.informer.RunWithContext(ctx) })
	})
}

// close returns when nothing reads any more.
func (v *view) close() {
	v.stop()
	v.running.Wait()
}

func (v *view) list(ctx context.Context, o metav1.ListOptions) (list runtime.Object, err error) {
	err = v.sources.try(ctx, func(ctx context.Context, s *source) error {
		ctx, cancel := context.WithTimeout(ctx, answerWithin)
		defer cancel()
		list, err = v.kind.list(ctx, s.client, o)
		return err
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

func (v *view) watch(ctx context.Context, o metav1.ListOptions) (w watch.Interface, err error) {
	err = v.sources.try(ctx, func(ctx context.Context, s *source) error {
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // the watch outlives the try
		unhook := context.AfterFunc(s.ctx, cancel)
		late := time.AfterFunc(answerWithin, cancel)
		from, err := v.kind.watch(ctx, s.client, o)
		late.Stop()
		if err != nil {
			unhook()
			cancel()
			return err
		}
		w = v.relay(s, from, func() { unhook(); cancel() })
		return nil
	})
	if err != nil {
		return nil, err
	}
	return w, nil
}

// relay forwards the events of a watch of s until s leaves. If the watch ends with an error, or
// without any event, s gives way, because client-go sees a broken connection as an empty watch and
// not as an error. done is called at the end.
func (v *view) relay(s *source, from watch.Interface, done func()) watch.Interface {
	events := make(chan watch.Event)
	to := watch.NewProxyWatcher(events)
	s.uses.Add(1)
	v.running.Go(func() {
		defer s.uses.Done()
		defer close(events)
		defer done()
		defer from.Stop()
		silence, spoke := time.NewTimer(silenceLimit), false
		defer silence.Stop()
		for {
			select {
			case <-to.StopChan():
				return
			case <-s.ctx.Done():
				return
			case <-silence.C:
				v.sources.giveWay(s)
				return
			case e, ok := <-from.ResultChan():
				if !spoke && !ok || e.Type == watch.Error {
					v.sources.giveWay(s)
				}
				if !ok {
					return
				}
				spoke = true
				silence.Reset(silenceLimit)
				select {
				case events <- e:
				case <-to.StopChan():
					return
				case <-s.ctx.Done():
					return
				}
			}
		}
	})
	return to
}
