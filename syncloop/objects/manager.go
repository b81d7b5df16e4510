// Package objects holds the configMaps and secrets that this node's pods name, and nothing else. It
// requests each by its name, as the Node authorizer demands, from the first pod that names it until
// the last is gone.
//
// With the strategy Watch, each object is read once and then watched; fifty pods that share an
// object share its watch, and an immutable object is read once. With Cache, an object is read when
// a pod needs it and the last answer is too old; with Get, whenever a pod needs it. Both keep no
// connection open, and notice a change at the next sync of a pod.
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
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/bowline-k8s/bowline/notify"
)

// defaultSyncTimeout is how long a reader waits for an object's first answer.
const defaultSyncTimeout = 3 * time.Second

// Client is the part of a clientset that the manager needs.
type Client interface {
	CoreV1() corev1client.CoreV1Interface
}

// Config configures a Manager.
type Config struct {
	Client Client
	// SyncTimeout is how long ConfigMap and Secret wait for the API server, if their context does
	// not end before; 0 means 3 s.
	SyncTimeout time.Duration
	// Strategy is how objects are read; empty means Watch.
	Strategy Strategy
	// TTL returns how old an answer may be with the strategy Cache, as the cluster says now. If it
	// is nil or returns false, the age is a minute.
	TTL func() (time.Duration, bool)
}

// kind of an object. Errors use it as the resource name, in the singular as the kubelet does.
type kind string

const (
	kindConfigMap kind = "configmap"
	kindSecret    kind = "secret"
)

type key struct {
	kind            kind
	namespace, name string
}

// Manager keeps the objects. Its methods are safe for concurrent use.
type Manager struct {
	client   Client
	timeout  time.Duration
	strategy Strategy
	ttl      func() (time.Duration, bool)

	updates chan types.UID
	wake    notify.Signal // pending is not empty

	mu      sync.Mutex
	run     context.Context // of Run; nil before
	ended   bool
	workers sync.WaitGroup
	items   map[key]*item
	pods    map[types.UID]map[key]bool
	pending map[types.UID]bool // to be sent on updates
}

// New returns a manager; Run starts its work.
func New(c Config) (*Manager, error) {
	if c.Client == nil {
		return nil, errors.New("objects: Client is required")
	}
	if c.SyncTimeout == 0 {
		c.SyncTimeout = defaultSyncTimeout
	}
	switch c.Strategy {
	case "":
		c.Strategy = Watch
	case Watch, Cache, Get:
	default:
		return nil, fmt.Errorf("objects: there is no strategy %q", c.Strategy)
	}
	if c.TTL == nil {
		c.TTL = func() (time.Duration, bool) { return 0, false }
	}
	return &Manager{
		client:   c.Client,
		timeout:  c.SyncTimeout,
		strategy: c.Strategy,
		ttl:      c.TTL,
		updates:  make(chan types.UID),
		wake:     notify.New(),
		items:    map[key]*item{},
		pods:     map[types.UID]map[key]bool{},
		pending:  map[types.UID]bool{},
	}, nil
}

// Updates yields the UID of a pod when an object that it names was changed, created or deleted. One
// UID may stand for several changes.
func (m *Manager) Updates() <-chan types.UID { return m.updates }

// Run follows the objects until ctx ends, and returns when its goroutines have ended. It may be
// called once.
func (m *Manager) Run(ctx context.Context) error {
	m.mu.Lock()
	if m.run != nil {
		m.mu.Unlock()
		return errors.New("objects: Run was called twice")
	}
	m.run = ctx
	for _, it := range m.items {
		m.startLocked(it)
	}
	m.mu.Unlock()

	for {
		uid, send := m.takePending()
		var out chan types.UID
		if send {
			out = m.updates
		}
		select {
		case out <- uid:
		case <-m.wake:
			if send {
				m.putBack(uid)
			}
		case <-ctx.Done():
			m.mu.Lock()
			m.ended = true
			m.mu.Unlock()
			m.workers.Wait()
			return nil
		}
	}
}

// takePending takes a UID out of pending before it is sent: the receiver may read the objects as
// soon as it has the UID, so a change from then on must make the UID pending again.
func (m *Manager) takePending() (types.UID, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid := range m.pending {
		delete(m.pending, uid)
		return uid, true
	}
	return "", false
}

// putBack makes a UID pending again that was not sent, unless its pod is gone.
func (m *Manager) putBack(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pods[uid] != nil {
		m.pending[uid] = true
	}
}

// Register adds a pod and the objects that it names, or updates them. It is cheap and may be called
// for every update of the pod.
func (m *Manager) Register(p *v1.Pod) {
	configMaps, secrets := References(p)
	want := make(map[key]bool, len(configMaps)+len(secrets))
	for _, name := range configMaps {
		want[key{kindConfigMap, p.Namespace, name}] = true
	}
	for _, name := range secrets {
		want[key{kindSecret, p.Namespace, name}] = true
	}
	m.set(p.UID, want)
}

// Unregister removes a pod that is gone.
func (m *Manager) Unregister(uid types.UID) { m.set(uid, nil) }

func (m *Manager) set(uid types.UID, want map[key]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	have := m.pods[uid]
	for k := range want {
		if have[k] {
			continue
		}
		it := m.items[k]
		if it == nil {
			it = newItem(k)
			m.items[k] = it
			if m.run != nil {
				m.startLocked(it)
			}
		}
		it.outdate() // a new pod must get a current answer
		it.pods[uid] = true
	}
	for k := range have {
		if want[k] {
			continue
		}
		it := m.items[k]
		delete(it.pods, uid)
		if len(it.pods) == 0 {
			it.stop()
			delete(m.items, k)
		}
	}
	if len(want) == 0 {
		delete(m.pods, uid)
		delete(m.pending, uid)
		return
	}
	m.pods[uid] = want
}

// startLocked starts to follow an object; the caller holds mu.
func (m *Manager) startLocked(it *item) {
	if m.ended || m.strategy != Watch {
		return
	}
	ctx, cancel := context.WithCancel(m.run)
	it.cancel = cancel
	m.workers.Go(func() {
		defer cancel()
		it.follow(ctx, m)
	})
}

// changed marks the item's pods for Updates.
func (m *Manager) changed(it *item) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.items[it.key] != it {
		return
	}
	for uid := range it.pods {
		m.pending[uid] = true
	}
	m.wake.Send()
}

// ConfigMap returns the object, which the caller must not change. A missing object is an API
// NotFound error (configmap "x" not found). After any other error the
// state of the object is unknown: no registered pod names it, or no answer came in time.
func (m *Manager) ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error) {
	o, err := m.get(ctx, key{kindConfigMap, namespace, name})
	if err != nil {
		return nil, err
	}
	return o.(*v1.ConfigMap), nil
}

// Secret is ConfigMap for secrets.
func (m *Manager) Secret(ctx context.Context, namespace, name string) (*v1.Secret, error) {
	o, err := m.get(ctx, key{kindSecret, namespace, name})
	if err != nil {
		return nil, err
	}
	return o.(*v1.Secret), nil
}

func (m *Manager) get(ctx context.Context, k key) (object, error) {
	m.mu.Lock()
	it := m.items[k]
	m.mu.Unlock()
	if it == nil {
		return nil, fmt.Errorf("object %q/%q not registered", k.namespace, k.name)
	}
	ctx, cancel := context.WithTimeout(ctx, m.timeout)
	defer cancel()
	var o object
	var err error
	switch m.strategy {
	case Watch:
		o, err = it.wait(ctx)
	case Cache:
		o, err = it.cached(ctx, m)
	case Get:
		if o, err = it.ask(ctx, m, metav1.GetOptions{}); err != nil {
			err = it.notAsked(err)
		}
	}
	if err != nil {
		return nil, err
	}
	if o == nil {
		return nil, apierrors.NewNotFound(v1.Resource(string(k.kind)), k.name)
	}
	return o, nil
}
