// Package clearing deletes Host objects and waits until their nodes are gone.
package clearing

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/hosts"
	"github.com/bowline-k8s/bowline/hosts/replica"
	"github.com/bowline-k8s/bowline/logonce"
)

// Clearing is the removal of many Host objects.
type Clearing struct {
	Hosts interface {
		List(ctx context.Context, opts metav1.ListOptions) (*v1alpha1.HostList, error)
		Patch(ctx context.Context, name string, body []byte) error
		Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
	}
	Selector string
	Except   []string
	Detach   bool
	Pause    time.Duration // between two polls
	// Report gets each change that Run sees; nil: none is reported. Run calls it from its own
	// goroutine.
	Report func(Change)
	// agreed are the Hosts that the user agreed to delete. Nil: the user was not asked, and all are
	// deleted, including those created meanwhile.
	agreed map[types.UID]bool
}

// Change is one change of a Host's removal, or a failed attempt.
type Change struct {
	Host string
	Now  string // progress of the removal, in words
	Err  error  // of an attempt that will be retried; Host and Now are empty
}

// Due is a Host that will be deleted.
type Due struct {
	Name, Endpoint string
	Policy         v1alpha1.DeletionPolicy // that applies
}

// Confirm passes the Hosts that will be deleted to agrees, unless there are none. Run then deletes
// these alone.
func (c *Clearing) Confirm(ctx context.Context, agrees func(context.Context, []Due) error) error {
	items, err := c.due(ctx)
	if err != nil {
		return err
	}
	c.agreed = map[types.UID]bool{}
	if len(items) == 0 {
		return nil
	}
	var list []Due
	for i := range items {
		policy := items[i].Spec.DeletionPolicy
		if c.Detach {
			policy = v1alpha1.DeletionDetach
		}
		list = append(list, Due{items[i].Name, items[i].Spec.Endpoint, cmp.Or(policy, v1alpha1.DeletionDrain)})
	}
	if err := agrees(ctx, list); err != nil {
		return err
	}
	for i := range items {
		c.agreed[items[i].UID] = true
	}
	return nil
}

func (c *Clearing) report(change Change) {
	if c.Report != nil {
		c.Report(change)
	}
}

// due returns the Hosts to delete; none if the cluster does not have the resource.
func (c *Clearing) due(ctx context.Context) ([]v1alpha1.Host, error) {
	list, err := c.Hosts.List(ctx, metav1.ListOptions{LabelSelector: c.Selector})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the Hosts: %w", err)
	}
	return slices.DeleteFunc(list.Items, func(h v1alpha1.Host) bool {
		return slices.Contains(c.Except, h.Name) || c.agreed != nil && !c.agreed[h.UID]
	}), nil
}

// Run deletes the Hosts and waits until they are gone. It retries errors until ctx ends, because a
// Helm hook runs only once.
func (c *Clearing) Run(ctx context.Context) error {
	shown := map[string]string{} // the last progress of each Host
	var failed logonce.Failure
	for {
		left, err := c.look(ctx, shown)
		if err == nil && len(left) == 0 {
			return nil
		}
		if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
			return err
		}
		if err != nil && ctx.Err() == nil && failed.Changed(err) {
			c.report(Change{Err: err})
		}
		select {
		case <-time.After(c.Pause):
			continue
		case <-ctx.Done():
		}
		if err != nil && len(left) == 0 {
			return fmt.Errorf("the Hosts could not be removed in time: %w", err)
		}
		var faults []error
		for _, h := range left {
			faults = append(faults, fmt.Errorf("the Host %s is not gone: %s", h, shown[h]))
		}
		return hint.Add(errors.Join(faults...), "wait, because the removal continues as long as Bowline runs; --detach leaves the hosts as they are")
	}
}

// look takes the next step for each Host, reports what changed, and returns the names of those that
// still exist.
func (c *Clearing) look(ctx context.Context, shown map[string]string) ([]string, error) {
	items, err := c.due(ctx)
	if err != nil {
		return nil, err
	}
	var left []string
	var faults []error
	for i := range items {
		h := &items[i]
		left = append(left, h.Name)
		if err := c.end(ctx, h); err != nil {
			faults = append(faults, fmt.Errorf("the Host %s: %w", h.Name, err))
			continue
		}
		if now := removalOf(h); now != shown[h.Name] {
			shown[h.Name] = now
			c.report(Change{Host: h.Name, Now: now})
		}
	}
	return left, errors.Join(faults...)
}

func (c *Clearing) end(ctx context.Context, h *v1alpha1.Host) error {
	if c.Detach && h.Spec.DeletionPolicy != v1alpha1.DeletionDetach {
		body, err := json.Marshal(map[string]any{"spec": map[string]any{"deletionPolicy": v1alpha1.DeletionDetach}})
		if err != nil {
			return err
		}
		if err := c.Hosts.Patch(ctx, h.Name, body); err != nil {
			return unlessGone(err)
		}
	}
	if h.DeletionTimestamp != nil {
		return nil
	}
	return unlessGone(c.Hosts.Delete(ctx, h.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(h.UID))}))
}

func unlessGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// removalOf returns the progress of a Host's deletion. A Ready condition from before the deletion
// does not count.
func removalOf(h *v1alpha1.Host) string {
	ready := meta.FindStatusCondition(h.Status.Conditions, v1alpha1.ConditionReady)
	if h.DeletionTimestamp == nil || ready == nil || ready.Status == metav1.ConditionTrue ||
		!slices.Contains([]string{hosts.ReasonDraining, hosts.ReasonReleasing, hosts.ReasonDetaching, hosts.ReasonBlocked}, ready.Reason) {
		return "it is being deleted; Bowline has not reported progress yet"
	}
	return ready.Reason + ": " + ready.Message
}

// DropLeases deletes the Leases of replicas that have ended, and returns their names. The replicas
// could not do it themselves: the chart's RBAC is removed with the chart.
func DropLeases(ctx context.Context, leases coordinationv1client.LeaseInterface) (dropped []string, err error) {
	list, err := leases.List(ctx, metav1.ListOptions{LabelSelector: replica.KindLabel})
	if err != nil {
		return nil, fmt.Errorf("list the Leases: %w", err)
	}
	var faults []error
	for i := range list.Items {
		name := list.Items[i].Name
		if err := unlessGone(leases.Delete(ctx, name, metav1.DeleteOptions{})); err != nil {
			faults = append(faults, fmt.Errorf("delete the Lease %s: %w", name, err))
			continue
		}
		dropped = append(dropped, name)
	}
	return dropped, errors.Join(faults...)
}
