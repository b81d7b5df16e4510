package provider

import (
	"context"

	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	v1 "k8s.io/api/core/v1"
	corev1listers "k8s.io/client-go/listers/core/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// hooks are what virtual-kubelet's PodController drives. Each wakes the loop and
// returns nil at once: an error from here would make virtual-kubelet write phase
// Failed for pods that never restart, and a slow answer would hold its workers.
type hooks struct {
	loop   Loop
	held   Held
	lister corev1listers.PodLister
}

func refOf(p *v1.Pod) pod.Ref {
	return pod.Ref{Namespace: p.Namespace, Name: p.Name, UID: p.UID}
}

func (h *hooks) CreatePod(_ context.Context, p *v1.Pod) error {
	h.loop.PodChanged(refOf(p))
	return nil
}

func (h *hooks) UpdatePod(_ context.Context, p *v1.Pod) error {
	h.loop.PodChanged(refOf(p))
	return nil
}

// DeletePod is called for a deletionTimestamp and for an object that is gone;
// the lister tells the loop which.
func (h *hooks) DeletePod(_ context.Context, p *v1.Pod) error {
	h.loop.PodChanged(refOf(p))
	return nil
}

// GetPod answers "not found" for a pod that the API server has, so that every
// sync reaches CreatePod and none is lost to virtual-kubelet's own comparison,
// which ignores most fields. For a pod that the API server lacks it answers what
// the loop holds, so that DeletePod is called.
func (h *hooks) GetPod(_ context.Context, namespace, name string) (*v1.Pod, error) {
	if _, err := h.lister.Pods(namespace).Get(name); err == nil {
		return nil, errdefs.NotFoundf("pod %s/%s is asked for anew", namespace, name)
	}
	if p, ok := h.held.PodByName(namespace, name); ok {
		return p.DeepCopy(), nil
	}
	return nil, errdefs.NotFoundf("pod %s/%s is not on this node", namespace, name)
}

func (h *hooks) GetPodStatus(ctx context.Context, namespace, name string) (*v1.PodStatus, error) {
	p, err := h.lister.Pods(namespace).Get(name)
	if err != nil {
		return nil, errdefs.AsNotFound(err)
	}
	return p.Status.DeepCopy(), nil
}

// GetPods returns none: virtual-kubelet deletes at its start whatever is listed
// here and absent from its cache. Orphans are found by the loop, by UID.
func (h *hooks) GetPods(context.Context) ([]*v1.Pod, error) { return nil, nil }

// NotifyPods takes the callback and never calls it: statuses are written by
// syncloop's own writer. Having the method keeps virtual-kubelet from polling.
func (h *hooks) NotifyPods(context.Context, func(*v1.Pod)) {}
