package fleet

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	logsapi "k8s.io/component-base/logs/api/v1"
	tracingapi "k8s.io/component-base/tracing/api/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/cluster"
	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/connect"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/hosts"
	"github.com/bowline-k8s/bowline/hosts/replica"
	"github.com/bowline-k8s/bowline/kubeclient"
	"github.com/bowline-k8s/bowline/node"
	"github.com/bowline-k8s/bowline/nodelogs"
	"github.com/bowline-k8s/bowline/pool"
	"github.com/bowline-k8s/bowline/provider/api"
	"github.com/bowline-k8s/bowline/release"
	"github.com/bowline-k8s/bowline/syncloop/startlimiter"
)

// Sources merges the hosts of the configuration file with those of the cluster's Host objects.
type Sources struct {
	mu      sync.Mutex
	set     func(map[string]*config.Host) // nil until begin is called
	file    map[string]*config.Host
	objects map[string]*config.Host
}

// Begin calls set with the hosts there are, and again after each change.
func (j *Sources) Begin(set func(map[string]*config.Host)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.set = set
	j.apply()
}

func (j *Sources) FromFile(all map[string]*config.Host) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.file = all
	j.apply()
}

// Set implements hosts.Sink.
func (j *Sources) Set(all map[string]*config.Host) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.objects = all
	j.apply()
}

// apply passes all hosts to set. A name that both sources have is the file's. j.mu is held.
func (j *Sources) apply() {
	if j.set == nil {
		return
	}
	all := map[string]*config.Host{}
	maps.Copy(all, j.objects)
	maps.Copy(all, j.file)
	j.set(all)
}

// taken reports whether the file has a host of h's name, or one with the same node or the same
// machine.
func (j *Sources) taken(h *config.Host) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.file[h.Name] != nil {
		return true
	}
	claims := h.Claims()
	for _, f := range j.file {
		if slices.ContainsFunc(f.Claims(), func(c config.Claim) bool { return slices.Contains(claims, c) }) {
			return true
		}
	}
	return false
}

// Drivers tracks the drivers of the hosts.
type Drivers struct {
	// recognize checks that a machine is that of the Host called name. It is set before the first
	// such host is managed.
	recognize func(ctx context.Context, name string, machine v1alpha1.MachineStatus) error
	openings  *startlimiter.Limiter // places of the hosts that are opening
	strangers *api.Strangers        // callers of the nodes without an authorized request
	// Flags are the flags of the process, which each node shows at /flagz.
	Flags map[string]string
	// Logs has the newest log lines of the process, for the log queries of each node.
	Logs *nodelogs.Own
	// Logging is how the process logs, which each node shows at /configz.
	Logging *logsapi.LoggingConfiguration
	// Tracer makes the spans of each node; nil: none are made. Tracing is its configuration, which each
	// node shows at /configz.
	Tracer  trace.Tracer
	Tracing *tracingapi.TracingConfiguration

	mu      sync.Mutex
	byName  map[string]*driver
	metrics map[string]*node.Metrics // of each host's node, for each driver of the host in turn

	operations *operations // of each host
}

type driver struct {
	cfg   *config.Host
	ended bool                      // guarded by Drivers.mu
	node  atomic.Pointer[node.Node] // nil: there is none yet, or none any more
}

// A host is opening from when it is connected until its node serves. If a hundred hosts open at once
// on a machine that is short of CPU, their calls and locks exceed their deadlines, and all begin
// again. A host that hangs holds its place for openingLease at most; one that cannot be reached holds
// none.
const (
	openingsPerCPU = 8
	openingLease   = 5 * time.Second
)

// NewDrivers returns no drivers yet.
func NewDrivers() *Drivers { return newDrivers(openingsPerCPU * runtime.GOMAXPROCS(0)) }

func newDrivers(openings int) *Drivers {
	return &Drivers{byName: map[string]*driver{}, metrics: map[string]*node.Metrics{}, operations: newOperations(), Logs: nodelogs.NewOwn(io.Discard, os.Getpid()), openings: startlimiter.New(openings, openingLease), strangers: api.NewStrangers()}
}

// Manage runs the driver of one host, and tracks it.
func (d *Drivers) Manage(ctx context.Context, cfg *config.Host, hook host.Hook) error {
	this := d.begin(cfg)
	defer d.end(this)
	n := d.config(cfg, hook)
	n.Serving = func(n *node.Node) { this.node.Store(n) }
	return withinBudget(ctx, cfg.Name, limitsOf(cfg.MaxPods), func(ctx context.Context) error { return node.Run(ctx, n) })
}

// config returns what the driver of a host needs, with what it shares with those of other hosts.
func (d *Drivers) config(cfg *config.Host, hook host.Hook) node.Config {
	n := node.Config{Host: cfg, Hook: d.operations.of(cfg.Name).timed(hook), Openings: d.openings, Strangers: d.strangers, Metrics: d.metricsOf(cfg.Name), Logs: d.Logs, Logging: d.Logging, Tracer: d.Tracer, Tracing: d.Tracing, Flags: d.Flags}
	if cfg.HostObject != "" {
		n.Recognize = func(ctx context.Context, m v1alpha1.MachineStatus) error { return d.recognize(ctx, cfg.HostObject, m) }
	}
	return n
}

func (d *Drivers) begin(cfg *config.Host) *driver {
	this := &driver{cfg: cfg}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.byName[cfg.Name] = this
	return this
}

// metricsOf returns the metrics of the node of a host.
func (d *Drivers) metricsOf(host string) *node.Metrics {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.metrics[host] == nil {
		d.metrics[host] = node.NewMetrics()
	}
	return d.metrics[host]
}

func (d *Drivers) end(this *driver) {
	this.node.Store(nil)
	d.mu.Lock()
	defer d.mu.Unlock()
	this.ended = true
}

// serving returns the states of the nodes that serve, by the names of their hosts.
func (d *Drivers) serving() map[string]node.State {
	d.mu.Lock()
	nodes := make(map[string]*node.Node, len(d.byName))
	for name, this := range d.byName {
		if n := this.node.Load(); n != nil {
			nodes[name] = n
		}
	}
	d.mu.Unlock()
	out := make(map[string]node.State, len(nodes))
	for name, n := range nodes {
		out[name] = n.State()
	}
	return out
}

// report returns what is known of a host that the pool has; false if its driver never started.
func (d *Drivers) report(name string, state pool.State) (hosts.Report, bool) {
	d.mu.Lock()
	this := d.byName[name]
	d.mu.Unlock()
	if this == nil {
		return hosts.Report{}, false
	}
	if n := this.node.Load(); n != nil {
		return n.Report(this.cfg), true
	}
	r := hosts.Report{Config: this.cfg, Err: state.Err}
	if state.Phase == pool.Quarantined {
		r.Quarantined = state.NextTry
	}
	return r, true
}

// Follow forgets each host that the pool no longer has, until ctx ends.
func (d *Drivers) Follow(ctx context.Context, hosts *pool.Pool) {
	for {
		changed := hosts.Changed()
		d.keep(hosts.States())
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// keep drops what is kept of all hosts that the pool no longer has. A driver may have started after
// states were read.
func (d *Drivers) keep(states map[string]pool.State) {
	d.mu.Lock()
	defer d.mu.Unlock()
	gone := func(host string) bool {
		_, ok := states[host]
		return !ok && (d.byName[host] == nil || d.byName[host].ended)
	}
	budgets.keep(gone)
	d.operations.keep(gone)
	d.Logs.Forget(gone)
	maps.DeleteFunc(d.metrics, func(host string, _ *node.Metrics) bool { return gone(host) })
	maps.DeleteFunc(d.byName, func(host string, _ *driver) bool { return gone(host) })
}

// reportPeriod is how often to poll what raises no event: links, pods.
const reportPeriod = 2 * time.Second

// HostObjects is the source of hosts from a cluster's Host objects.
type HostObjects struct {
	source  *hosts.Source
	replica *replica.Replica // nil: this process has all of them
	drivers *Drivers
	pool    *pool.Pool
	Left    chan struct{} // closed when run no longer adds or removes drivers
}

// OpenHostObjects creates the source that cfg names. It reads nothing yet.
func OpenHostObjects(cfg *config.HostObjects, all *Sources, d *Drivers, p *pool.Pool) (*HostObjects, error) {
	fail := func(err error) error { return fmt.Errorf("hostObjects: kubeconfig %s: %w", cfg.Kubeconfig, err) }
	access, err := clientcmd.BuildConfigFromFlags("", cfg.Kubeconfig)
	if err != nil {
		return nil, fail(err)
	}
	kubeclient.Configure(access)
	client, err := kubeclient.New(access)
	if err != nil {
		return nil, fail(err)
	}
	api, err := hosts.NewClient(access)
	if err != nil {
		return nil, fail(err)
	}
	o := &HostObjects{drivers: d, pool: p, Left: make(chan struct{})}
	sources := hosts.Config{
		API: api, Client: client, Namespace: cfg.Namespace, Kubeconfig: cfg.Kubeconfig, Template: &cfg.Template,
		Sink: all, Taken: all.taken, AllowLocal: cfg.AllowLocal,
		Managed: func(name string) bool { _, ok := p.States()[name]; return ok },
		Release: func(ctx context.Context, h *config.Host) error {
			return releaseMachine(ctx, h, client, access, func(ctx context.Context, m v1alpha1.MachineStatus) error { return d.recognize(ctx, h.HostObject, m) })
		},
	}
	if cfg.Replicas != nil {
		name, err := replicaName(cfg.Replicas)
		if err != nil {
			return nil, err
		}
		o.replica, err = replica.New(replica.Config{
			Name: name, Leases: client.CoordinationV1().Leases(cfg.Namespace), Sink: all, Managed: sources.Managed,
		})
		if err != nil {
			return nil, fmt.Errorf("hostObjects.replicas: %w", err)
		}
		sources.Sink, sources.Shard = o.replica, o.replica
	}
	if o.source, err = hosts.New(sources); err != nil {
		return nil, err
	}
	d.recognize = o.source.Recognize
	return o, nil
}

// Ready returns an error until the Host objects have been read.
func (o *HostObjects) Ready() error {
	if !o.source.Synced() {
		return errHostsUnread
	}
	return nil
}

// replicaName returns the name by which this process differs from the other replicas.
func replicaName(cfg *config.Replicas) (string, error) {
	if name := cmp.Or(cfg.Name, os.Getenv("POD_NAME")); name != "" {
		return name, nil
	}
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("hostObjects.replicas.name is not set, and the name of this machine is unknown: %w", err)
	}
	return strings.ToLower(name), nil
}

// Run watches the Host objects and reports their drivers to them until ctx ends. A replica then
// hands over its hosts, which takes a while.
func (o *HostObjects) Run(ctx context.Context) error {
	var err error
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var all sync.WaitGroup
	all.Go(func() { _ = o.source.Run(inner) }) // ends only with inner
	all.Go(func() { o.reportDrivers(inner) })
	if o.replica != nil {
		err = o.replica.Run(ctx, o.source)
	} else {
		<-ctx.Done()
	}
	close(o.Left)
	cancel()
	all.Wait()
	return err
}

// reportDrivers reports the drivers to the Host objects until ctx ends.
func (o *HostObjects) reportDrivers(ctx context.Context) {
	ticker := time.NewTicker(reportPeriod)
	defer ticker.Stop()
	for {
		changed := o.pool.Changed()
		states := o.pool.States()
		for name, state := range states {
			if r, ok := o.drivers.report(name, state); ok {
				o.source.Report(name, r)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-ticker.C:
		}
	}
}

// releaseMachine removes everything of the node from its host, as "bowline host release" does, but
// keeps what "host prepare" did. It fails on a machine other than the node's: that one is no proof
// that the node's own is empty. access is the configuration of client: its CA is a witness.
func releaseMachine(ctx context.Context, cfg *config.Host, client kubernetes.Interface, access *rest.Config, may connect.Recognizer) error {
	w, _, err := cluster.Witnesses(ctx, client, access, cfg.NodeName)
	if err != nil {
		return err
	}
	log := klog.FromContext(ctx).V(2)
	r := &release.Release{Open: func(ctx context.Context) (*connect.Host, error) { return connect.Open(ctx, cfg, nil) }, Cfg: cfg, NodeName: cfg.NodeName, Cluster: &cluster.Seen{Client: client, Witnesses: w}, Keep: true, Recognize: may,
		Step: func(s release.Step) {
			log.Info("Releasing the host", "host", cfg.Name, "step", s.What, "object", s.Object)
		}}
	return withinBudget(ctx, cfg.Name, limitsOf(cfg.MaxPods), func(ctx context.Context) error {
		done, err := r.Run(ctx)
		if err != nil {
			return err
		}
		return done.Err()
	})
}
