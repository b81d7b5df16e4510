package cluster

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/bowline-k8s/bowline/lifeline/policy"
	"github.com/bowline-k8s/bowline/lifeline/route"
	"github.com/bowline-k8s/bowline/notify"
	"github.com/bowline-k8s/bowline/provider/clusterwide"
)

const (
	// minPause is the least time between two Snapshots. A rolling update changes an EndpointSlice many times.
	minPause = 200 * time.Millisecond
	// shareOfPause is the pause in terms of the time that the last Snapshot took. So a cluster of any size
	// costs at most a twentieth of a CPU.
	shareOfPause = 20
)

// Snapshot is a cluster at one time. It is immutable.
type Snapshot struct {
	Services *route.Services
	// Policies is nil, so that it permits nothing, until the NetworkPolicies are read, and the pods and
	// namespaces that they need. That is also so for a moment after the first NetworkPolicy is created.
	Policies *policy.Policies
	// ServicePrefixes are those of the ServiceCIDR objects; nil until they are read. API servers before 1.33
	// have no such objects.
	ServicePrefixes []netip.Prefix
	// Nodes are sorted by name; nil until they are read.
	Nodes []Node
}

// Shared owns the feeds of all clusters that lifelines of this process are in.
type Shared struct {
	objects *clusterwide.Shared
	mu      sync.Mutex
	feeds   map[clusterwide.Cluster]*feed
}

// NewShared makes a Shared that reads through the informers of objects.
func NewShared(objects *clusterwide.Shared) *Shared {
	return &Shared{objects: objects, feeds: map[clusterwide.Cluster]*feed{}}
}

// join adds a Reader to the feed of its cluster. leave removes it, and ends the feed if it was the last one.
func (s *Shared) join(r *Reader) (_ *member, leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.feeds[r.cfg.Cluster]
	if f == nil {
		f = newFeed()
		f.start()
		s.feeds[r.cfg.Cluster] = f
	}
	m := newMember(f, s.objects, r.changed)
	f.add(m)
	return m, func() { s.leave(r.cfg.Cluster, m) }
}

func (s *Shared) leave(c clusterwide.Cluster, m *member) {
	s.mu.Lock()
	last := m.feed.remove(m)
	if last {
		delete(s.feeds, c) // a host that joins later reads again
	}
	s.mu.Unlock()
	if last {
		m.feed.close()
	}
}

// feed compiles the Snapshots of one cluster. Its goroutine belongs to no host, as the informers do not.
type feed struct {
	services, addresses, policies notify.Signal // what has changed
	isolating                     chan struct{} // closed when there is a NetworkPolicy
	current                       atomic.Pointer[Snapshot]
	mu                            sync.Mutex
	members                       []*member
	stop                          context.CancelFunc
	running                       sync.WaitGroup
}

func newFeed() *feed {
	return &feed{
		services: notify.New(), addresses: notify.New(), policies: notify.New(), isolating: make(chan struct{}),
	}
}

func (f *feed) add(m *member) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.members = append(f.members, m)
}

func (f *feed) remove(m *member) (last bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.members = slices.DeleteFunc(f.members, func(o *member) bool { return o == m })
	return len(f.members) == 0
}

func (f *feed) start() {
	ctx, stop := context.WithCancel(context.Background())
	f.stop = stop
	f.running.Go(func() { f.run(ctx) })
}

func (f *feed) close() {
	f.stop()
	f.running.Wait()
}

// run compiles what has changed, at once after a pause without changes.
func (f *feed) run(ctx context.Context) {
	var next Snapshot
	for {
		var services, addresses, policies bool
		select {
		case <-ctx.Done():
			return
		case <-f.services:
			services = true
		case <-f.addresses:
			addresses = true
		case <-f.policies:
			policies = true
		}
		began := time.Now()
		if pending(f.services) || services {
			f.readServices(&next)
		}
		if pending(f.addresses) || addresses {
			f.readAddresses(&next)
		}
		if pending(f.policies) || policies {
			f.readPolicies(&next)
		}
		if next.Services != nil {
			s := next
			f.publish(&s)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(max(minPause, shareOfPause*time.Since(began))):
		}
	}
}

func pending(s notify.Signal) bool {
	select {
	case <-s:
		return true
	default:
		return false
	}
}

func (f *feed) publish(s *Snapshot) {
	f.current.Store(s)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.members {
		m.changed.Send()
	}
}

// read returns the objects of a kind, as the first host that may read them has them.
func read[T any](f *feed, of func(*member) *clusterwide.Objects[T]) (all []T, ok bool) {
	f.mu.Lock()
	members := slices.Clone(f.members)
	f.mu.Unlock()
	for _, m := range members {
		if objects := of(m); objects.HasSynced() {
			return objects.All(), true
		}
	}
	return nil, false
}

func (f *feed) readServices(s *Snapshot) {
	services, ok := read(f, func(m *member) *clusterwide.Objects[*v1.Service] { return m.services })
	endpoints, also := read(f, func(m *member) *clusterwide.Objects[*discoveryv1.EndpointSlice] { return m.slices })
	if ok && also {
		s.Services = route.NewServices(services, endpoints)
	}
}

func (f *feed) readPolicies(s *Snapshot) {
	policies, ok := read(f, func(m *member) *clusterwide.Objects[*networkingv1.NetworkPolicy] { return m.policies })
	if !ok {
		return
	}
	if len(policies) > 0 && !closed(f.isolating) {
		close(f.isolating)
	}
	var c policy.Config
	if closed(f.isolating) {
		namespaces, ok := read(f, func(m *member) *clusterwide.Objects[*v1.Namespace] { return m.namespaces })
		pods, also := read(f, func(m *member) *clusterwide.Objects[*v1.Pod] { return m.pods })
		if !ok || !also {
			s.Policies = nil
			return
		}
		c = policy.Config{Policies: policies, Namespaces: namespaces, Pods: pods}
	}
	s.Policies = policy.New(c)
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (f *feed) readAddresses(s *Snapshot) {
	if cidrs, ok := read(f, func(m *member) *clusterwide.Objects[*networkingv1.ServiceCIDR] { return m.cidrs }); ok {
		s.ServicePrefixes = servicePrefixes(cidrs)
	}
	if nodes, ok := read(f, func(m *member) *clusterwide.Objects[*v1.Node] { return m.nodes }); ok {
		s.Nodes = make([]Node, 0, len(nodes))
		for _, n := range nodes {
			s.Nodes = append(s.Nodes, nodeOf(n))
		}
		slices.SortFunc(s.Nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	}
}
