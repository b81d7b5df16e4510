package main

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"
)

// catchUp has room for one word that the API server answers again.
//
// After an outage the node controller has called every pod of the node not Ready,
// or is about to, and the watch that would show it may stay in client-go's
// back-off for up to a minute. So the pods are read once at each such word, and
// their statuses put right.
type catchUp chan struct{}

func (c catchUp) poke() {
	select {
	case c <- struct{}{}:
	default:
	}
}

// catchUpTimeout bounds one reading.
const catchUpTimeout = 10 * time.Second

func (c catchUp) run(ctx context.Context, client typedcore.PodsGetter, node string, reconcile func(*v1.Pod)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c:
		}
		callCtx, cancel := context.WithTimeout(ctx, catchUpTimeout)
		list, err := client.Pods(metav1.NamespaceAll).List(callCtx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(),
		})
		cancel()
		if err != nil {
			// The next word, or the watch, comes within seconds.
			klog.FromContext(ctx).V(1).Info("The pods could not be read after an outage", "err", err)
			continue
		}
		for i := range list.Items {
			reconcile(&list.Items[i])
		}
	}
}
