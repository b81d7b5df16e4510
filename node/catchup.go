package node

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/notify"
)

// catchUpTimeout bounds one list request.
const catchUpTimeout = 10 * time.Second

// catchUpPause is the pause after a failed list.
const catchUpPause = 2 * time.Second

// catchUp lists the node's pods each time apiBack signals that the API server answers again, and
// reconciles their statuses. After an outage the node lifecycle controller has set, or is about to
// set, every pod of the node to not Ready, and the watch that would show this may stay in
// client-go's back-off for up to a minute.
func catchUp(ctx context.Context, apiBack notify.Signal, client typedcore.PodsGetter, node string, reconcile func(*v1.Pod)) error {
	var again <-chan time.Time // set after a failed list
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
			klog.FromContext(ctx).V(1).Info("Failed to read the node's pods after an outage, will retry", "in", catchUpPause, "err", err)
			again = time.After(catchUpPause)
			continue
		}
		for i := range list.Items {
			reconcile(&list.Items[i])
		}
	}
}
