package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/hosts"
	"github.com/bowline-k8s/bowline/hosts/replica"
	"github.com/bowline-k8s/bowline/pool"
)

// joined are the hosts of the file and those of the cluster's Host objects, together.
type joined struct {
	mu      sync.Mutex
	set     func(map[string]*config.Host) // nil: begin has not been called
	file    map[string]*config.Host
	objects map[string]*config.Host
}

// begin gives what there is to set, and what there will be.
func (j *joined) begin(set func(map[string]*config.Host)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.set = set
	j.apply()
}

func (j *joined) fromFile(all map[string]*config.Host) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.file = all
	j.apply()
}

// Set implements hosts.Sink.
func (j *joined) Set(all map[string]*config.Host) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.objects = all
	j.apply()
}

// apply gives all to set; a name that both have is the file's. mu is held.
func (j *joined) apply() {
	if j.set == nil {
		return
	}
	all := map[string]*config.Host{}
	maps.Copy(all, j.objects)
	maps.Copy(all, j.file)
	j.set(all)
}

// taken tells whether the file has a host of that name, or one that is that node or
// that machine.
func (j *joined) taken(h *config.Host) bool {
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

// drivers knows of each host that comes of an object how it is driven.
type drivers struct {
	// recognize tells whether a machine is that of the Host called name. It is set before
	// a host that comes of an object is driven.
	recognize func(ctx context.Context, name string, machine v1alpha1.MachineStatus) error

	mu     sync.Mutex
	byName map[string]*driver
}

type driver struct {
	cfg  *config.Host
	node atomic.Pointer[node] // nil: there is none yet, or no more
}

// drive drives a host, and knows of it meanwhile.
func (d *drivers) drive(ctx context.Context, cfg *config.Host, hook host.Hook) error {
	show, may := func(*node) {}, recognize(nil)
	if cfg.HostObject != "" {
		this := d.begin(cfg)
		defer this.node.Store(nil)
		show = func(n *node) { this.node.Store(n) }
		may = func(ctx context.Context, m v1alpha1.MachineStatus) error { return d.recognize(ctx, cfg.HostObject, m) }
	}
	return withinBudget(ctx, cfg.Name, func(ctx context.Context) error { return runNode(ctx, cfg, hook, may, show) })
}

func (d *drivers) begin(cfg *config.Host) *driver {
	this := &driver{cfg: cfg}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.byName[cfg.Name] = this
	return this
}

// report is what is known of a host that the pool has; false: it has not been begun.
func (d *drivers) report(name string, state pool.State) (hosts.Report, bool) {
	d.mu.Lock()
	this := d.byName[name]
	d.mu.Unlock()
	if this == nil {
		return hosts.Report{}, false
	}
	if n := this.node.Load(); n != nil {
		return n.report(this.cfg), true
	}
	r := hosts.Report{Config: this.cfg, Err: state.Err}
	if state.Phase == pool.Quarantined {
		r.Quarantined = state.NextTry
	}
	return r, true
}

// keep forgets the drivers of all hosts but those that the pool has.
func (d *drivers) keep(states map[string]pool.State) {
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.byName, func(name string, _ *driver) bool { _, ok := states[name]; return !ok })
}

// reportPeriod is how often it is looked at what nothing announces: links, pods.
const reportPeriod = 2 * time.Second

// hostObjects are the Host objects of a cluster as a source of hosts.
type hostObjects struct {
	source  *hosts.Source
	replica *replica.Replica // nil: no other process has some of them
	drivers *drivers
	pool    *pool.Pool
	left    chan struct{} // closed when run does nothing about drivers any more
}

// openHostObjects makes the source that cfg names. Nothing is read yet.
func openHostObjects(cfg *config.HostObjects, all *joined, d *drivers, p *pool.Pool) (*hostObjects, error) {
	fail := func(err error) error { return fmt.Errorf("hostObjects: kubeconfig %s: %w", cfg.Kubeconfig, err) }
	rest, err := clientcmd.BuildConfigFromFlags("", cfg.Kubeconfig)
	if err != nil {
		return nil, fail(err)
	}
	ours(rest)
	client, err := newClientset(rest)
	if err != nil {
		return nil, fail(err)
	}
	api, err := hosts.NewClient(rest)
	if err != nil {
		return nil, fail(err)
	}
	o := &hostObjects{drivers: d, pool: p, left: make(chan struct{})}
	sources := hosts.Config{
		API: api, Client: client, Namespace: cfg.Namespace, Kubeconfig: cfg.Kubeconfig, Template: &cfg.Template,
		Sink: all, Taken: all.taken, AllowLocal: cfg.AllowLocal,
		Driven: func(name string) bool { _, ok := p.States()[name]; return ok },
		Release: func(ctx context.Context, h *config.Host) error {
			return releaseMachine(ctx, h, client, func(ctx context.Context, m v1alpha1.MachineStatus) error { return d.recognize(ctx, h.HostObject, m) })
		},
	}
	if cfg.Replicas != nil {
		name, err := replicaName(cfg.Replicas)
		if err != nil {
			return nil, err
		}
		o.replica, err = replica.New(replica.Config{
			Name: name, Leases: client.CoordinationV1().Leases(cfg.Namespace), Sink: all, Driven: sources.Driven,
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

// ready: the objects that there are have been read.
func (o *hostObjects) ready() error {
	if !o.source.Synced() {
		return errHostsUnread
	}
	return nil
}

// replicaName tells this process from those that share the objects with it.
func replicaName(cfg *config.Replicas) (string, error) {
	if name := cmp.Or(cfg.Name, os.Getenv("POD_NAME")); name != "" {
		return name, nil
	}
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("hostObjects.replicas.name is not set, and this machine's name is not known: %w", err)
	}
	return strings.ToLower(name), nil
}

// run follows the objects, and tells them of their drivers, until ctx ends. A replica
// then gives its hosts away, which takes a while.
func (o *hostObjects) run(ctx context.Context) error {
	var err error
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var all sync.WaitGroup
	all.Go(func() { _ = o.source.Run(inner) }) // it ends with inner alone
	all.Go(func() { o.tell(inner) })
	if o.replica != nil {
		err = o.replica.Run(ctx, o.source)
	} else {
		<-ctx.Done()
	}
	close(o.left)
	cancel()
	all.Wait()
	return err
}

// tell tells the objects of their drivers until ctx ends.
func (o *hostObjects) tell(ctx context.Context) {
	ticker := time.NewTicker(reportPeriod)
	defer ticker.Stop()
	for {
		changed := o.pool.Changed()
		states := o.pool.States()
		o.drivers.keep(states)
		budgets.keep(states)
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

// releaseMachine empties a machine of what is its node's, as "bowline host release"
// does; what was prepared there for nodes stays so. Another machine than the node's is no
// proof that the node's own is empty.
func releaseMachine(ctx context.Context, cfg *config.Host, client kubernetes.Interface, may recognize) error {
	w, _, err := witnesses(ctx, client, nil, cfg.NodeName)
	if err != nil {
		return err
	}
	var said sayings
	r := &release{cfg: cfg, nodeName: cfg.NodeName, cluster: &seenCluster{client, w}, keep: true, may: may, out: &said}
	err = withinBudget(ctx, cfg.Name, r.run)
	klog.FromContext(ctx).V(2).Info("The machine was released", "host", cfg.Name, "err", err, "said", said.String())
	return err
}

// sayings is what a release says, by more than one goroutine.
type sayings struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *sayings) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *sayings) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}
