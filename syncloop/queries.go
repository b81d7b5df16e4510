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

// ErrNotFound: there is no such pod or container on this node.
var ErrNotFound = errors.New("not found")

// Instance is one container instance, for logs and streams.
type Instance struct {
	ID      string
	Running bool
	LogPath string // absolute, on the machine
}

// Pods returns the pods of every source, with the status that the node last
// made for each.
func (l *Loop) Pods() []*v1.Pod {
	pods := l.cfg.Sources.Pods()
	for i, p := range pods {
		pods[i] = l.withStatus(p)
	}
	return pods
}

// PodByName returns one of them.
func (l *Loop) PodByName(namespace, name string) (*v1.Pod, bool) {
	for _, p := range l.cfg.Sources.Pods() {
		if p.Namespace == namespace && p.Name == name {
			return l.withStatus(p), true
		}
	}
	return nil, false
}

func (l *Loop) withStatus(p *v1.Pod) *v1.Pod {
	l.mu.Lock()
	w := l.workers[p.UID]
	l.mu.Unlock()
	if w == nil {
		return p
	}
	w.pub.mu.Lock()
	defer w.pub.mu.Unlock()
	if w.pub.status == nil {
		return p
	}
	out := *p // the source's object is shared; only the status is ours
	out.Status = *w.pub.status
	return &out
}

// RunningPods are made from what the runtime shows.
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

// Instance finds the newest instance of a container, or with previous the one
// before it; a container that has never started has no instance yet.
func (l *Loop) Instance(_ context.Context, namespace, name string, uid types.UID, container string, previous bool) (Instance, error) {
	p, ok := l.PodByName(namespace, name)
	if !ok || uid != "" && p.UID != l.Resolve(uid) {
		return Instance{}, fmt.Errorf("pod %s/%s is not on this node: %w", namespace, name, ErrNotFound)
	}
	if containerOf(p, container) == nil {
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

// isWaiting: the container is between two instances, so that the newest there is
// counts as the previous one.
func isWaiting(p *v1.Pod, container string) bool {
	st := &p.Status
	for _, list := range [][]v1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses, st.EphemeralContainerStatuses} {
		for i := range list {
			if list[i].Name == container {
				return list[i].State.Waiting != nil
			}
		}
	}
	return false
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

// SourcesSeen says whether every source of pods has been seen once.
func (l *Loop) SourcesSeen() bool { return l.cfg.Sources.AllSeen() }

// Finished says whether the pod has ended and the API server knows: that it ran is then
// written elsewhere than in what it has left on the machine. Of a static pod it is not.
func (l *Loop) Finished(uid types.UID) bool {
	l.mu.Lock()
	w := l.workers[uid]
	l.mu.Unlock()
	if w != nil {
		return !w.static && l.Ended(uid) && l.cfg.Status.Accepted(uid)
	}
	p := l.cfg.Sources.Get(uid)
	return p != nil && !pod.IsStatic(p) && terminal(p)
}

// Known says whether a worker or a source has the pod, or may have.
func (l *Loop) Known(uid types.UID) bool {
	l.mu.Lock()
	w := l.workers[uid]
	l.mu.Unlock()
	return w != nil || l.cfg.Sources.Get(uid) != nil || l.withheld(uid)
}
