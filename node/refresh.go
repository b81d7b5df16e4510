package node

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
	"github.com/bowline-k8s/bowline/notify"
	"github.com/bowline-k8s/bowline/provider"
	"github.com/bowline-k8s/bowline/syncloop/admit"
)

// snapshot is what a host and its runtime reported at one time, and what is derived from it. It is
// immutable; a new one replaces it.
type snapshot struct {
	facts   host.Facts
	version *runtimeapi.VersionResponse
	status  *runtimeapi.StatusResponse
	resolv  []byte
	driver  string // cgroup driver, as the runtime reports it; empty if it is configured

	routed   bool // the host has had a default route
	spec     spec.Machine
	ips      []string // addresses of the Node
	reserved v1.ResourceList
	share    spec.PodsShare
	sysctls  *admit.Sysctls
}

// handler returns the features of a runtime handler; nil, which means no features, if there is
// none.
func (s *snapshot) handler(name string) *runtimeapi.RuntimeHandlerFeatures {
	for _, h := range s.status.GetRuntimeHandlers() {
		if h.Name == name {
			return h.GetFeatures()
		}
	}
	return nil
}

// aspects are the queries from which a snapshot is made. resolv and driver may be nil.
type aspects struct {
	facts   func(context.Context) (host.Facts, error)
	version func(context.Context) (*runtimeapi.VersionResponse, error)
	status  func(context.Context) (*runtimeapi.StatusResponse, error)
	resolv  func(context.Context) ([]byte, error)
	driver  func(context.Context) (string, error)
	// derive makes a snapshot from the answers; last is the previous one, or nil.
	derive func(read, last *snapshot) (*snapshot, error)
}

// ask runs all queries in parallel, which is one round trip over a link. An unanswered one keeps
// its value of last.
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
	each(0, "read the host's facts", func() error { return set(ctx, a.facts, &read.facts) })
	each(1, "ask the runtime for its version", func() error { return set(ctx, a.version, &read.version) })
	each(2, "ask the runtime for its status", func() error { return set(ctx, a.status, &read.status) })
	if a.resolv != nil {
		each(3, "read the host's resolv.conf", func() error { return set(ctx, a.resolv, &read.resolv) })
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

// refresher owns the newest snapshot. Only run replaces it.
type refresher struct {
	aspects
	period time.Duration
	due    notify.Signal // refresh at once
	value  atomic.Pointer[snapshot]
}

func (r *refresher) load() *snapshot { return r.value.Load() }

// run refreshes until ctx ends, and calls refreshed after each refresh. What cannot be read keeps its
// old value: being unreachable does not mean that it changed.
func (r *refresher) run(ctx context.Context, refreshed func(last, next *snapshot)) error {
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
			klog.FromContext(ctx).Error(err, "Failed to read all facts of the host; unknown facts keep their last value")
		}
		r.value.Store(next)
		refreshed(last, next)
	}
}

// look creates the refresher with the first snapshot, for which every query must succeed.
func (n *Node) look(ctx context.Context, facts host.Facts) (*refresher, error) {
	// A reboot of a remote host is noticed sooner, because it cuts the link.
	r := &refresher{period: n.cfg.NodeStatusUpdateFrequency.Duration, due: notify.New(), aspects: aspects{
		facts: n.host.Facts, version: n.runtime.Version, resolv: n.resolvConf(), driver: n.cgroupDriver(n.runtime), derive: n.derive,
		status: func(ctx context.Context) (*runtimeapi.StatusResponse, error) { return n.runtime.Status(ctx, false) },
	}}
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

// derive makes a snapshot from what was read.
func (n *Node) derive(read, last *snapshot) (next *snapshot, err error) {
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

// reported returns the snapshot as the Node object reports it.
func (n *Node) reported(s *snapshot, kubelet string) provider.NodeInfo {
	facts := s.facts
	// Drop what the Node does not show, or it would count as a change: each pod network adds an
	// address.
	facts.Addresses, facts.ResolvConf = []net.IP{}, nil
	return provider.NodeInfo{
		Facts: facts, Addresses: n.addresses(s.ips), Reserved: s.reserved,
		RuntimeName: s.version.GetRuntimeName(), RuntimeVersion: s.version.GetRuntimeVersion(),
		KubeletVersion: kubelet, Handlers: handlers(s.status), Features: runtimeFeatures(s.status), DeclaredFeatures: n.features.Declared(),
	}
}

// followers are the parts that follow the host without polling its snapshot.
type followers struct {
	node interface {
		SetInfo(provider.NodeInfo)
		Resume()
		RecordEvent(kind, reason, message string)
	}
	pleg    interface{ Kick() }
	loop    interface{ MachineChanged() }
	exposed interface {
		drop()
		retry()
	}
}

// follow passes a new snapshot on to the parts that do not poll it.
func (n *Node) follow(last, next *snapshot) {
	n.followers.node.SetInfo(n.reported(next, ""))
	n.warnOfHost(last, next)
	if last.facts.BootID != next.facts.BootID {
		n.followers.pleg.Kick()
	}
	if !slices.Equal(last.ips, next.ips) {
		n.followers.exposed.drop()
		n.followers.exposed.retry()
	}
	if !slices.Equal(last.spec.HostIPs, next.spec.HostIPs) {
		klog.Background().Info("Found another address of the host", "host", n.cfg.Name, "node", n.name, "from", last.spec.HostIPs, "to", next.spec.HostIPs)
		n.followers.loop.MachineChanged()
	}
	if last.spec.CgroupDriver != next.spec.CgroupDriver {
		klog.Background().Info("Found another cgroup driver of the runtime", "host", n.cfg.Name, "node", n.name, "from", last.spec.CgroupDriver, "to", next.spec.CgroupDriver)
		n.followers.loop.MachineChanged() // the new driver rejects the cgroups of pods that failed to start
	}
}

// runtimeChanged handles the runtime's status. A runtime that is ready again may have been
// restarted, with another version or cgroup driver.
func (n *Node) runtimeChanged(ready bool, reason, message string) {
	n.ready.Runtime(ready, reason, message)
	if ready {
		n.seen.due.Send()
	}
}
