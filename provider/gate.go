package provider

import (
	"context"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	corev1listers "k8s.io/client-go/listers/core/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// gate is the pod client that virtual-kubelet gets. It deletes pods from the API
// server while their containers may still run, and it writes whole statuses;
// both become requests to the loop, which does them when they are due. All else
// passes.
type gate struct {
	corev1client.PodsGetter
	loop   Loop
	lister corev1listers.PodLister
}

func (g *gate) Pods(namespace string) corev1client.PodInterface {
	return &gatedPods{PodInterface: g.PodsGetter.Pods(namespace), gate: g, namespace: namespace}
}

type gatedPods struct {
	corev1client.PodInterface
	gate      *gate
	namespace string
}

// Delete asks the loop to end the pod. The real delete (grace 0, with this UID
// as precondition) is the status writer's, once nothing runs and the volumes are
// released.
func (p *gatedPods) Delete(_ context.Context, name string, o metav1.DeleteOptions) error {
	var uid types.UID
	if o.Preconditions != nil && o.Preconditions.UID != nil {
		uid = *o.Preconditions.UID
	} else if known, err := p.gate.lister.Pods(p.namespace).Get(name); err == nil {
		uid = known.UID
	}
	p.gate.loop.TerminateRequested(p.namespace, name, uid)
	return nil
}

// UpdateStatus writes nothing: it would replace the whole status, conditions of
// other controllers included. The loop is told to look.
func (p *gatedPods) UpdateStatus(_ context.Context, updated *v1.Pod, _ metav1.UpdateOptions) (*v1.Pod, error) {
	p.gate.loop.PodChanged(pod.Ref{Namespace: p.namespace, Name: updated.Name, UID: updated.UID})
	return updated, nil
}
