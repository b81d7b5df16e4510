// Package qos maintains the cgroups above those of pods, like the kubelet's QOSContainerManager:
// kubepods, with the limits of all pods together, and below it burstable and besteffort, with CPU
// shares that follow the pods as they come and go.
//
// Bowline creates a pod's own cgroup with its sandbox, and removes it when it releases the pod
// (syncloop/execute_sandbox.go). The garbage collection removes leftovers, and
// package release removes the cgroups of this package when the host is released.
//
// If pods of another driver, such as a kubelet, are below the same parents, the parents belong to
// that driver too, and nothing is written. Two drivers of one host need different cgroupRoots.
package qos

import (
	"context"
	"errors"
	"fmt"
	"path"
	"reflect"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/logonce"
)

// Host is the part of host.Host that this package needs.
type Host interface {
	EnsureCgroup(ctx context.Context, path string, r host.CgroupResources) error
	ListCgroups(ctx context.Context, path string) ([]string, error)
}

// Config configures a Manager.
type Config struct {
	Host Host
	// Pods returns the node's pods with their phases.
	Pods func() []*v1.Pod
	// Seen reports whether every source of pods has been seen once; nothing is written before.
	Seen func() bool
	// Known reports whether the pod belongs to this node.
	Known func(uid types.UID) bool
	// UID returns the UID of the pod that a cgroup of this name belongs to; empty if none.
	UID func(cgroup string) types.UID
	// All returns the current limit of all pods together.
	All func() spec.PodsShare
	// Driver returns the runtime's current cgroup driver: cgroupfs, or systemd, with which the
	// cgroups are slices.
	Driver func() string
	// Event records an event on the node; nil: none.
	Event func(kind, reason, message string)
}

const (
	// Period is how often the pods are checked; the check itself makes no call to the host.
	Period = 5 * time.Second
	// again is how often unchanged limits are rewritten: systemd and administrators change these
	// files too.
	again = 5 * time.Minute
	// retry is the pause after an error; the kubelet's.
	retry = time.Minute
)

// Event reasons of the kubelet.
const (
	reasonEnforced = "NodeAllocatableEnforced"
	reasonFailed   = "FailedNodeAllocatableEnforcement"
)

// ErrShared is the error if pods of another driver are below the same parents.
var ErrShared = errors.New("the cgroups have pods of another program")

// Manager writes the parents' limits.
type Manager struct {
	cfg      Config
	written  []spec.ParentCgroup
	due      time.Time // when the limits are rewritten or retried
	failing  bool
	logged   logonce.Failure
	shared   int  // how often in a row ErrShared was seen
	recorded bool // the event about enforced limits has been recorded
}

// New makes a Manager; Run runs it.
func New(c Config) (*Manager, error) {
	if c.Host == nil || c.Pods == nil || c.Seen == nil || c.Known == nil || c.UID == nil || c.All == nil || c.Driver == nil {
		return nil, errors.New("qos: Host, Pods, Seen, Known, UID, All and Driver are required")
	}
	if c.Event == nil {
		c.Event = func(string, string, string) {}
	}
	return &Manager{cfg: c}, nil
}

// Run writes the limits at once, and then when they change, until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	tick := time.NewTicker(Period)
	defer tick.Stop()
	for {
		m.turn(ctx, time.Now())
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// turn writes the values that are due at now.
func (m *Manager) turn(ctx context.Context, now time.Time) {
	if !m.cfg.Seen() {
		return
	}
	want := spec.ParentCgroups(m.cfg.Pods(), m.cfg.All(), m.cfg.Driver())
	if now.Before(m.due) && (m.failing || reflect.DeepEqual(want, m.written)) {
		return
	}
	err := m.write(ctx, want)
	switch {
	case ctx.Err() != nil:
	case errors.Is(err, host.ErrUnreachable):
		m.written, m.due = nil, now // retry at the next check; nothing is wrong with the limits
	case err != nil:
		m.failed(ctx, err)
		m.written, m.due = nil, now.Add(retry)
	default:
		m.written, m.due, m.failing, m.logged, m.shared = want, now.Add(again), false, logonce.Failure{}, 0
		if !m.recorded {
			m.recorded = true
			m.cfg.Event(v1.EventTypeNormal, reasonEnforced, "Updated Node Allocatable limit across pods")
		}
	}
}

// failed reports an error once for as long as it stays the same.
func (m *Manager) failed(ctx context.Context, err error) {
	m.failing = true
	if errors.Is(err, ErrShared) {
		// At first it may be a leftover of this node's pods, which the garbage collection removes.
		if m.shared++; m.shared < 3 {
			m.logged = logonce.Failure{}
			return
		}
	}
	if !m.logged.Changed(err) {
		return
	}
	klog.FromContext(ctx).Error(err, "Failed to set the limits of the pods' parent cgroups, will retry", hint.With(err)...)
	if !errors.Is(err, ErrShared) {
		m.cfg.Event(v1.EventTypeWarning, reasonFailed, err.Error())
	}
}

// write makes the cgroups and sets their limits. After an error each cgroup has either its previous
// limits or the new ones.
func (m *Manager) write(ctx context.Context, want []spec.ParentCgroup) error {
	for _, c := range want {
		names, err := m.cfg.Host.ListCgroups(ctx, c.Path)
		if err != nil {
			return fmt.Errorf("list the pods of cgroup %s: %w", c.Path, err)
		}
		for _, name := range names {
			if uid := m.cfg.UID(name); uid != "" && !m.cfg.Known(uid) {
				return hint.Add(fmt.Errorf("%w: %s", ErrShared, path.Join(c.Path, name)), "set another cgroupRoot to separate them")
			}
		}
	}
	var faults []error
	for _, c := range want {
		if err := m.cfg.Host.EnsureCgroup(ctx, c.Path, host.CgroupResources(c.Limits)); err != nil {
			if errors.Is(err, host.ErrUnreachable) {
				return err
			}
			faults = append(faults, err)
		}
	}
	return errors.Join(faults...)
}
