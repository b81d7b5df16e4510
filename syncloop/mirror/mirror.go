// Package mirror maintains the mirror pods, the objects in the API server that represent a node's
// static pods. It creates missing ones, recreates stale or deleted ones, and deletes those without
// a static pod. Static pods run without it.
//
//	static pods ─┐
//	mirror pods ─┴─► decide (pure) ─► Manager: create, delete
package mirror

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/logonce"
	"github.com/bowline-k8s/bowline/pod"
)

// Sources is the part of config.PodConfig that this package needs.
type Sources interface {
	// Mirrored receives a value when a static pod or a mirror pod was added, removed or changed.
	Mirrored() <-chan struct{}
	StaticPods() (static, mirrors []*v1.Pod)
	SeenBy(source string) bool
	// MirrorForgotten reports whether the mirror pod of this UID describes an ended life of its static
	// pod.
	MirrorForgotten(mirror types.UID) bool
	// Withheld reports whether a pod with these annotations may exist although no source can show
	// it.
	Withheld(annotations map[string]string) bool
	AllSeen() bool
}

// Config configures a Manager.
type Config struct {
	Pods    corev1client.PodsGetter
	Sources Sources
	// Node returns the UID of the Node object, which owns the mirror pods; empty while it is
	// unknown or the Node is being deleted.
	Node     func() types.UID
	NodeName string
	// Ending reports whether an earlier static pod of this name has not ended yet.
	Ending func(namespace, name string) bool
	// Alive reports whether a static pod is alive, so that its mirror pod must not show an end.
	// Nil: unknown.
	Alive func(static types.UID) bool
	// Silent reports whether another process reports for the node now. Nil: never.
	Silent func() bool
	// Event records an event on the node about a mirror pod that cannot be created.
	Event func(reason, message string)
}

// Manager maintains the mirror pods. Only Run touches its fields.
type Manager struct {
	cfg    Config
	faults map[types.UID]logonce.Failure // last reported, by static pod
	waits  map[string]*backoff           // by namespace and name, so that a refused mirror pod delays no other
}

// backoff is that of a mirror pod that could not be created or deleted.
type backoff struct {
	wait.Backoff
	until time.Time // zero before the first failure
}

const (
	period     = 2 * time.Second // as of the kubelet's housekeeping
	maxBackoff = 30 * time.Second
	timeout    = 10 * time.Second
)

// New makes a Manager; Run runs it.
func New(c Config) (*Manager, error) {
	if c.Pods == nil || c.Sources == nil || c.Node == nil || c.Ending == nil || c.Event == nil {
		return nil, errors.New("mirror: Pods, Sources, Node, Ending and Event are required")
	}
	if c.Alive == nil {
		c.Alive = func(types.UID) bool { return false }
	}
	if c.Silent == nil {
		c.Silent = func() bool { return false }
	}
	return &Manager{cfg: c, faults: map[types.UID]logonce.Failure{}, waits: map[string]*backoff{}}, nil
}

// Run maintains the mirror pods until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	for {
		m.pass(ctx)
		pause := period
		for _, w := range m.waits {
			pause = min(pause, time.Until(w.until))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-m.cfg.Sources.Mirrored():
		case <-time.After(pause):
		}
	}
}

func (m *Manager) pass(ctx context.Context) {
	// Until the API source has delivered its first list, the mirror pods are unknown.
	if !m.cfg.Sources.SeenBy(pod.SourceAPI) || m.cfg.Silent() {
		clear(m.waits)
		return
	}
	complete := m.cfg.Sources.AllSeen() // read before the pods
	static, mirrors := m.cfg.Sources.StaticPods()
	waits := map[string]*backoff{} // of the actions that are still due
	for _, a := range decide(input{static: static, mirrors: mirrors, complete: complete, ending: m.cfg.Ending, forgotten: m.cfg.Sources.MirrorForgotten, alive: m.cfg.Alive, withheld: m.cfg.Sources.Withheld}) {
		of := a.name()
		w := m.waits[of]
		if w == nil {
			w = &backoff{Backoff: wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Steps: 10, Cap: maxBackoff}}
		}
		waits[of] = w
		if time.Now().Before(w.until) {
			continue
		}
		err := m.act(ctx, a)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			delete(waits, of)
			continue
		}
		if w.until.IsZero() {
			klog.FromContext(ctx).Error(err, "Failed to update a mirror pod, will retry", "pod", klog.KObj(cmp.Or(a.static, a.mirror)))
		}
		w.until = time.Now().Add(w.Step())
	}
	m.waits = waits
	m.forget(static)
}

func (m *Manager) act(ctx context.Context, a action) error {
	log := klog.FromContext(ctx)
	if a.mirror != nil {
		log.V(1).Info("Deleting a mirror pod", "pod", klog.KObj(a.mirror), "uid", a.mirror.UID, "reason", a.why)
		if err := m.delete(ctx, a.mirror); err != nil {
			return err
		}
	}
	if a.static == nil {
		return nil
	}
	owner := m.cfg.Node()
	if owner == "" {
		return nil // the next pass tries again
	}
	log.V(1).Info("Creating a mirror pod", "pod", klog.KObj(a.static), "of", a.static.UID, "reason", a.why)
	err := m.create(ctx, a.static, owner)
	switch {
	case err == nil:
		delete(m.faults, a.static.UID)
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsNotFound(err), apierrors.IsAlreadyExists(err):
		// The API server refuses the object itself; a retry alone does not help.
		fault := m.faults[a.static.UID]
		changed := fault.Changed(err)
		m.faults[a.static.UID] = fault
		if changed && !apierrors.IsAlreadyExists(err) { // mostly the watch is just behind
			m.cfg.Event("FailedMirrorPod", fmt.Sprintf("Static pod %s/%s runs, but the API server accepts no mirror pod for it: %v", a.static.Namespace, a.static.Name, err))
		}
	}
	return err
}

func (m *Manager) create(ctx context.Context, static *v1.Pod, owner types.UID) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	yes := true
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: static.Namespace, Name: static.Name, Labels: static.Labels, Annotations: maps.Clone(static.Annotations),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: m.cfg.NodeName, UID: owner, Controller: &yes}},
		},
		Spec: static.Spec,
	}
	p.Annotations[pod.AnnotationMirror] = static.Annotations[pod.AnnotationConfigHash]
	_, err := m.cfg.Pods.Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("make the mirror pod of static pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return nil
}

// delete deletes a mirror pod with grace 0, because nothing ends with it.
func (m *Manager) delete(ctx context.Context, mirror *v1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := m.cfg.Pods.Pods(mirror.Namespace).Delete(ctx, mirror.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64), Preconditions: metav1.NewUIDPreconditions(string(mirror.UID)),
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete the mirror pod %s/%s (%s): %w", mirror.Namespace, mirror.Name, mirror.UID, err)
	}
	return nil
}

// forget drops the reported faults of static pods that do not exist any more.
func (m *Manager) forget(static []*v1.Pod) {
	have := make(map[types.UID]bool, len(static))
	for _, p := range static {
		have[p.UID] = true
	}
	maps.DeleteFunc(m.faults, func(uid types.UID, _ logonce.Failure) bool { return !have[uid] })
}
