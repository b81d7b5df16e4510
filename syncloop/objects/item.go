package objects

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

const (
	// firstGet bounds one get.
	firstGet = 10 * time.Second
	// minWatch is the least duration of a watch; the default of 5 min costs needless work for an
	// object that hardly changes.
	minWatch = 30 * time.Minute
)

// retry is the back-off between attempts at a first answer. The Node authorizer learns of a new pod
// a moment after us, so the first refusals mean little.
var retry = wait.Backoff{Duration: 50 * time.Millisecond, Factor: 2, Steps: 10, Cap: 5 * time.Second}

// object is a *v1.ConfigMap or a *v1.Secret.
type object interface {
	runtime.Object
	metav1.Object
}

// item is one object that pods name.
type item struct {
	key    key
	pods   map[types.UID]bool // guarded by Manager.mu
	cancel context.CancelFunc // guarded by Manager.mu; nil before Run

	synced chan struct{} // closed at the first answer

	mu      sync.Mutex
	known   bool   // synced is closed
	object  object // nil: it does not exist, or no answer yet
	doubted bool   // accept the next answer, whatever its version
	missed  bool   // a reader gave up waiting for the first answer
	lastErr error  // of the last attempt at a first answer

	// For the strategy Cache: see fetch.go.
	turn     chan struct{} // capacity 1: held by the caller that asks the API server
	asked    time.Time     // when the request for the known answer was sent; guarded by mu
	outdated bool          // a pod registered after the known answer; guarded by mu
}

func newItem(k key) *item {
	return &item{key: k, pods: map[types.UID]bool{}, synced: make(chan struct{}), turn: make(chan struct{}, 1)}
}

// stop ends follow; the caller holds Manager.mu.
func (it *item) stop() {
	if it.cancel != nil {
		it.cancel()
	}
}

func (it *item) read() object {
	it.mu.Lock()
	defer it.mu.Unlock()
	return it.object
}

// wait waits for the first answer and returns the object; nil: it does not exist.
func (it *item) wait(ctx context.Context) (object, error) {
	select {
	case <-it.synced:
		return it.read(), nil
	case <-ctx.Done():
		return nil, it.notSynced()
	}
}

// notSynced is the error while there is no first answer. It sets missed, so that the first answer
// wakes the pods.
func (it *item) notSynced() error {
	it.mu.Lock()
	defer it.mu.Unlock()
	it.missed = true
	err := it.lastErr
	if err == nil {
		err = errors.New("timed out waiting for the API server")
	}
	return fmt.Errorf("failed to sync %s cache: %s/%s: %w", it.key.kind, it.key.namespace, it.key.name, err)
}

// follow gets the object once, which is one fast and consistent read, and then watches it until ctx
// ends or the object is immutable.
func (it *item) follow(ctx context.Context, m *Manager) {
	if !it.first(ctx, m) || it.immutable() {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	logger := klog.FromContext(ctx)
	r := cache.NewReflectorWithOptions(it.listWatch(m), it.example(), &store{it: it, m: m, immutable: cancel}, cache.ReflectorOptions{
		Logger:          &logger,
		Name:            fmt.Sprintf("%s %s/%s", it.key.kind, it.key.namespace, it.key.name),
		MinWatchTimeout: minWatch,
	})
	r.RunWithContext(ctx)
}

// first gets the first answer; false if ctx ended before.
func (it *item) first(ctx context.Context, m *Manager) bool {
	return retry.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		o, err := it.get(ctx, m, metav1.GetOptions{})
		if err == nil {
			it.put(m, o)
			return true, nil
		}
		it.mu.Lock()
		it.lastErr = err
		it.mu.Unlock()
		return false, nil
	}) == nil
}

// get reads the object from the API server; nil: it does not exist.
func (it *item) get(ctx context.Context, m *Manager, options metav1.GetOptions) (o object, err error) {
	ctx, cancel := context.WithTimeout(ctx, firstGet)
	defer cancel()
	if it.key.kind == kindSecret {
		o, err = m.client.CoreV1().Secrets(it.key.namespace).Get(ctx, it.key.name, options)
	} else {
		o, err = m.client.CoreV1().ConfigMaps(it.key.namespace).Get(ctx, it.key.name, options)
	}
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return o, nil
}

func (it *item) example() runtime.Object {
	if it.key.kind == kindSecret {
		return &v1.Secret{}
	}
	return &v1.ConfigMap{}
}

func (it *item) listWatch(m *Manager) cache.ListerWatcher {
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, it.key.name).String()
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			if it.key.kind == kindSecret {
				return m.client.CoreV1().Secrets(it.key.namespace).List(ctx, o)
			}
			return m.client.CoreV1().ConfigMaps(it.key.namespace).List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			if it.key.kind == kindSecret {
				return m.client.CoreV1().Secrets(it.key.namespace).Watch(ctx, o)
			}
			return m.client.CoreV1().ConfigMaps(it.key.namespace).Watch(ctx, o)
		},
	}
	return cache.ToListWatcherWithWatchListSemantics(lw, m.client)
}

// put stores an answer; nil says that the object does not exist. It returns false if the answer is
// older than the stored object.
func (it *item) put(m *Manager, o object) bool {
	if o != nil {
		o.SetManagedFields(nil) // often larger than the data
	}
	it.mu.Lock()
	first := !it.known
	if !first && !it.doubted && older(o, it.object) {
		it.mu.Unlock()
		return false
	}
	it.doubted = false
	changed := !same(o, it.object)
	it.object = o
	notify := changed && !first || first && it.missed
	if first {
		it.known, it.lastErr = true, nil
		close(it.synced)
	}
	it.mu.Unlock()
	if notify {
		m.changed(it)
	}
	return true
}

// doubt makes put accept the next answer, whatever its version.
func (it *item) doubt() {
	it.mu.Lock()
	defer it.mu.Unlock()
	it.doubted = true
}

func (it *item) immutable() bool { return isImmutable(it.read()) }

func isImmutable(o object) bool {
	switch o := o.(type) {
	case *v1.ConfigMap:
		return o.Immutable != nil && *o.Immutable
	case *v1.Secret:
		return o.Immutable != nil && *o.Immutable
	}
	return false
}

func same(a, b object) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return a.GetUID() == b.GetUID() && a.GetResourceVersion() == b.GetResourceVersion()
}

// older reports whether a is an older version of the same object than b. An API server with a
// lagging watch cache may return such a version.
func older(a, b object) bool {
	if a == nil || b == nil || a.GetUID() != b.GetUID() {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(a.GetResourceVersion(), b.GetResourceVersion())
	return err == nil && order < 0
}

// store passes the reflector's lists and events to its item.
type store struct {
	it        *item
	m         *Manager
	immutable context.CancelFunc // ends the watch
	listed    bool               // Replace has been called
}

func (s *store) set(x any) error {
	o, ok := x.(object)
	if !ok {
		return fmt.Errorf("watch of %s gave a %T", s.it.key.kind, x)
	}
	if o.GetName() != s.it.key.name {
		// The server ignores the field selector: another object.
		return nil
	}
	s.it.put(s.m, o)
	if s.it.immutable() {
		s.immutable()
	}
	return nil
}

func (s *store) Add(x any) error    { return s.set(x) }
func (s *store) Update(x any) error { return s.set(x) }

func (s *store) Delete(x any) error {
	if o, ok := x.(object); ok && o.GetName() != s.it.key.name {
		return nil
	}
	s.it.put(s.m, nil)
	return nil
}

// Replace takes a list. The first one may come from a watch cache that lags behind the first get. A
// later one is not older than the reflector's last event, unless the API server's store was
// restored: then the list is right.
func (s *store) Replace(list []any, _ string) error {
	if s.listed {
		s.it.doubt()
	}
	s.listed = true
	for _, x := range list {
		if o, ok := x.(object); ok && o.GetName() == s.it.key.name {
			return s.set(o)
		}
	}
	s.it.put(s.m, nil)
	return nil
}

func (*store) Resync() error { return nil }
