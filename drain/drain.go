// Package drain takes a node out of its cluster: it evicts the node's pods, and at the end deletes
// the node. It knows the API server only, and does not wait: its callers decide when to try again.
package drain

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// Node is a node to drain.
type Node struct {
	Client kubernetes.Interface
	Name   string
	UID    types.UID // Delete deletes only the Node with this UID; empty: any of the name
}

// Cordon marks the node as unschedulable. It is no error if the node does not exist.
func (n Node) Cordon(ctx context.Context) error {
	patch := []byte(`{"spec":{"unschedulable":true}}`)
	_, err := n.Client.CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("cordon node %q: %w", n.Name, err)
	}
	return nil
}

// Pods lists the pods that are bound to the node.
func (n Node) Pods(ctx context.Context) ([]v1.Pod, error) {
	list, err := n.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + n.Name})
	if err != nil {
		return nil, fmt.Errorf("list the pods of node %q: %w", n.Name, err)
	}
	return list.Items, nil
}

// Evictable reports whether the pod would not come back to a cordoned node, as a mirror pod or a
// DaemonSet's pod would.
func Evictable(p *v1.Pod) bool {
	c := metav1.GetControllerOf(p)
	return p.Annotations[v1.MirrorPodAnnotationKey] == "" && (c == nil || c.Kind != "DaemonSet")
}

// Outcome is the outcome of an eviction.
type Outcome int

const (
	// Failed: the request failed; the error says how.
	Failed Outcome = iota
	// Evicted: the pod is being deleted.
	Evicted
	// Gone: the pod does not exist, or another pod has its name.
	Gone
	// Refused: a disruption budget does not allow it now; the error is the API server's.
	Refused
)

// Evict evicts the pod with p's UID.
func (n Node) Evict(ctx context.Context, p *v1.Pod) (Outcome, error) {
	err := n.Client.CoreV1().Pods(p.Namespace).EvictV1(ctx, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(p.UID))},
	})
	switch {
	case err == nil:
		return Evicted, nil
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return Gone, nil
	case apierrors.IsTooManyRequests(err):
		return Refused, err
	}
	return Failed, fmt.Errorf("evict pod %s/%s: %w", p.Namespace, p.Name, err)
}

// Round is what one round of evictions did. Its pods are NAMESPACE/NAME.
type Round struct {
	Ending  []string  // are being deleted
	Evicted []string  // those of Ending that this round evicted
	Refused []Refusal // not yet
}

// Refusal is an eviction that a disruption budget does not allow now.
type Refusal struct {
	Pod string
	Err error // the API server's
}

// EvictAll evicts those of the node's pods that are evictable and are not being deleted yet. It stops
// at the first request that fails.
func (n Node) EvictAll(ctx context.Context, pods []v1.Pod) (r Round, err error) {
	for i := range pods {
		p := &pods[i]
		name := p.Namespace + "/" + p.Name
		switch {
		case !Evictable(p):
			continue
		case p.DeletionTimestamp != nil:
			r.Ending = append(r.Ending, name)
			continue
		}
		switch outcome, err := n.Evict(ctx, p); outcome {
		case Evicted:
			r.Ending, r.Evicted = append(r.Ending, name), append(r.Evicted, name)
		case Gone:
		case Refused:
			r.Refused = append(r.Refused, Refusal{name, err})
		default:
			return r, err
		}
	}
	return r, nil
}

// Delete deletes the Node and then these pods of it, without a grace period. The Node goes first,
// because a DaemonSet would recreate its pods. Call it when nothing of the pods runs.
func (n Node) Delete(ctx context.Context, pods []v1.Pod) error {
	var of metav1.DeleteOptions
	if n.UID != "" {
		of.Preconditions = metav1.NewUIDPreconditions(string(n.UID))
	}
	if err := n.Client.CoreV1().Nodes().Delete(ctx, n.Name, of); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete node %q: %w", n.Name, err)
	}
	var faults []error
	for i := range pods {
		err := n.Client.CoreV1().Pods(pods[i].Namespace).Delete(ctx, pods[i].Name, metav1.DeleteOptions{
			GracePeriodSeconds: new(int64), Preconditions: metav1.NewUIDPreconditions(string(pods[i].UID)),
		})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			faults = append(faults, fmt.Errorf("delete pod %s/%s: %w", pods[i].Namespace, pods[i].Name, err))
		}
	}
	return errors.Join(faults...)
}
