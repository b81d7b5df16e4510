package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/provider"
	"github.com/bowline-k8s/bowline/syncloop/admit"
)

const (
	// nearRefresh is how often a kubelet makes its node's status (nodeStatusUpdateFrequency).
	nearRefresh = 10 * time.Second
	// farRefresh is that of a machine over SSH, which pays for each look with processes. A
	// reboot is seen sooner, as it cuts the link.
	farRefresh = time.Minute
)

// snapshot is what a machine and its runtime are, as they said at one time, and what
// follows from it. It is replaced whole, and never changed.
type snapshot struct {
	facts   host.Facts
	version *runtimeapi.VersionResponse
	status  *runtimeapi.StatusResponse
	resolv  []byte
	driver  string // of cgroups, as the runtime says; empty where it is not asked

	routed   bool // the machine has had a default route
	spec     spec.Machine
	ips      []string // addresses of the node
	reserved v1.ResourceList
	share    spec.PodsShare
	sysctls  *admit.Sysctls
}

// handler is what a runtime handler can do; nil, which can nothing, if there is none.
func (s *snapshot) handler(name string) *runtimeapi.RuntimeHandlerFeatures {
	for _, h := range s.status.GetRuntimeHandlers() {
		if h.Name == name {
			return h.GetFeatures()
		}
	}
	return nil
}

// aspects are the questions that a snapshot answers. resolv and driver may be nil.
type aspects struct {
	facts   func(context.Context) (host.Facts, error)
	version func(context.Context) (*runtimeapi.VersionResponse, error)
	status  func(context.Context) (*runtimeapi.StatusResponse, error)
	resolv  func(context.Context) ([]byte, error)
	driver  func(context.Context) (string, error)
	// derive makes the snapshot of what was answered; last is the one before, or nil.
	derive func(read, last *snapshot) (*snapshot, error)
}

// ask asks all at once, which over a link is one round trip. What is not answered is as
// it was in last.
func (a aspects) ask(ctx context.Context, last *snapshot) (*snapshot, error) {
	read := &snapshot{facts: last.facts, version: last.version, status: last.status, resolv: last.resolv, driver: last.driver}
	var all sync.WaitGroup
	errs := make([]error, 5)
	each := func(i int, what string, do func() error) {
		all.Go(func() {
			errs[i] = budget.ErrPanicked
			defer budget.From(ctx).Recover(what)
			errs[i] = do()
		})
	}
	each(0, "read what the machine is", func() error { return set(ctx, a.facts, &read.facts) })
	each(1, "ask the runtime for its version", func() error { return set(ctx, a.version, &read.version) })
	each(2, "ask the runtime for its status", func() error { return set(ctx, a.status, &read.status) })
	if a.resolv != nil {
		each(3, "read the machine's resolv.conf", func() error { return set(ctx, a.resolv, &read.resolv) })
	}
	if a.driver != nil {
		each(4, "ask the runtime for its cgroup driver", func() error { return set(ctx, a.driver, &read.driver) })
	}
	all.Wait()
	next, err := a.derive(read, last)
	if err != nil {
		next = last
	}
	return next, errors.Join(append(errs, err)...)
}

func set[T any](ctx context.Context, ask func(context.Context) (T, error), to *T) error {
	answer, err := ask(ctx)
	if err == nil {
		*to = answer
	}
	return err
}

// refresher owns the newest snapshot: run alone replaces it.
type refresher struct {
	aspects
	period  time.Duration
	due     nudge                      // have it read at once
	changed func(last, next *snapshot) // called after each look; may be nil
	value   atomic.Pointer[snapshot]
}

func (r *refresher) load() *snapshot { return r.value.Load() }

// run reads again until ctx ends. A look that fails leaves what it did not learn as it
// was: the machine has not changed because it cannot be asked.
func (r *refresher) run(ctx context.Context) error {
	failing := false
	for {
		timer := time.NewTimer(r.period)
		select {
		case <-timer.C:
		case <-r.due:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return nil
		}
		last := r.load()
		next, err := r.ask(ctx, last)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			failing = false
		case !failing:
			failing = true
			klog.FromContext(ctx).Info("What the machine is cannot be read in full; what is not known now stays as it was", "err", err)
		}
		r.value.Store(next)
		if r.changed != nil {
			r.changed(last, next)
		}
	}
}

// look makes the refresher, with the first snapshot, for which all must answer.
func (n *node) look(ctx context.Context, facts host.Facts) (*refresher, error) {
	r := &refresher{period: nearRefresh, due: make(nudge, 1), aspects: aspects{
		facts: n.host.Facts, version: n.runtime.Version, resolv: n.resolvConf(), driver: n.cgroupDriver(n.runtime), derive: n.derive,
		status: func(ctx context.Context) (*runtimeapi.StatusResponse, error) { return n.runtime.Status(ctx, false) },
	}}
	if n.host.link != nil {
		r.period = farRefresh
	}
	read := &snapshot{facts: facts}
	if err := set(ctx, r.version, &read.version); err != nil {
		return nil, fmt.Errorf("ask the runtime for its version: %w", err)
	}
	if err := set(ctx, r.status, &read.status); err != nil {
		return nil, fmt.Errorf("ask the runtime for its status: %w", err)
	}
	if r.resolv != nil {
		if err := set(ctx, r.resolv, &read.resolv); err != nil {
			return nil, err
		}
	}
	if r.driver != nil {
		if err := set(ctx, r.driver, &read.driver); err != nil {
			return nil, fmt.Errorf("ask the runtime for its cgroup driver: %w", err)
		}
	}
	first, err := n.derive(read, nil)
	if err != nil {
		return nil, err
	}
	r.value.Store(first)
	return r, nil
}

// derive makes the snapshot of what was read.
func (n *node) derive(read, last *snapshot) (next *snapshot, err error) {
	s := *read
	s.routed = s.facts.Routed || last != nil && last.routed
	ips, err := hostIPs(n.cfg, &s.facts, last)
	if err != nil {
		return nil, err
	}
	s.spec = n.specMachine(&s, ips)
	if s.ips, err = n.nodeIPs(ips); err != nil {
		return nil, err
	}
	if s.reserved, err = reserved(n.cfg, &s.facts); err != nil {
		return nil, err
	}
	if s.share, err = podsShare(n.cfg, &s.facts); err != nil {
		return nil, err
	}
	s.sysctls = admit.NewSysctls(s.facts.KernelVersion, n.cfg.AllowedUnsafeSysctls)
	return &s, nil
}

// reported is the snapshot as the node object shows it.
func (n *node) reported(s *snapshot, kubelet string) provider.Machine {
	facts := s.facts
	// What is not shown changes without news: each network of pods has an address here.
	facts.Addresses, facts.ResolvConf = []net.IP{}, nil
	return provider.Machine{
		Facts: facts, Addresses: n.addresses(s.ips), Reserved: s.reserved,
		RuntimeName: s.version.GetRuntimeName(), RuntimeVersion: s.version.GetRuntimeVersion(),
		KubeletVersion: kubelet, Handlers: handlers(s.status), Features: features(s.status), DeclaredFeatures: declaredFeatures,
	}
}

// follow tells those of a new snapshot who would not look by themselves.
func (n *node) follow(last, next *snapshot) {
	n.node.SetMachine(n.reported(next, ""))
	if last.facts.BootID != next.facts.BootID {
		n.pleg.Kick()
	}
	if !slices.Equal(last.ips, next.ips) && n.exposed != nil {
		n.exposed.drop()
		n.exposed.poke()
	}
	if !slices.Equal(last.spec.HostIPs, next.spec.HostIPs) {
		klog.Background().Info("The machine's address has changed", "host", n.cfg.Name, "node", n.name, "from", last.spec.HostIPs, "to", next.spec.HostIPs)
		n.loop.MachineChanged()
	}
	if last.spec.CgroupDriver != next.spec.CgroupDriver {
		klog.Background().Info("The runtime's cgroup driver has changed", "host", n.cfg.Name, "node", n.name, "from", last.spec.CgroupDriver, "to", next.spec.CgroupDriver)
		n.loop.MachineChanged() // the new driver refuses the cgroups that pods were tried with
	}
}

// runtimeChanged takes in whether the runtime can run pods. One that can again may have
// been restarted, with another version or cgroup driver.
func (n *node) runtimeChanged(ready bool, reason, message string) {
	n.ready.word(ready, reason, message)
	if ready {
		n.seen.due.poke()
	}
}
