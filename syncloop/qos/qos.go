// Package qos keeps the cgroups above those of pods, as the kubelet's QOS container
// manager does: kubepods with what all pods may use, and in it burstable and besteffort
// with their shares of the CPU, which follow the pods as they come and go.
//
// A pod's own cgroup is made with its sandbox and removed with the pod's release
// (syncloop/execute_sandbox.go), leftovers by the garbage collection, and the cgroups of
// this package when the machine is handed back (handover.RemoveCgroups).
//
// Where another driver's pods are below the same parents these are that driver's too, and
// nothing is written: cgroupRoot is how two drivers of one machine are kept apart.
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
	"github.com/bowline-k8s/bowline/host"
)

// Host is what is needed of the machine; host.Host is one.
type Host interface {
	EnsureCgroup(ctx context.Context, path string, r host.CgroupResources) error
	ListCgroups(ctx context.Context, path string) ([]string, error)
}

// Config of a Manager.
type Config struct {
	Host Host
	// Pods that the node has, with their phases.
	Pods func() []*v1.Pod
	// Seen: every source of pods has been seen once; nothing is written before.
	Seen func() bool
	// Known: the pod is one of ours.
	Known func(uid types.UID) bool
	// UID is the pod whose cgroup has a name; empty if it is none.
	UID func(cgroup string) types.UID
	// All is what all pods may use now.
	All func() spec.PodsShare
	// Driver of the runtime now: cgroupfs, or systemd, whose slices these then are.
	Driver func() string
	// Event tells of the node; nil tells nothing.
	Event func(kind, reason, message string)
}

const (
	// Period is how often the pods are looked at, which asks the machine nothing.
	Period = 5 * time.Second
	// again is how often what did not change is written all the same: systemd and people
	// set these files too.
	again = 5 * time.Minute
	// retry is how long after an error it is tried again; the kubelet's.
	retry = time.Minute
)

// Reasons of events; the kubelet's.
const (
	reasonEnforced = "NodeAllocatableEnforced"
	reasonFailed   = "FailedNodeAllocatableEnforcement"
)

// ErrShared: another driver's pods are below the same parents.
var ErrShared = errors.New("the cgroups hold pods of another driver")

// Manager writes the parents' limits.
type Manager struct {
	cfg     Config
	written []spec.ParentCgroup
	due     time.Time // when they are written again, or tried again
	failing string
	shared  int  // times in a row that ErrShared was seen
	told    bool // that the limits are in force
}

// New makes a Manager; Run drives it.
func New(c Config) (*Manager, error) {
	if c.Host == nil || c.Pods == nil || c.Seen == nil || c.Known == nil || c.UID == nil || c.All == nil || c.Driver == nil {
		return nil, errors.New("qos: Host, Pods, Seen, Known, UID, All and Driver are required")
	}
	if c.Event == nil {
		c.Event = func(string, string, string) {}
	}
	return &Manager{cfg: c}, nil
}

// Run writes at once, and then what changes, until ctx ends.
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

// turn writes what is due at now.
func (m *Manager) turn(ctx context.Context, now time.Time) {
	if !m.cfg.Seen() {
		return
	}
	want := spec.ParentCgroups(m.cfg.Pods(), m.cfg.All(), m.cfg.Driver())
	if now.Before(m.due) && (m.failing != "" || reflect.DeepEqual(want, m.written)) {
		return
	}
	err := m.write(ctx, want)
	switch {
	case ctx.Err() != nil:
	case errors.Is(err, host.ErrUnreachable):
		m.written, m.due = nil, now // at the next look: nothing is wrong with the limits
	case err != nil:
		m.failed(ctx, err)
		m.written, m.due = nil, now.Add(retry)
	default:
		m.written, m.due, m.failing, m.shared = want, now.Add(again), "", 0
		if !m.told {
			m.told = true
			m.cfg.Event(v1.EventTypeNormal, reasonEnforced, "Updated Node Allocatable limit across pods")
		}
	}
}

// failed says once what is wrong.
func (m *Manager) failed(ctx context.Context, err error) {
	if errors.Is(err, ErrShared) {
		// At first it may be what a pod of ours left, which the garbage collection takes.
		if m.shared++; m.shared < 3 {
			m.failing = "shared"
			return
		}
	}
	if err.Error() == m.failing {
		return
	}
	m.failing = err.Error()
	klog.FromContext(ctx).Error(err, "Could not set the limits of the cgroups above the pods', will try again")
	if !errors.Is(err, ErrShared) {
		m.cfg.Event(v1.EventTypeWarning, reasonFailed, err.Error())
	}
}

// write makes the cgroups, which hold what was wanted before or now after any error.
func (m *Manager) write(ctx context.Context, want []spec.ParentCgroup) error {
	for _, c := range want {
		names, err := m.cfg.Host.ListCgroups(ctx, c.Path)
		if err != nil {
			return fmt.Errorf("look whose pods are in cgroup %s: %w", c.Path, err)
		}
		for _, name := range names {
			if uid := m.cfg.UID(name); uid != "" && !m.cfg.Known(uid) {
				return fmt.Errorf("%w: %s; another cgroupRoot keeps the two apart", ErrShared, path.Join(c.Path, name))
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
