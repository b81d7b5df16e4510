package syncloop

import (
	"context"
	"errors"
	"fmt"
	"path"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/pod"
)

// ErrNotFound is returned if the node has no such pod or container.
var ErrNotFound = errors.New("not found")

// Instance is one instance of a container, for logs and streams.
type Instance struct {
	ID      string
	Running bool
	LogPath string // absolute, on the host
}

// Pods returns the pods of all sources, each with the status that the node last generated.
func (l *Loop) Pods() []*v1.Pod {
	pods := l.cfg.Sources.Pods()
	for i, p := range pods {
		pods[i] = l.withStatus(p)
	}
	return pods
}

// PodByName returns the pod of this name from Pods.
func (l *Loop) PodByName(namespace, name string) (*v1.Pod, bool) {
	for _, p := range l.cfg.Sources.Pods() {
		if p.Namespace == namespace && p.Name == name {
			return l.withStatus(p), true
		}
	}
	return nil, false
}

// AllocatedPods returns the pods that are admitted and have not ended, each with the CPU and memory that
// the node has allocated to it.
func (l *Loop) AllocatedPods() []*v1.Pod {
	var pods []*v1.Pod
	for _, p := range l.Unended() {
		if p = l.allocated(p.UID); p != nil {
			pods = append(pods, p)
		}
	}
	return pods
}

// allocated returns the pod as the allocation manager has answered it last, or nil.
func (l *Loop) allocated(uid types.UID) *v1.Pod {
	w := l.worker(uid)
	if w == nil {
		return nil
	}
	w.pub.mu.Lock()
	defer w.pub.mu.Unlock()
	return w.pub.allocated
}

func (l *Loop) withStatus(p *v1.Pod) *v1.Pod {
	status := l.State(p.UID).Status
	if status == nil {
		return p
	}
	out := *p // the source's object is shared; only the status is replaced
	out.Status = *status
	return &out
}

// RunningPods returns the pods with a running container, built from the observations of the runtime.
func (l *Loop) RunningPods(context.Context) ([]*v1.Pod, error) {
	var pods []*v1.Pod
	for _, ref := range l.cfg.PLEG.Cache().Known() {
		o := l.cfg.PLEG.Cache().Get(ref.UID)
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ref.Namespace, Name: ref.Name, UID: ref.UID}}
		for _, c := range o.Containers {
			if c.State == pod.StateRunning {
				p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: c.Name, Image: c.Image})
			}
		}
		if len(p.Spec.Containers) > 0 {
			pods = append(pods, p)
		}
	}
	return pods, nil
}

// Instance returns the newest instance of a container, or with previous the one before it. A
// container that has never started has no instance.
func (l *Loop) Instance(_ context.Context, namespace, name string, uid types.UID, container string, previous bool) (Instance, error) {
	p, ok := l.PodByName(namespace, name)
	if !ok || uid != "" && p.UID != l.Resolve(uid) {
		return Instance{}, fmt.Errorf("pod %s/%s is not on this node: %w", namespace, name, ErrNotFound)
	}
	if pod.Find(pod.AllContainers(&p.Spec), container) == nil {
		return Instance{}, fmt.Errorf("pod %s/%s has no container %q: %w", namespace, name, container, ErrNotFound)
	}
	o := l.cfg.PLEG.Cache().Get(p.UID)
	skip := 0
	if previous && !isWaiting(p, container) {
		skip = 1
	}
	for i := range o.Containers {
		c := &o.Containers[i]
		if c.Name != container || c.State == pod.StateCreated {
			continue
		}
		if skip > 0 {
			skip--
			continue
		}
		log := c.LogPath
		if log == "" {
			log = path.Join(spec.LogDir(l.cfg.Machine(), p), spec.LogPath(container, c.Attempt))
		}
		return Instance{ID: c.ID, Running: c.State == pod.StateRunning, LogPath: log}, nil
	}
	if previous {
		return Instance{}, fmt.Errorf("previous terminated container %q in pod %q: %w", container, name, ErrNotFound)
	}
	return Instance{}, fmt.Errorf("container %q in pod %q is waiting to start: %w", container, name, ErrNotFound)
}

// isWaiting reports whether the container waits between two instances; its newest instance is then
// the previous one.
func isWaiting(p *v1.Pod, container string) bool {
	s := pod.FindStatus(&p.Status, container)
	return s != nil && s.State.Waiting != nil
}

// Sandbox returns the ID of the pod's ready sandbox.
func (l *Loop) Sandbox(_ context.Context, namespace, name string, uid types.UID) (string, error) {
	p, ok := l.PodByName(namespace, name)
	if !ok || uid != "" && p.UID != l.Resolve(uid) {
		return "", fmt.Errorf("pod %s/%s is not on this node: %w", namespace, name, ErrNotFound)
	}
	if s := readySandbox(l.cfg.PLEG.Cache().Get(p.UID)); s != nil {
		return s.ID, nil
	}
	return "", fmt.Errorf("pod %s/%s has no running sandbox: %w", namespace, name, ErrNotFound)
}

// SourcesSeen reports whether every source of pods has been seen once.
func (l *Loop) SourcesSeen() bool { return l.cfg.Sources.AllSeen() }

// Finished reports whether the pod has ended and the API server has its final status, so that what
// it left on the host is not the only trace of it. It is false for a static pod.
func (l *Loop) Finished(uid types.UID) bool {
	if s := l.State(uid); s.Managed {
		return !s.Static && s.Ended() && l.cfg.Status.Accepted(uid)
	}
	p := l.cfg.Sources.Get(uid)
	return p != nil && !pod.IsStatic(p) && pod.Terminal(p.Status.Phase)
}

// Known reports whether a worker or a source has the pod, or may have it.
func (l *Loop) Known(uid types.UID) bool {
	return l.State(uid).Managed || l.cfg.Sources.Get(uid) != nil || l.withheld(uid)
}
