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

// catchUpTimeout bounds one reading.
const catchUpTimeout = 10 * time.Second

// catchUp reads the pods at each word that the API server answers again, and puts
// their statuses right. After an outage the node controller has called every pod
// of the node not Ready, or is about to, and the watch that would show it may stay
// in client-go's back-off for up to a minute.
func catchUp(ctx context.Context, apiBack nudge, client typedcore.PodsGetter, node string, reconcile func(*v1.Pod)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-apiBack:
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
