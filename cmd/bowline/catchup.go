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

// catchUpPause is the wait after a reading that failed.
const catchUpPause = 2 * time.Second

// catchUp reads the pods at each word that the API server answers again, and puts
// their statuses right. After an outage the node controller has called every pod
// of the node not Ready, or is about to, and the watch that would show it may stay
// in client-go's back-off for up to a minute.
func catchUp(ctx context.Context, apiBack nudge, client typedcore.PodsGetter, node string, reconcile func(*v1.Pod)) error {
	var again <-chan time.Time // after a reading that failed
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-apiBack:
		case <-again:
		}
		again = nil
		callCtx, cancel := context.WithTimeout(ctx, catchUpTimeout)
		list, err := client.Pods(metav1.NamespaceAll).List(callCtx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(),
		})
		cancel()
		if err != nil {
			klog.FromContext(ctx).V(1).Info("Cannot read the node's pods after an outage; reading them again", "in", catchUpPause, "err", err)
			again = time.After(catchUpPause)
			continue
		}
		for i := range list.Items {
			reconcile(&list.Items[i])
		}
	}
}
