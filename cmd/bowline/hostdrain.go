package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/bowline-k8s/bowline/provider"
	"github.com/bowline-k8s/bowline/syncloop/owner"
)

// drain takes a node out of its cluster. Nobody but us ends its pods meanwhile.
type drain struct {
	client kubernetes.Interface
	node   string
	say    func(format string, args ...any)
}

// drainPause is the time between two tries of evictions that were refused.
const drainPause = 2 * time.Second

// newDrain finds the node in the cluster; nil where there is none, or no credential.
// The node of a machine that is nobody's any more is called name.
func newDrain(ctx context.Context, kubeconfig string, file *owner.Record, id owner.Identity, running []owner.Sandbox, name string, say func(string, ...any)) (*drain, error) {
	if kubeconfig == "" {
		return nil, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	config.Timeout = 30 * time.Second
	client, err := newClientset(ours(config))
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	if id != nobody {
		name = id.NodeName
	}
	w, node, err := witnesses(ctx, client, config, name)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	ours := true // a machine without an owner has any node of that name
	if id == nobody {
		id = owner.Identity{ClusterUID: w.Service, NodeName: name}
	} else if ours, err = (seenCluster{client, w}).has(ctx, file, id, running); err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	if !ours {
		return nil, fmt.Errorf("kubeconfig %s is of cluster %s, and the machine is %s; use that cluster's kubeconfig", kubeconfig, w.Service, id)
	}
	if node == nil {
		say("The cluster has no node %q any more.", id.NodeName)
		return nil, nil
	}
	if provider.CheckOwn(node) != nil {
		say("The cluster's node %q is not Bowline's: it and its pods are left alone.", id.NodeName)
		return nil, nil
	}
	return &drain{client, id.NodeName, say}, nil
}

func (d *drain) pods(ctx context.Context) ([]v1.Pod, error) {
	list, err := d.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + d.node})
	if err != nil {
		return nil, fmt.Errorf("list the pods of node %q: %w", d.node, err)
	}
	return list.Items, nil
}

// evict cordons the node and asks for the end of its pods, as their disruption budgets
// allow. A pod is on its way when its deletion has been accepted.
func (d *drain) evict(ctx context.Context, limit time.Duration) error {
	cordon := []byte(`{"spec":{"unschedulable":true}}`)
	if _, err := d.client.CoreV1().Nodes().Patch(ctx, d.node, types.MergePatchType, cordon, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("cordon node %q: %w", d.node, err)
	}
	d.say("Node %s is cordoned.", d.node)
	enough := time.After(limit)
	for {
		pods, err := d.pods(ctx)
		if err != nil {
			return err
		}
		var refused error
		for i := range pods {
			if !evictable(&pods[i]) {
				continue
			}
			err := d.client.CoreV1().Pods(pods[i].Namespace).EvictV1(ctx, &policyv1.Eviction{
				ObjectMeta:    metav1.ObjectMeta{Namespace: pods[i].Namespace, Name: pods[i].Name},
				DeleteOptions: &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pods[i].UID))},
			})
			switch {
			case err == nil:
				d.say("evicted %s/%s", pods[i].Namespace, pods[i].Name)
			case apierrors.IsNotFound(err), apierrors.IsConflict(err): // it has gone, or is another by now
			case apierrors.IsTooManyRequests(err):
				refused = fmt.Errorf("pod %s/%s: %w", pods[i].Namespace, pods[i].Name, err)
			default:
				return fmt.Errorf("evict pod %s/%s: %w", pods[i].Namespace, pods[i].Name, err)
			}
		}
		if refused == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-enough:
			return fmt.Errorf("not drained within %s, and nothing was stopped: %w", limit, refused)
		case <-time.After(drainPause):
		}
	}
}

// evictable: not on its way yet, and not one that its controller would put back here.
func evictable(p *v1.Pod) bool {
	if p.DeletionTimestamp != nil || p.Annotations[v1.MirrorPodAnnotationKey] != "" {
		return false
	}
	c := metav1.GetControllerOf(p)
	return c == nil || c.Kind != "DaemonSet"
}

// forget deletes the node and its pods from the cluster, when nothing of them runs any
// more. The node goes first, or a DaemonSet would put its pods back.
func (d *drain) forget(ctx context.Context) error {
	pods, err := d.pods(ctx)
	if err != nil {
		return err
	}
	if err := d.client.CoreV1().Nodes().Delete(ctx, d.node, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete node %q: %w", d.node, err)
	}
	d.say("Node %s is deleted.", d.node)
	var faults []error
	for i := range pods {
		err := d.client.CoreV1().Pods(pods[i].Namespace).Delete(ctx, pods[i].Name, metav1.DeleteOptions{
			GracePeriodSeconds: new(int64), Preconditions: metav1.NewUIDPreconditions(string(pods[i].UID)),
		})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			faults = append(faults, fmt.Errorf("delete pod %s/%s: %w", pods[i].Namespace, pods[i].Name, err))
		}
	}
	return errors.Join(faults...)
}
