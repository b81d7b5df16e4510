package node

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/ownership"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/owner"
)

const (
	// endTime bounds the record of why a driver has ended.
	endTime = 10 * time.Second
	// endAgain is how often the record of the same cause is renewed.
	endAgain = 5 * time.Minute
)

// The reasons of the events on a Node why its host is not managed: someone else manages it, or, as with
// a kubelet, the node cannot be set up on it.
const (
	reasonInUse = "HostInUse"
	reasonSetup = "KubeletSetupFailed"
)

// stage is how far a driver has come.
type stage int

const (
	stageConnected stage = iota // to the host and to the API server
	stageSetup                  // the node has its name in this process, and is being set up
	stageServing
)

// endReason returns the reason of the event for the error by which a driver has ended; empty if there is
// no event. A host or a runtime out of reach makes the node NotReady, and a quarantine has an event of
// its own.
func endReason(at stage, err error) string {
	var refused *owner.RefusedError
	var exceeded *budget.ExceededError
	switch {
	case err == nil, errors.As(err, &exceeded):
		return ""
	case errors.As(err, &refused) && refused.HostInUse():
		return reasonInUse
	case errors.Is(err, ownership.ErrLockLost):
		return v1alpha1.ReasonLockLost
	case at != stageSetup, errors.Is(err, host.ErrUnreachable), cri.IsTransport(err):
		return ""
	}
	return reasonSetup
}

// recordEnd records on the Node why its driver has ended, if the API server is known to be the node's and
// the Node is that of this host.
func (n *Node) recordEnd(ctx context.Context, err error) {
	reason := endReason(n.stage, err)
	if reason == "" || ctx.Err() != nil || budget.From(ctx).Err() != nil || !n.cluster.IsReady() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, endTime)
	defer cancel()
	if err := recordOnce(ctx, n.cluster.Client, n.cfg, n.name, reason, budget.Text(hint.Text(err))); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to record on the Node why its host is not managed", "reason", reason)
	}
}

// recordOnce records a Warning on a Node that was made for the host. A driver that fails again and again
// for the same cause renews one event: its name is made of the cause.
func recordOnce(ctx context.Context, client kubernetes.Interface, cfg *config.Host, nodeName, reason, message string) error {
	node, err := client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && !madeFor(node, cfg) {
		return nil
	}
	if err != nil {
		return err
	}
	cause := fnv.New64a()
	_, _ = cause.Write([]byte(reason + message)) // never fails
	now, events := metav1.Now(), client.CoreV1().Events(metav1.NamespaceDefault)
	e := nodeEvent(nodeName, fmt.Sprintf("%x", cause.Sum64()), now, reason, message)
	if _, err = events.Create(ctx, e, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		return err
	}
	last, err := events.Get(ctx, e.Name, metav1.GetOptions{})
	if err != nil || now.Sub(last.LastTimestamp.Time) < endAgain {
		return err
	}
	renewed := fmt.Sprintf(`{"count":%d,"lastTimestamp":%q}`, last.Count+1, now.UTC().Format(time.RFC3339))
	_, err = events.Patch(ctx, e.Name, types.MergePatchType, []byte(renewed), metav1.PatchOptions{})
	return err
}

// nodeEvent returns a Warning on a Node, for a driver that has no recorder. id makes its name unique.
func nodeEvent(nodeName, id string, at metav1.Time, reason, message string) *v1.Event {
	return &v1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: nodeName + "." + id, Namespace: metav1.NamespaceDefault},
		InvolvedObject: *pod.NodeReference(nodeName),
		Type:           v1.EventTypeWarning, Reason: reason, Message: message,
		Source:         v1.EventSource{Component: "kubelet", Host: nodeName},
		FirstTimestamp: at, LastTimestamp: at, Count: 1,
	}
}
