package provider

import (
	"context"

	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	v1 "k8s.io/api/core/v1"
	corev1listers "k8s.io/client-go/listers/core/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// hooks is called by virtual-kubelet's PodController. Each hook notifies the api source and returns nil
// at once: on an error virtual-kubelet would write phase Failed for pods that never restart, and a
// slow hook would block its workers.
type hooks struct {
	source Source
	held   Held
	lister corev1listers.PodLister
}

func refOf(p *v1.Pod) pod.Ref {
	return pod.Ref{Namespace: p.Namespace, Name: p.Name, UID: p.UID}
}

func (h *hooks) CreatePod(_ context.Context, p *v1.Pod) error {
	h.source.PodChanged(refOf(p))
	return nil
}

func (h *hooks) UpdatePod(_ context.Context, p *v1.Pod) error {
	h.source.PodChanged(refOf(p))
	return nil
}

// DeletePod is called for a deletionTimestamp and for an object that is gone. The api
// source distinguishes them by the lister.
func (h *hooks) DeletePod(_ context.Context, p *v1.Pod) error {
	h.source.PodChanged(refOf(p))
	return nil
}

// GetPod returns "not found" for a pod that the API server has, so that every sync reaches
// CreatePod. Otherwise virtual-kubelet's own comparison, which ignores most fields, would drop
// updates. For a pod that the API server does not have, it returns what the loop holds, so that
// DeletePod is called.
func (h *hooks) GetPod(_ context.Context, namespace, name string) (*v1.Pod, error) {
	if _, err := h.lister.Pods(namespace).Get(name); err == nil {
		return nil, errdefs.NotFoundf("pod %s/%s was requested again", namespace, name)
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

// GetPods returns none, because at its start virtual-kubelet deletes every pod listed here that is
// absent from its cache. The loop finds orphans itself, by UID.
func (h *hooks) GetPods(context.Context) ([]*v1.Pod, error) { return nil, nil }

// NotifyPods never calls the callback, because syncloop's own writer writes statuses. The method
// must exist so that virtual-kubelet does not poll.
func (h *hooks) NotifyPods(context.Context, func(*v1.Pod)) {}
