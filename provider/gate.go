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

// gate is the pod client that virtual-kubelet gets. virtual-kubelet deletes pods from the API
// server while their containers may still run, and writes whole statuses. gate turns both into
// notifications, and the loop acts when it is due. Other calls pass through.
type gate struct {
	corev1client.PodsGetter
	source Source
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

// Delete asks the loop to terminate the pod. The status writer deletes the object (grace period 0,
// with this UID as precondition) once nothing runs and the volumes are released.
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

// UpdateStatus writes nothing, because it would replace the whole status, including conditions of
// other controllers. It notifies the api source.
func (p *gatedPods) UpdateStatus(_ context.Context, updated *v1.Pod, _ metav1.UpdateOptions) (*v1.Pod, error) {
	p.gate.source.PodChanged(pod.Ref{Namespace: p.namespace, Name: updated.Name, UID: updated.UID})
	return updated, nil
}
