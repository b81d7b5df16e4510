package hosts

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/notify"
)

// Sink receives all wanted hosts each time that one changes. The map and the hosts are not modified
// afterwards.
type Sink interface {
	Set(hosts map[string]*config.Host)
}

// Shard decides which Hosts belong to this process where several replicas share them
// (hosts/replica).
type Shard interface {
	// Hosts receives the names of all Hosts, once they have been listed and each time that one is
	// added or deleted.
	Hosts(names []string)
	// Holds reports whether this process validates, manages and removes a Host, and writes its status.
	// The shard calls Look when that changes.
	Holds(name string) bool
}

// Config of a Source.
type Config struct {
	API    API
	Client kubernetes.Interface // nodes, pods and evictions; Secrets of Namespace
	// Namespace has the Secrets that Hosts name.
	Namespace string
	// Kubeconfig of the account that may get those Secrets; the drivers read them with it.
	Kubeconfig string
	// Template has the defaults of what a Host does not set.
	Template *config.Host
	Sink     Sink
	// Managed reports whether the host of that name has a driver, including one that is still
	// stopping.
	Managed func(name string) bool
	// Release removes what a node left on a machine that no driver manages.
	Release func(ctx context.Context, h *config.Host) error
	// Taken reports whether another source already has this host; nil: none does.
	Taken func(h *config.Host) bool
	// AllowLocal accepts Hosts of the machine that this process runs on. Otherwise they are
	// refused.
	AllowLocal bool
	// Shard limits this Source to a part of the Hosts; nil: it manages all.
	Shard Shard
}

func (c *Config) validate() error {
	var errs []error
	for _, f := range []struct {
		field string
		set   bool
	}{{"API", c.API != nil}, {"Client", c.Client != nil}, {"Namespace", c.Namespace != ""}, {"Template", c.Template != nil},
		{"Sink", c.Sink != nil}, {"Managed", c.Managed != nil}, {"Release", c.Release != nil}} {
		if !f.set {
			errs = append(errs, fmt.Errorf("%s is required", f.field))
		}
	}
	return errors.Join(errs...)
}

const (
	workers = 4
	// retryRefused: the cause of a refusal may be fixed elsewhere, without an event here.
	retryRefused = 15 * time.Second
	// The least time between two writes of a Host's status, and of a change that is minor.
	writePause, minorPause = time.Second, 20 * time.Second
)

// Source reconciles the Host objects of a cluster.
type Source struct {
	cfg     Config
	hosts   cache.SharedIndexInformer
	queue   workqueue.TypedRateLimitingInterface[string]
	secrets *secrets
	names   notify.Signal // a Host has been added or deleted
	events  atomic.Int64  // how many were written; for their names

	mu       sync.Mutex
	wanted   map[string]*config.Host
	reports  map[string]Report
	written  map[string]time.Time // when each status was last written
	pending  map[string][]event   // events that are not those of a status
	bounds   map[string]bounds    // of the events
	releases map[string]*release
	at       map[string]bool // Hosts that may be worked on; used only with a Shard
	ctx      context.Context // the context of Run
	running  sync.WaitGroup  // releases
}

// New makes a Source.
func New(c Config) (*Source, error) {
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("hosts: %w", err)
	}
	s := &Source{
		cfg: c, wanted: map[string]*config.Host{}, reports: map[string]Report{}, written: map[string]time.Time{}, pending: map[string][]event{}, bounds: map[string]bounds{}, releases: map[string]*release{},
		at: map[string]bool{}, names: notify.New(),
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Second, time.Minute)),
	}
	s.secrets = newSecrets(c.Client, c.Namespace, s.queue.Add)
	s.hosts = cache.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return c.API.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return c.API.Watch(ctx, o)
		},
	}, &v1alpha1.Host{}, 0, cache.Indexers{})
	if err := s.hosts.SetTransform(withoutManagedFields); err != nil {
		return nil, err
	}
	_, err := s.hosts.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { s.enqueue(obj); s.names.Send() },
		UpdateFunc: func(_, obj any) { s.enqueue(obj) },
		DeleteFunc: func(obj any) { s.enqueue(obj); s.names.Send() },
	})
	return s, err
}

func withoutManagedFields(obj any) (any, error) {
	if h, ok := obj.(*v1alpha1.Host); ok {
		h.ManagedFields = nil
	}
	return obj, nil
}

func (s *Source) enqueue(obj any) {
	if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
		s.queue.Add(key)
	}
}

// Run reconciles Hosts until ctx ends. Managed hosts stay managed.
func (s *Source) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	s.ctx, s.secrets.ctx = ctx, ctx
	var all sync.WaitGroup
	defer func() {
		cancel()
		s.queue.ShutDown()
		all.Wait()
		s.running.Wait()
		s.secrets.running.Wait()
	}()
	all.Go(func() { s.hosts.RunWithContext(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), s.hosts.HasSynced) {
		return nil
	}
	if s.cfg.Shard != nil {
		s.names.Send()
		all.Go(func() { s.counts(ctx) })
	}
	for range workers {
		all.Go(func() { s.work(ctx) })
	}
	<-ctx.Done()
	return nil
}

func (s *Source) work(ctx context.Context) {
	for {
		name, down := s.queue.Get()
		if down {
			return
		}
		logger := klog.FromContext(ctx).WithValues("host", name)
		again, err := s.reconcile(klog.NewContext(ctx, logger), name)
		switch {
		case ctx.Err() != nil:
		case apierrors.IsConflict(err): // the informer will deliver the newer one
			s.queue.AddRateLimited(name)
		case err != nil:
			logger.Error(err, "Failed to sync the Host, will retry")
			s.queue.AddRateLimited(name)
		default:
			s.queue.Forget(name)
			if again > 0 {
				s.queue.AddAfter(name, again)
			}
		}
		s.queue.Done(name)
	}
}

// reconcile does what is due for one Host. again is when to look again even if nothing changes.
func (s *Source) reconcile(ctx context.Context, name string) (again time.Duration, err error) {
	if !s.enter(name) {
		s.leave(ctx, name)
		return 0, nil
	}
	h := s.get(name)
	if h == nil {
		s.gone(name)
		return 0, nil
	}
	s.secrets.follow(name, secretName(h))
	if h.DeletionTimestamp != nil {
		return s.remove(ctx, h)
	}
	cfg, refusal, err := s.validate(ctx, h)
	if err != nil {
		return 0, err
	}
	switch {
	case refusal != nil:
		again = retryRefused
	case cfg == nil:
		return 0, nil // the Secret's first answer enqueues the Host again
	case !slices.Contains(h.Finalizers, v1alpha1.Finalizer):
		// Set before it becomes a node, because a deleted Host has to be released.
		return 0, ignoreGone(s.cfg.API.SetFinalizers(ctx, h, append(slices.Clone(h.Finalizers), v1alpha1.Finalizer)))
	default:
		s.want(ctx, name, cfg)
	}
	s.emit(ctx, h, s.takePending(name))
	wait, err := s.writeStatus(ctx, h, refusal)
	if again == 0 || wait > 0 && wait < again {
		again = wait
	}
	return again, err
}

// writeStatus writes the status, unless it is up to date or was written just now.
func (s *Source) writeStatus(ctx context.Context, h *v1alpha1.Host, v *notReady) (again time.Duration, err error) {
	now := time.Now()
	s.mu.Lock()
	var r *Report
	if last, ok := s.reports[h.Name]; ok {
		r = &last
	}
	status := statusOf(h, v, s.wanted[h.Name], r, now)
	since := now.Sub(s.written[h.Name])
	s.mu.Unlock()
	have := h.Status
	have.Machine = nil // recorded separately
	differs, minor := difference(&have, status)
	pause := writePause
	if minor {
		pause = minorPause
	}
	switch {
	case !differs:
		return 0, nil
	case since < pause:
		return pause - since, nil
	}
	if err := s.cfg.API.ApplyStatus(ctx, h, status); err != nil {
		return 0, ignoreGone(err)
	}
	s.mu.Lock()
	s.written[h.Name] = now
	s.mu.Unlock()
	s.emit(ctx, h, eventsOf(&h.Status, status))
	return 0, nil
}

func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// want makes cfg the config that the host is managed by.
func (s *Source) want(ctx context.Context, name string, cfg *config.Host) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if equality.Semantic.DeepEqual(s.wanted[name], cfg) {
		return
	}
	klog.FromContext(ctx).Info("Starting to manage the host", "node", cfg.NodeName, "endpoint", cfg.Endpoint)
	s.wanted[name] = cfg
	s.cfg.Sink.Set(maps.Clone(s.wanted))
}

// unwant stops managing a host.
func (s *Source) unwant(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wanted[name] == nil {
		return
	}
	delete(s.wanted, name)
	delete(s.reports, name)
	s.cfg.Sink.Set(maps.Clone(s.wanted))
}

func (s *Source) wants(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wanted[name] != nil
}

// gone forgets a Host that does not exist any more. If someone removed its finalizer, it is let go
// like a detached one, except that its Node stays.
func (s *Source) gone(name string) {
	s.unwant(name)
	s.secrets.follow(name, "")
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.reports, name)
	delete(s.written, name)
	delete(s.pending, name)
	delete(s.bounds, name)
	delete(s.releases, name)
	delete(s.at, name)
}

func (s *Source) get(name string) *v1alpha1.Host {
	obj, found, err := s.hosts.GetStore().GetByKey(name)
	if err != nil || !found {
		return nil
	}
	return obj.(*v1alpha1.Host)
}

func (s *Source) all() []*v1alpha1.Host {
	var all []*v1alpha1.Host
	for _, obj := range s.hosts.GetStore().List() {
		all = append(all, obj.(*v1alpha1.Host))
	}
	return all
}
