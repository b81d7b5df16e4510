package replica

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/config"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if !testing.Verbose() {
		klog.LogToStderr(false)
		klog.SetOutput(io.Discard)
	}
	os.Exit(m.Run())
}

// server keeps Leases as an API server does: a version per write, and a conflict for a write of an
// outdated version.
type server struct {
	mu     sync.Mutex
	cond   *sync.Cond // something was written, or a wire has changed
	leases map[string]*coordinationv1.Lease
	log    []watch.Event // by version
	uids   int
}

// put stores a Lease and sends the event. The caller holds mu.
func (s *server) put(kind watch.EventType, l *coordinationv1.Lease) *coordinationv1.Lease {
	l = l.DeepCopy()
	l.ResourceVersion = strconv.Itoa(len(s.log) + 1)
	if kind == watch.Deleted {
		delete(s.leases, l.Name)
	} else {
		s.leases[l.Name] = l
	}
	s.log = append(s.log, watch.Event{Type: kind, Object: l.DeepCopy()})
	s.cond.Broadcast()
	return l.DeepCopy()
}

// condition of a wire.
type condition int

const (
	whole     condition = iota
	refusing            // every call fails at once, and watches end
	swallowed           // nothing is answered
)

// wire is one replica's connection to the server.
type wire struct {
	*server
	is     condition
	denied string // writes of Leases whose names have this prefix are forbidden
	by     *member
}

var _ Leases = (*wire)(nil)

func (w *wire) turn(to condition) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.is = to
	w.cond.Broadcast()
}

// through waits until a call gets through. The caller holds mu.
func (w *wire) through(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { w.mu.Lock(); defer w.mu.Unlock(); w.cond.Broadcast() })()
	for w.is == swallowed && ctx.Err() == nil {
		w.cond.Wait()
	}
	if w.is == refusing {
		return errors.New("connection refused")
	}
	return ctx.Err()
}

var resource = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

// there returns a Lease as stored. Writes call it with the version that they saw.
func (w *wire) there(ctx context.Context, name string, saw *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	if err := w.through(ctx); err != nil {
		return nil, err
	}
	l := w.leases[name]
	switch {
	case saw != nil && w.denied != "" && strings.HasPrefix(name, w.denied):
		return nil, apierrors.NewForbidden(resource, name, errors.New("no rule"))
	case l == nil:
		return nil, apierrors.NewNotFound(resource, name)
	case saw != nil && saw.ResourceVersion != l.ResourceVersion:
		return nil, apierrors.NewConflict(resource, name, errors.New("it has changed"))
	}
	return l.DeepCopy(), nil
}

func (w *wire) Get(ctx context.Context, name string, _ metav1.GetOptions) (*coordinationv1.Lease, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.there(ctx, name, nil)
}

// late delays a write by a time that depends on the Lease and the writer.
func (w *wire) late(name string) {
	h := fnv.New32()
	_, _ = h.Write([]byte(w.by.name + name))
	time.Sleep(time.Duration(h.Sum32()%5) * 20 * time.Millisecond)
}

func (w *wire) Create(ctx context.Context, l *coordinationv1.Lease, _ metav1.CreateOptions) (*coordinationv1.Lease, error) {
	w.late(l.Name)
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := w.there(ctx, l.Name, l)
	switch {
	case err == nil || apierrors.IsConflict(err):
		return nil, apierrors.NewAlreadyExists(resource, l.Name)
	case !apierrors.IsNotFound(err):
		return nil, err
	}
	w.uids++
	l = l.DeepCopy()
	l.UID = types.UID(fmt.Sprint(w.uids))
	return w.put(watch.Added, l), nil
}

func (w *wire) Update(ctx context.Context, l *coordinationv1.Lease, _ metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	w.late(l.Name)
	w.mu.Lock()
	defer w.mu.Unlock()
	was, err := w.there(ctx, l.Name, l)
	if err != nil {
		return nil, err
	}
	if host, ok := strings.CutPrefix(l.Name, hostPrefix); ok && holder(was) == w.by.name && (w.by.managed(host) || w.by.At(host)) {
		w.by.w.t.Errorf("%s gives %s to %s, and is at it still", w.by.name, host, holder(l))
	}
	return w.put(watch.Modified, l), nil
}

func (w *wire) Delete(ctx context.Context, name string, o metav1.DeleteOptions) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	saw := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{ResourceVersion: *o.Preconditions.ResourceVersion}}
	l, err := w.there(ctx, name, saw)
	if err == nil {
		w.put(watch.Deleted, l)
	}
	return err
}

func (w *wire) List(ctx context.Context, o metav1.ListOptions) (*coordinationv1.LeaseList, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.through(ctx); err != nil {
		return nil, err
	}
	if o.LabelSelector != KindLabel {
		return nil, fmt.Errorf("the selector is %q", o.LabelSelector)
	}
	list := &coordinationv1.LeaseList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(len(w.log))}}
	for _, l := range w.leases {
		list.Items = append(list.Items, *l.DeepCopy())
	}
	return list, nil
}

func (w *wire) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	if o.SendInitialEvents != nil {
		return nil, apierrors.NewInvalid(schema.GroupKind{Kind: "ListOptions"}, "", nil) // forces a list
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.through(ctx); err != nil {
		return nil, err
	}
	at, err := strconv.Atoi(o.ResourceVersion)
	if err != nil {
		return nil, err
	}
	events := make(chan watch.Event)
	watching := watch.NewProxyWatcher(events)
	ctx, cancel := context.WithCancel(ctx)
	go func() { <-watching.StopChan(); cancel() }()
	go func() {
		defer close(events)
		defer cancel()
		for {
			w.mu.Lock()
			for at == len(w.log) && w.is == whole && ctx.Err() == nil {
				stop := context.AfterFunc(ctx, func() { w.mu.Lock(); defer w.mu.Unlock(); w.cond.Broadcast() })
				w.cond.Wait()
				stop()
			}
			err := w.through(ctx)
			var next []watch.Event
			if err == nil {
				next = slices.Clone(w.log[at:])
				at += len(next)
			}
			w.mu.Unlock()
			if err != nil {
				return
			}
			for _, e := range next {
				select {
				case events <- watch.Event{Type: e.Type, Object: e.Object.DeepCopyObject()}:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return watching, nil
}

// world is a cluster with machines and replicas.
type world struct {
	t      *testing.T
	server *server

	mu      sync.Mutex
	hosts   map[string]*config.Host
	locks   map[string]*member // of machines
	freed   chan struct{}      // closed when a lock is released
	began   map[string]int     // how often a machine was taken
	members []*member
	// Measured by after.
	idle  map[string]time.Duration // of a host: how long it has not been managed until now
	worst time.Duration            // the longest of these since it was set to 0
	most  int                      // most hosts idle at once since it was set to 0
	both  map[string]time.Duration // of a host: how long two replicas have believed that they hold it
}

func newWorld(t *testing.T, hosts int) *world {
	s := &server{leases: map[string]*coordinationv1.Lease{}}
	s.cond = sync.NewCond(&s.mu)
	w := &world{t: t, server: s, hosts: map[string]*config.Host{}, locks: map[string]*member{}, freed: make(chan struct{}), began: map[string]int{},
		idle: map[string]time.Duration{}, both: map[string]time.Duration{}}
	for i := range hosts {
		name := fmt.Sprintf("h%02d", i)
		w.hosts[name] = &config.Host{Name: name}
	}
	return w
}

// member is a replica's process: the Replica, its drivers, and its reconciler of Hosts.
type member struct {
	w      *world
	name   string
	r      *Replica
	wire   *wire
	cancel context.CancelFunc
	ended  chan error

	// guarded by w.mu
	lingers  time.Duration // how long drivers take to stop
	finishes time.Duration // how long the reconciler takes to finish
	apart    bool          // it does not reach the machines
	gone     bool          // killed: it does nothing any more
	set      map[string]*config.Host
	drivers  map[string]context.CancelFunc
	busy     map[string]time.Time
}

// start starts a replica.
func (w *world) start(name string) *member {
	w.t.Helper()
	m := &member{w: w, name: name, wire: &wire{server: w.server}, ended: make(chan error, 1), lingers: 300 * time.Millisecond, finishes: 500 * time.Millisecond,
		drivers: map[string]context.CancelFunc{}, busy: map[string]time.Time{}}
	m.wire.by = m
	var err error
	m.r, err = New(Config{Name: name, Leases: m.wire, Sink: m, Managed: m.managed})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	w.mu.Lock()
	w.members = append(w.members, m)
	w.mu.Unlock()
	go func() { m.ended <- m.r.Run(ctx, m) }()
	m.r.Set(maps.Clone(w.hosts))
	m.r.Hosts(slices.Collect(maps.Keys(w.hosts)))
	return m
}

// end stops everything; a synctest bubble may leave nothing behind.
func (w *world) end() {
	for _, m := range w.members {
		m.wire.turn(refusing)
		m.cancel()
	}
	time.Sleep(time.Minute)
	synctest.Wait()
}

// kill ends a process by SIGKILL: the kernel of its machine closes its connections. If the machine
// dies, its connections stay open, and the locks are released later.
func (m *member) kill(locks time.Duration) {
	m.wire.turn(refusing)
	m.w.mu.Lock()
	m.gone = true
	for _, cancel := range m.drivers {
		cancel()
	}
	m.w.mu.Unlock()
	free := func() {
		m.w.mu.Lock()
		defer m.w.mu.Unlock()
		m.w.free(func(_ string, by *member) bool { return by == m })
	}
	if locks == 0 {
		free()
	} else {
		time.AfterFunc(locks, free)
	}
}

// slow sets how long drivers and the reconciler take to end.
func (m *member) slow(lingers, finishes time.Duration) {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	m.lingers, m.finishes = lingers, finishes
}

func (m *member) Look(name string) {
	mine := m.r.Holds(name)
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	if !mine {
		m.busy[name] = time.Now().Add(m.finishes)
	}
}

func (m *member) At(name string) bool {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	return time.Now().Before(m.busy[name])
}

func (m *member) managed(name string) bool {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	return m.drivers[name] != nil
}

// Set plays the pool.
func (m *member) Set(hosts map[string]*config.Host) {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	m.set = hosts
	m.manage()
}

// manage starts and stops drivers. The caller holds mu.
func (m *member) manage() {
	for name, cancel := range m.drivers {
		if m.set[name] == nil {
			cancel()
		}
	}
	for name := range m.set {
		if m.drivers[name] != nil || m.gone {
			continue
		}
		ctx, cancel := context.WithCancel(context.Background())
		m.drivers[name] = cancel
		go func() {
			for ctx.Err() == nil {
				select { // again after the lock was lost
				case <-ctx.Done():
				case <-m.take(name):
				}
			}
			m.w.mu.Lock()
			gone, lingers := m.gone, m.lingers
			m.w.mu.Unlock()
			if gone {
				return
			}
			time.Sleep(lingers)
			m.w.mu.Lock()
			defer m.w.mu.Unlock()
			m.w.free(func(host string, by *member) bool { return host == name && by == m })
			delete(m.drivers, name)
			m.manage()
		}()
	}
}

// take takes a machine's lock, unless another member has it. The returned channel is closed when a
// lock is released.
func (m *member) take(name string) <-chan struct{} {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	if m.w.locks[name] == nil && !m.gone && !m.apart && m.set[name] != nil {
		m.w.locks[name] = m
		m.w.began[name]++
	}
	return m.w.freed
}

// free releases locks. The caller holds mu.
func (w *world) free(which func(host string, by *member) bool) {
	maps.DeleteFunc(w.locks, which)
	close(w.freed)
	w.freed = make(chan struct{})
}

// after advances the time, and checks everything each 100 ms, or 1200 times if that is fewer.
func (w *world) after(d time.Duration) {
	step := max(100*time.Millisecond, d/1200)
	for ; d > 0; d -= step {
		time.Sleep(min(d, step))
		synctest.Wait()
		believers := map[string]int{}
		for _, m := range w.members {
			w.mu.Lock()
			gone := m.gone
			w.mu.Unlock()
			for h := range w.hosts {
				if !gone && m.r.Holds(h) {
					believers[h]++
				}
			}
		}
		w.mu.Lock()
		idle := 0
		for h := range w.hosts {
			if believers[h] > 1 {
				w.both[h] += step
			}
			if by := w.locks[h]; by != nil && by.set[h] != nil && !by.gone {
				w.idle[h] = 0
				continue
			}
			idle++
			w.idle[h] += step
			w.worst = max(w.worst, w.idle[h])
		}
		w.most = max(w.most, idle)
		w.mu.Unlock()
	}
}

// counts is the number of hosts that each member manages, in the order of their starts.
func (w *world) counts() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []string
	for _, m := range w.members {
		n := 0
		for _, by := range w.locks {
			if by == m {
				n++
			}
		}
		all = append(all, fmt.Sprintf("%s:%d", m.name, n))
	}
	return strings.Join(all, " ")
}

// moves is how often machines have been taken, beyond once each.
func (w *world) moves() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := -len(w.began)
	for _, times := range w.began {
		n += times
	}
	return n
}

// fresh resets the measurements.
func (w *world) fresh() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.worst, w.most = 0, 0
	clear(w.both)
	clear(w.began)
	for h := range w.locks {
		w.began[h] = 1
	}
}

// lease is a Lease as stored, or nil.
func (w *world) lease(name string) *coordinationv1.Lease {
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	return w.server.leases[name]
}

// want expects each member to have so many hosts, all managed, and each by the holder of its Lease.
func (w *world) want(counts string) {
	w.t.Helper()
	if got := w.counts(); got != counts {
		w.t.Errorf("after %s: the hosts are with %q, and not with %q", w.since(), got, counts)
	}
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	for h := range w.hosts {
		l, by := w.server.leases[leaseName(h)], w.locks[h]
		if l == nil || by == nil || holder(l) != by.name {
			w.t.Errorf("after %s: the Lease of %s is %v, managed it is by %v", w.since(), h, l, by)
		}
	}
}

var zero = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func (w *world) since() time.Duration { return time.Since(zero) }
