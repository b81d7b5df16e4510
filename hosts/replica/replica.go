package replica

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/hosts/shard"
	"github.com/bowline-k8s/bowline/notify"
)

const (
	// renewPeriod is between two renewals, renewAgain before the retry of a failed one. answer is
	// the timeout of one request.
	renewPeriod = 4 * time.Second
	renewAgain  = time.Second
	answer      = 3 * time.Second
	// doubt: a replica that has not seen its own renewals for this long moves no hosts. dead: a
	// replica whose Lease has not been seen to change for this long holds no hosts any more.
	doubt = 6 * time.Second
	dead  = 10 * time.Second
	// forgotten: the Lease of a replica that has been dead for this long is deleted.
	forgotten = 5 * time.Minute
	// lookAgain is the poll interval for what sends no event: drivers that stop.
	lookAgain = 200 * time.Millisecond
)

// Leases are the Leases of Bowline's own namespace.
type Leases interface {
	Create(ctx context.Context, lease *coordinationv1.Lease, opts metav1.CreateOptions) (*coordinationv1.Lease, error)
	Update(ctx context.Context, lease *coordinationv1.Lease, opts metav1.UpdateOptions) (*coordinationv1.Lease, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*coordinationv1.Lease, error)
	List(ctx context.Context, opts metav1.ListOptions) (*coordinationv1.LeaseList, error)
	Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)
}

// Sink receives all hosts that it is to manage, each time that one changes.
type Sink interface {
	Set(hosts map[string]*config.Host)
}

// Objects reconciles the Hosts that are ours (hosts.Source).
type Objects interface {
	// Look is called when a host has become ours, or has stopped being ours.
	Look(name string)
	// At reports whether work on a host that is not ours is still in progress.
	At(name string) bool
}

// Config of a Replica.
type Config struct {
	// Name is unique among the replicas.
	Name   string
	Leases Leases
	Sink   Sink
	// Managed reports whether the host of that name has a driver, including one that is still
	// stopping.
	Managed func(name string) bool
	// Patience is the time that the replica has at its end to give its hosts away one by one; 15 s
	// by default.
	Patience time.Duration
}

func (c *Config) validate() error {
	var errs []error
	for _, f := range []struct {
		field string
		set   bool
	}{{"Name", c.Name != ""}, {"Leases", c.Leases != nil}, {"Sink", c.Sink != nil}, {"Managed", c.Managed != nil}} {
		if !f.set {
			errs = append(errs, fmt.Errorf("%s is required", f.field))
		}
	}
	if c.Name != "" {
		for _, fault := range validation.IsDNS1123Subdomain(replicaPrefix + c.Name) {
			errs = append(errs, fmt.Errorf("name %q: %s", c.Name, fault))
		}
	}
	return errors.Join(errs...)
}

// Replica is one of the processes that share the hosts. It filters what the source of hosts
// (hosts.Shard, hosts.Sink) passes to the pool that manages them.
type Replica struct {
	cfg      Config
	identity string // unique per process, even if two have the same name
	view     *view
	wake     notify.Signal // run a step now
	beat     notify.Signal // renew now
	wrote    chan written

	mu      sync.Mutex
	hosts   []string // all that exist
	known   bool     // hosts has been set
	wanted  map[string]*config.Host
	held    map[string]bool
	given   map[string]bool // held, and being given away: its driver is stopping
	leaving bool

	// Only Run uses these.
	objects  Objects
	living   []shard.Replica
	heard    bool
	changed  time.Time            // when living last changed
	writing  map[string]*writing  // by host, or by the name of a Lease
	orphaned map[string]time.Time // Leases of hosts that do not exist, and since when they have been seen
	writers  sync.WaitGroup
}

// New makes a Replica.
func New(c Config) (*Replica, error) {
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("replica: %w", err)
	}
	c.Patience = cmp.Or(c.Patience, 15*time.Second)
	r := &Replica{
		cfg: c, identity: c.Name + "_" + rand.String(10),
		wake: notify.New(), beat: notify.New(), wrote: make(chan written),
		held: map[string]bool{}, given: map[string]bool{}, writing: map[string]*writing{}, orphaned: map[string]time.Time{},
	}
	var err error
	r.view, err = newView(c.Leases, r.wake.Send)
	return r, err
}

// Hosts implements hosts.Shard.
func (r *Replica) Hosts(names []string) {
	r.mu.Lock()
	r.hosts, r.known = slices.Clone(names), true
	r.mu.Unlock()
	r.wake.Send()
}

// Holds implements hosts.Shard.
func (r *Replica) Holds(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.held[name] && !r.given[name]
}

// Set implements hosts.Sink. It passes on only the hosts that are ours.
func (r *Replica) Set(all map[string]*config.Host) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wanted = all
	r.pass()
}

// pass passes the hosts that are ours to the Sink. The caller holds mu.
func (r *Replica) pass() {
	ours := map[string]*config.Host{}
	for name, h := range r.wanted {
		if r.held[name] && !r.given[name] {
			ours[name] = h
		}
	}
	r.cfg.Sink.Set(ours)
}

// Run shares hosts until ctx ends, and then leaves by giving away the hosts that it holds. It
// returns an error if this process cannot be a replica. objects must run until it returns.
func (r *Replica) Run(ctx context.Context, objects Objects) error {
	r.objects = objects
	// Leaving begins when ctx ends, so the work needs a context that outlives it.
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var background sync.WaitGroup
	defer background.Wait()
	defer cancel()
	background.Go(func() { r.view.run(inner) })
	pulse, still := context.WithCancel(inner)
	defer still()
	failed := make(chan error, 1)
	background.Go(func() { failed <- r.renew(pulse) })
	defer r.writers.Wait()
	defer cancel()
	timer := time.NewTimer(0)
	defer timer.Stop()
	done := ctx.Done()
	var end <-chan time.Time
	for over := false; !over; {
		next := r.step(inner, time.Now())
		if end != nil && r.left() {
			break
		}
		timer.Stop()
		if !next.IsZero() {
			timer.Reset(time.Until(next))
		}
		select {
		case <-done:
			done, end = nil, time.After(r.cfg.Patience)
			r.leave(inner)
		case <-end:
			klog.FromContext(ctx).Error(nil, "Failed to hand over all hosts in time; other replicas take the rest", "patience", r.cfg.Patience)
			over = true
		case err := <-failed:
			r.drop(inner)
			return err
		case w := <-r.wrote:
			r.note(inner, w, time.Now())
		case <-r.wake:
		case <-timer.C:
		}
	}
	r.drop(inner)
	still()
	if err := <-failed; err != nil {
		return err
	}
	r.erase(inner)
	return nil
}
