package hosts

import (
	"context"
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// secrets runs one informer for each Secret that Hosts name, selected by name, because the account
// may be allowed to read no other. It does not keep the values.
type secrets struct {
	client    kubernetes.Interface
	namespace string
	changed   func(host string)

	mu      sync.Mutex
	ctx     context.Context // the context of Source.Run
	byHost  map[string]*followed
	byName  map[string]*followed
	running sync.WaitGroup
}

// followed is one Secret.
type followed struct {
	name  string
	hosts map[string]bool
	stop  context.CancelFunc

	informer cache.SharedIndexInformer
	err      error // of the last list or watch; nil once one has succeeded
}

func newSecrets(client kubernetes.Interface, namespace string, changed func(string)) *secrets {
	return &secrets{client: client, namespace: namespace, changed: changed, byHost: map[string]*followed{}, byName: map[string]*followed{}}
}

// follow makes name the Secret of host, or removes it if name is empty. It stops the informer of
// the old Secret when no other host uses it.
func (s *secrets) follow(host, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.byHost[host]
	if old != nil && old.name == name {
		return
	}
	if old != nil {
		delete(s.byHost, host)
		delete(old.hosts, host)
		if len(old.hosts) == 0 {
			delete(s.byName, old.name)
			old.stop()
		}
	}
	if name == "" {
		return
	}
	f := s.byName[name]
	if f == nil {
		f = s.start(name)
		s.byName[name] = f
	}
	f.hosts[host] = true
	s.byHost[host] = f
}

// start starts the informer of a Secret. The caller holds mu.
func (s *secrets) start(name string) *followed {
	ctx, cancel := context.WithCancel(s.ctx)
	only := func(o metav1.ListOptions) metav1.ListOptions {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", name).String()
		return o
	}
	f := &followed{name: name, hosts: map[string]bool{}, stop: cancel}
	client := s.client.CoreV1().Secrets(s.namespace)
	f.informer = cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := client.List(ctx, only(o))
			s.note(f, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := client.Watch(ctx, only(o))
			s.note(f, err)
			return w, err
		},
	}, s.client), &v1.Secret{}, 0, cache.Indexers{})
	// These fail only if the informer has been started, which it has not.
	_ = f.informer.SetTransform(withoutValues)
	_, _ = f.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { s.notify(f) },
		UpdateFunc: func(any, any) { s.notify(f) },
		DeleteFunc: func(any) { s.notify(f) },
	})
	s.running.Go(func() { f.informer.RunWithContext(ctx) })
	s.running.Go(func() {
		if cache.WaitForCacheSync(ctx.Done(), f.informer.HasSynced) {
			s.notify(f)
		}
	})
	return f
}

// withoutValues keeps the names of a Secret's keys, and whether each has a value.
func withoutValues(obj any) (any, error) {
	if secret, ok := obj.(*v1.Secret); ok {
		for key, value := range secret.Data {
			if len(value) > 0 {
				clear(value)
				secret.Data[key] = []byte{1}
			}
		}
		secret.ManagedFields, secret.Annotations = nil, nil
	}
	return obj, nil
}

func (s *secrets) note(f *followed, err error) {
	s.mu.Lock()
	changed := (err == nil) != (f.err == nil)
	f.err = err
	s.mu.Unlock()
	if changed {
		s.notify(f)
	}
}

func (s *secrets) notify(f *followed) {
	s.mu.Lock()
	var hosts []string
	for h := range f.hosts {
		hosts = append(hosts, h)
	}
	s.mu.Unlock()
	for _, h := range hosts {
		s.changed(h)
	}
}

// look reports whether host's Secret has a key. known is false until the first answer; missing says
// what is wrong and what to do about it.
func (s *secrets) look(host string) (known bool, missing string) {
	s.mu.Lock()
	f := s.byHost[host]
	var err error
	if f != nil {
		err = f.err
	}
	s.mu.Unlock()
	switch {
	case f == nil:
		return true, ""
	case !f.informer.HasSynced() && err != nil:
		return true, fmt.Sprintf("the Secret %s/%s cannot be read: %v; Bowline's account needs get, list and watch of it (a Role with resourceNames)", s.namespace, f.name, err)
	case !f.informer.HasSynced():
		return false, ""
	}
	obj, found, err := f.informer.GetStore().GetByKey(s.namespace + "/" + f.name)
	if err != nil || !found {
		return true, fmt.Sprintf("the Secret %s/%s does not exist; create it: kubectl create secret generic %s -n %s --type=%s --from-file=%s=FILE", s.namespace, f.name, f.name, s.namespace, v1.SecretTypeSSHAuth, v1.SSHAuthPrivateKey)
	}
	if len(obj.(*v1.Secret).Data[v1.SSHAuthPrivateKey]) == 0 {
		return true, fmt.Sprintf("the Secret %s/%s has no %s: its type must be %s", s.namespace, f.name, v1.SSHAuthPrivateKey, v1.SecretTypeSSHAuth)
	}
	return true, ""
}
