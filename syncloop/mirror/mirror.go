// Package mirror keeps the mirror pods: the objects by which the API server shows the
// static pods of a node. It makes what is missing, makes anew what is stale or has been
// deleted, and deletes what stands for nothing. Static pods run without it.
//
//	static pods ─┐
//	mirror pods ─┴─► decide (pure) ─► Manager: create, delete
package mirror

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/pod"
)

// Sources of pods, as config.PodConfig merges them.
type Sources interface {
	// Mirrored is poked when a static pod or a mirror pod has come, gone or changed.
	Mirrored() <-chan struct{}
	StaticPods() (static, mirrors []*v1.Pod)
	SeenBy(source string) bool
	// Buried says whether the mirror pod of this UID is of a life that is over.
	Buried(mirror types.UID) bool
	// Withheld says whether a pod with these annotations may be there, which no source
	// can tell.
	Withheld(annotations map[string]string) bool
	AllSeen() bool
}

// Config of a Manager.
type Config struct {
	Pods    corev1client.PodsGetter
	Sources Sources
	// Node is the UID of the node's object, which owns the mirror pods; empty while it is
	// not known, or on its way out.
	Node     func() types.UID
	NodeName string
	// Ending says whether an earlier static pod of this name has not ended yet.
	Ending func(namespace, name string) bool
	// Lives says whether a static pod lives: its mirror pod tells of no end. Nil: not known.
	Lives func(static types.UID) bool
	// Silent says that another process speaks for the node now. Nil: never.
	Silent func() bool
	// Event tells on the node of a mirror pod that cannot be made.
	Event func(reason, message string)
}

// Manager keeps the mirror pods. Only Run touches its fields.
type Manager struct {
	cfg    Config
	faults map[types.UID]string // last told, by static pod
	waits  map[string]*wait     // by namespace and name: one that is refused holds up no other
}

// wait is a mirror pod that could not be made or deleted.
type wait struct {
	failures int
	until    time.Time
}

// The pass of housekeeping is the kubelet's; a call that failed waits longer with each
// failure.
const (
	period     = 2 * time.Second
	minBackoff = 250 * time.Millisecond // doubled at the first failure already
	maxBackoff = 30 * time.Second
	timeout    = 10 * time.Second
)

// New makes a Manager; Run works.
func New(c Config) (*Manager, error) {
	if c.Pods == nil || c.Sources == nil || c.Node == nil || c.Ending == nil || c.Event == nil {
		return nil, errors.New("mirror: Pods, Sources, Node, Ending and Event are required")
	}
	if c.Lives == nil {
		c.Lives = func(types.UID) bool { return false }
	}
	if c.Silent == nil {
		c.Silent = func() bool { return false }
	}
	return &Manager{cfg: c, faults: map[types.UID]string{}, waits: map[string]*wait{}}, nil
}

// Run keeps the mirror pods until ctx ends.
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
	// Before the API server's pods are known, so are its mirror pods not.
	if !m.cfg.Sources.SeenBy(pod.SourceAPI) || m.cfg.Silent() {
		clear(m.waits)
		return
	}
	complete := m.cfg.Sources.AllSeen() // asked before the pods
	static, mirrors := m.cfg.Sources.StaticPods()
	waits := map[string]*wait{} // of what is still to be done
	for _, a := range decide(input{static: static, mirrors: mirrors, complete: complete, ending: m.cfg.Ending, buried: m.cfg.Sources.Buried, lives: m.cfg.Lives, withheld: m.cfg.Sources.Withheld}) {
		of := a.name()
		w := m.waits[of]
		if w == nil {
			w = &wait{}
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
		if w.failures++; w.failures == 1 {
			klog.FromContext(ctx).Info("A mirror pod is not as it should be; it is tried again", "pod", of, "err", err)
		}
		w.until = time.Now().Add(min(minBackoff<<min(w.failures, 8), maxBackoff))
	}
	m.waits = waits
	m.forget(static)
}

func (m *Manager) act(ctx context.Context, a action) error {
	log := klog.FromContext(ctx)
	if a.mirror != nil {
		log.V(1).Info("Deletes a mirror pod", "pod", klog.KObj(a.mirror), "uid", a.mirror.UID, "why", a.why)
		if err := m.delete(ctx, a.mirror); err != nil {
			return err
		}
	}
	if a.static == nil {
		return nil
	}
	owner := m.cfg.Node()
	if owner == "" {
		return nil // the next pass knows it
	}
	log.V(1).Info("Makes a mirror pod", "pod", klog.KObj(a.static), "of", a.static.UID, "why", a.why)
	err := m.create(ctx, a.static, owner)
	switch {
	case err == nil:
		delete(m.faults, a.static.UID)
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsNotFound(err), apierrors.IsAlreadyExists(err):
		// The object itself is refused, which no retry mends by itself.
		if m.faults[a.static.UID] != err.Error() {
			m.faults[a.static.UID] = err.Error()
			if !apierrors.IsAlreadyExists(err) { // the watch is a moment behind, mostly
				m.cfg.Event("FailedMirrorPod", fmt.Sprintf("Static pod %s/%s runs, and the API server takes no mirror pod for it: %v", a.static.Namespace, a.static.Name, err))
			}
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

// delete takes one away at once: nothing ends with it.
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

// forget drops what was told of static pods that are no more.
func (m *Manager) forget(static []*v1.Pod) {
	have := make(map[types.UID]bool, len(static))
	for _, p := range static {
		have[p.UID] = true
	}
	maps.DeleteFunc(m.faults, func(uid types.UID, _ string) bool { return !have[uid] })
}
