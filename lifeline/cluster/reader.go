package cluster

import (
	"context"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/bowline-k8s/bowline/notify"
	"github.com/bowline-k8s/bowline/provider/clusterwide"
)

// Config is what a Reader needs.
type Config struct {
	// Cluster is what hosts must have in common to share what is read.
	Cluster clusterwide.Cluster
	// Client authenticates as an account with the rights that the package comment lists.
	Client kubernetes.Interface
	// IgnorePolicies: NetworkPolicies are not read, and Snapshot.Policies is nil.
	IgnorePolicies bool
}

// Reader is a cluster, read for the lifeline of one host.
type Reader struct {
	shared  *Shared
	cfg     Config
	changed notify.Signal
	member  atomic.Pointer[member] // nil until Run
}

// Reader makes a Reader. It reads nothing before Run.
func (s *Shared) Reader(c Config) *Reader {
	return &Reader{shared: s, cfg: c, changed: notify.New()}
}

// Changed signals that Snapshot may return another one. Changes within a fraction of a second are one.
func (r *Reader) Changed() <-chan struct{} { return r.changed }

// Snapshot returns the newest one, or nil until the Services and EndpointSlices are read. It has only what the
// Reader's own client may read.
func (r *Reader) Snapshot() *Snapshot {
	m := r.member.Load()
	if m == nil {
		return nil
	}
	shared := m.feed.current.Load()
	if shared == nil || !m.services.HasSynced() || !m.slices.HasSynced() {
		return nil
	}
	own := *shared
	if !m.readsPolicies() {
		own.Policies = nil
	}
	if !m.nodes.HasSynced() {
		own.Nodes = nil
	}
	if !m.cidrs.HasSynced() {
		own.ServicePrefixes = nil
	}
	return &own
}

// Run reads until ctx ends. It may be called only once.
func (r *Reader) Run(ctx context.Context) error {
	m, leave := r.shared.join(r)
	defer leave()
	r.member.Store(m)
	g, ctx := errgroup.WithContext(ctx)
	run := func(reader interface {
		Run(context.Context, clusterwide.Cluster, kubernetes.Interface) error
	}) {
		g.Go(func() error { return reader.Run(ctx, r.cfg.Cluster, r.cfg.Client) })
	}
	run(m.services)
	run(m.slices)
	run(m.cidrs)
	run(m.nodes)
	if !r.cfg.IgnorePolicies {
		run(m.policies)
		select {
		case <-m.feed.isolating:
			run(m.namespaces)
			run(m.pods)
		case <-ctx.Done():
		}
	}
	return g.Wait()
}

// member has the readers of one host. Those of policies, namespaces and pods are never synced if policies
// are ignored.
type member struct {
	feed       *feed
	changed    notify.Signal
	services   *clusterwide.Objects[*v1.Service]
	slices     *clusterwide.Objects[*discoveryv1.EndpointSlice]
	cidrs      *clusterwide.Objects[*networkingv1.ServiceCIDR]
	nodes      *clusterwide.Objects[*v1.Node]
	policies   *clusterwide.Objects[*networkingv1.NetworkPolicy]
	namespaces *clusterwide.Objects[*v1.Namespace]
	pods       *clusterwide.Objects[*v1.Pod]
}

func newMember(f *feed, objects *clusterwide.Shared, changed notify.Signal) *member {
	return &member{
		feed: f, changed: changed,
		services:   objects.ServiceObjects(f.services),
		slices:     objects.EndpointSlices(f.services),
		cidrs:      objects.ServiceCIDRs(f.addresses),
		nodes:      objects.Nodes(f.addresses),
		policies:   objects.NetworkPolicies(f.policies),
		namespaces: objects.Namespaces(f.policies),
		pods:       objects.Pods(f.policies),
	}
}

// readsPolicies reports whether the host's client has read all that policies need.
func (m *member) readsPolicies() bool {
	select {
	case <-m.feed.isolating:
		return m.policies.HasSynced() && m.namespaces.HasSynced() && m.pods.HasSynced()
	default:
		return m.policies.HasSynced()
	}
}
