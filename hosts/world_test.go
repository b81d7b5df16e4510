package hosts

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// fakeAPI keeps Hosts as an API server does: a resource version per write, a generation per change
// of the spec, finalizers that delay a deletion.
type fakeAPI struct {
	mu       sync.Mutex
	version  int
	hosts    map[string]*v1alpha1.Host
	log      []watch.Event // by version
	watchers map[*watch.RaceFreeFakeWatcher]bool
	writes   map[string]int // of statuses, by host
	// beforeRecord is called before a machine is recorded, with mu held.
	beforeRecord func(name string)
	oldCRD       bool // it prunes the machine
	oldLogin     bool // it prunes the login of the machine
}

var groupResource = schema.GroupResource{Group: "bowline.io", Resource: resource}

func newFakeAPI() *fakeAPI {
	return &fakeAPI{hosts: map[string]*v1alpha1.Host{}, watchers: map[*watch.RaceFreeFakeWatcher]bool{}, writes: map[string]int{}}
}

// put stores h and sends the event. The caller holds mu.
func (f *fakeAPI) put(kind watch.EventType, h *v1alpha1.Host) {
	f.version++
	h.ResourceVersion = strconv.Itoa(f.version)
	f.hosts[h.Name] = h
	if h.DeletionTimestamp != nil && len(h.Finalizers) == 0 {
		kind = watch.Deleted
		delete(f.hosts, h.Name)
	}
	e := watch.Event{Type: kind, Object: h.DeepCopy()}
	f.log = append(f.log, e)
	for w := range f.watchers {
		if !w.IsStopped() {
			w.Action(e.Type, e.Object)
		}
	}
}

// change creates or changes a Host, as kubectl does.
func (f *fakeAPI) change(name string, change func(*v1alpha1.Host)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	h, kind := f.hosts[name], watch.Modified
	if h == nil {
		h, kind = remoteHost(name), watch.Added
		h.CreationTimestamp = metav1.Now()
		h.Generation = 0
	}
	h = h.DeepCopy()
	change(h)
	h.Generation++
	f.put(kind, h)
}

func (f *fakeAPI) remove(name string) {
	f.change(name, func(h *v1alpha1.Host) { now := metav1.Now(); h.DeletionTimestamp = &now })
}

func (f *fakeAPI) get(name string) *v1alpha1.Host {
	f.mu.Lock()
	defer f.mu.Unlock()
	if h := f.hosts[name]; h != nil {
		return h.DeepCopy()
	}
	return nil
}

func (f *fakeAPI) List(context.Context, metav1.ListOptions) (*v1alpha1.HostList, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := &v1alpha1.HostList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(f.version)}}
	for _, h := range f.hosts {
		list.Items = append(list.Items, *h.DeepCopy())
	}
	return list, nil
}

func (f *fakeAPI) Watch(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	if o.SendInitialEvents != nil {
		return nil, apierrors.NewInvalid(schema.GroupKind{Kind: "ListOptions"}, "", nil) // forces a list
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	w := watch.NewRaceFreeFake()
	f.watchers[w] = true
	since, err := strconv.Atoi(o.ResourceVersion)
	for _, e := range f.log[since:] {
		w.Action(e.Type, e.Object)
	}
	return w, err
}

func (f *fakeAPI) SetFinalizers(_ context.Context, h *v1alpha1.Host, finalizers []string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	have := f.hosts[h.Name]
	switch {
	case have == nil:
		return apierrors.NewNotFound(groupResource, h.Name)
	case have.ResourceVersion != h.ResourceVersion:
		return apierrors.NewConflict(groupResource, h.Name, errors.New("it has changed"))
	}
	have = have.DeepCopy()
	have.Finalizers = finalizers
	f.put(watch.Modified, have)
	return nil
}

func (f *fakeAPI) Get(_ context.Context, name string) (*v1alpha1.Host, error) {
	if h := f.get(name); h != nil {
		return h, nil
	}
	return nil, apierrors.NewNotFound(groupResource, name)
}

func (f *fakeAPI) RecordMachine(_ context.Context, h *v1alpha1.Host, machine v1alpha1.MachineStatus) (*v1alpha1.Host, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.beforeRecord != nil {
		f.beforeRecord(h.Name)
	}
	have := f.hosts[h.Name]
	switch {
	case have == nil:
		return nil, apierrors.NewNotFound(groupResource, h.Name)
	case have.ResourceVersion != h.ResourceVersion:
		return nil, apierrors.NewConflict(groupResource, h.Name, errors.New("it has changed"))
	}
	if f.oldCRD {
		f.setMachine(h.Name, nil)
	} else if f.oldLogin {
		f.setMachine(h.Name, &v1alpha1.MachineStatus{MachineID: machine.MachineID, HostKey: machine.HostKey})
	} else {
		f.setMachine(h.Name, &machine)
	}
	return f.hosts[h.Name].DeepCopy(), nil
}

// setMachine changes the record. The caller holds mu.
func (f *fakeAPI) setMachine(name string, machine *v1alpha1.MachineStatus) {
	h := f.hosts[name].DeepCopy()
	h.Status.Machine = machine
	f.put(watch.Modified, h)
}

func (f *fakeAPI) ApplyStatus(_ context.Context, h *v1alpha1.Host, status *v1alpha1.HostStatus) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	have := f.hosts[h.Name]
	if have == nil {
		return apierrors.NewNotFound(groupResource, h.Name)
	}
	have = have.DeepCopy()
	machine := have.Status.Machine // owned by another manager
	have.Status = *status.DeepCopy()
	have.Status.Machine = machine
	f.writes[h.Name]++
	f.put(watch.Modified, have)
	return nil
}

// world is a Source and its surroundings. The tests play its drivers.
type world struct {
	t      *testing.T
	api    *fakeAPI
	client *fake.Clientset
	source *Source

	mu        sync.Mutex
	sets      int
	set       map[string]*config.Host
	ending    map[string]bool // drivers that are slow to stop
	released  []string
	release   error         // result of a release
	emptying  time.Duration // duration of a release
	budget    error         // answer to an eviction
	evictions []string
}

func newWorld(t *testing.T, objects ...runtime.Object) *world {
	return newWorldOf(t, nil, objects...)
}

// newWorldOf is a process that may hold only a part of the Hosts.
func newWorldOf(t *testing.T, shard Shard, objects ...runtime.Object) *world {
	w := &world{t: t, api: newFakeAPI(), client: fake.NewClientset(objects...), ending: map[string]bool{}}
	w.client.PrependReactor("create", "pods", w.evict)
	var err error
	w.source, err = New(Config{API: w.api, Client: w.client, Namespace: "ours", Template: template(t), Sink: w, Managed: w.managed, Release: w.empty, Shard: shard})
	testutil.Must(t, err)
	stop := testutil.Go(t.Context(), w.source.Run)
	t.Cleanup(func() { _ = stop() })
	synctest.Wait()
	return w
}

// Set implements Sink.
func (w *world) Set(hosts map[string]*config.Host) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sets++
	w.set = hosts
}

func (w *world) wanted() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(slices.Sorted(maps.Keys(w.set)), " ")
}

func (w *world) managed(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.set[name] != nil || w.ending[name]
}

func (w *world) empty(ctx context.Context, h *config.Host) error {
	if w.emptying > 0 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(w.emptying): // virtual time
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.release == nil {
		w.released = append(w.released, h.Name)
	}
	return w.release
}

// evict answers an eviction. The pod ends a moment later, by its driver.
func (w *world) evict(a clienttesting.Action) (bool, runtime.Object, error) {
	c := a.(clienttesting.CreateAction)
	if c.GetSubresource() != "eviction" {
		return false, nil, nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	e := c.GetObject().(*policyv1.Eviction)
	w.evictions = append(w.evictions, e.Name)
	if w.budget != nil {
		return true, nil, w.budget
	}
	go func() {
		time.Sleep(3 * time.Second) // virtual time
		_ = w.client.Tracker().Delete(v1.SchemeGroupVersion.WithResource("pods"), e.Namespace, e.Name)
	}()
	return true, nil, nil
}

// secret returns the Secret of a Host's login.
func secret(name string) *v1.Secret {
	return &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ours", Name: name + "-key"}, Data: map[string][]byte{v1.SSHAuthPrivateKey: []byte("key")}}
}

func node(name, madeOf string) *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "node"}}
	if madeOf != "" {
		n.Annotations = map[string]string{v1alpha1.HostAnnotation: madeOf}
	}
	return n
}

// after advances the time, and waits until everything has settled.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// manages reports for a driver that manages the host by the wanted config.
func (w *world) manages(name string, change ...func(*Report)) {
	w.mu.Lock()
	cfg := w.set[name]
	w.mu.Unlock()
	r := Report{Config: cfg, NodeName: cfg.NodeName, Link: &Link{Up: true, Message: "connected", RTT: 20 * time.Millisecond},
		RuntimeName: "containerd", RuntimeVersion: "2.2", Pods: 1, Ready: true}
	for _, c := range change {
		c(&r)
	}
	w.source.Report(name, r)
	synctest.Wait()
}

// ready expects a Host's condition Ready to have the reason, and the words in its message.
func (w *world) ready(name, reason string, words ...string) {
	w.t.Helper()
	h := w.api.get(name)
	if h == nil {
		w.t.Fatalf("there is no Host %s", name)
	}
	c := meta.FindStatusCondition(h.Status.Conditions, v1alpha1.ConditionReady)
	if c == nil || c.Reason != reason || c.ObservedGeneration != h.Generation || h.Status.ObservedGeneration != h.Generation {
		w.t.Fatalf("Host %s, generation %d: want the reason %s: %s", name, h.Generation, reason, fmt.Sprintf("%+v", h.Status))
	}
	for _, word := range words {
		if !strings.Contains(c.Message, word) {
			w.t.Errorf("Host %s: want %q in: %s", name, word, c.Message)
		}
	}
}
