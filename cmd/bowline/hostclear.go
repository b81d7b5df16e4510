package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/hosts"
	"github.com/bowline-k8s/bowline/hosts/replica"
	"github.com/bowline-k8s/bowline/pod"
)

func hostClearCommand() *cobra.Command {
	var way access
	var leases string
	var yes bool
	var timeout time.Duration
	clearing := clearing{pause: time.Second}
	c := &cobra.Command{
		Use:   "clear",
		Short: "Delete all Host objects of the cluster, and wait until their nodes are gone",
		Long: `Delete the cluster's Host objects and wait until none of their nodes is left: each
is drained, or detached where its deletionPolicy or --detach says so. It is what the
chart's hooks run before it is uninstalled, upgraded or rolled back: a Bowline must
still run then, which does the work.

The Hosts are listed, and you are asked first. --yes does not ask, as a script needs it;
without a terminal and without --yes nothing is deleted.

If the command is interrupted, the removal continues; run it again to watch.`,
		Example: `  bowline host clear
  bowline host clear --detach                    the pods run on, on the machines
  bowline host clear -l rack=r1 --except box-1`,
		Args: arguments(),
		RunE: func(c *cobra.Command, _ []string) error {
			objects, client, err := way.clients()
			if err != nil {
				return err
			}
			clearing.hosts = objects
			ctx, cancel := context.WithTimeout(c.Context(), timeout)
			defer cancel()
			clearing.out = c.OutOrStdout()
			if !yes {
				if err := clearing.confirm(ctx, newPerson(c.InOrStdin(), clearing.out, false)); err != nil {
					return err
				}
			}
			if err := clearing.run(ctx); err != nil || leases == "" {
				return err
			}
			return dropLeases(ctx, client.CoordinationV1().Leases(leases), c.OutOrStdout())
		},
	}
	way.register(c)
	f := c.Flags()
	f.StringVarP(&clearing.selector, "selector", "l", "", "only Hosts with these labels")
	f.StringArrayVar(&clearing.except, "except", nil, "the name of a Host that stays; may be repeated")
	f.BoolVar(&clearing.detach, "detach", false, "whatever their deletionPolicy: let their pods run on, on the machines")
	f.BoolVarP(&yes, "yes", "y", false, "delete them without asking")
	f.StringVar(&leases, "leases", "", "then delete the Leases by which replicas shared the Hosts, in this namespace; no Bowline may run there any more")
	f.DurationVar(&timeout, "timeout", 10*time.Minute, "how long to wait")
	return c
}

// clearing is the removal of many Hosts.
type clearing struct {
	hosts interface {
		List(ctx context.Context, opts metav1.ListOptions) (*v1alpha1.HostList, error)
		Patch(ctx context.Context, name string, body []byte) error
		Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
	}
	selector string
	except   []string
	detach   bool
	pause    time.Duration // between two looks
	out      io.Writer
	// agreed are the Hosts that the person agreed to delete; nil: the person was not asked,
	// and all go, also those that are made meanwhile.
	agreed map[types.UID]bool
}

// confirm lists what is to be deleted and asks the person.
func (c *clearing) confirm(ctx context.Context, who *person) error {
	items, err := c.due(ctx)
	if err != nil {
		return err
	}
	c.agreed = map[types.UID]bool{}
	if len(items) == 0 {
		return nil
	}
	fmt.Fprintln(c.out, "These Hosts will be deleted:")
	for i := range items {
		policy := items[i].Spec.DeletionPolicy
		if c.detach {
			policy = v1alpha1.DeletionDetach
		}
		fmt.Fprintf(c.out, "  %s (%s): %s\n", items[i].Name, cmp.Or(policy, v1alpha1.DeletionDrain), pod.Printable(items[i].Spec.Endpoint))
	}
	if err := who.agrees(ctx, "Delete them?", "nothing was deleted; answer y at a terminal, or give --yes"); err != nil {
		return err
	}
	for i := range items {
		c.agreed[items[i].UID] = true
	}
	return nil
}

// due are the Hosts that are to go. A cluster without the resource has none.
func (c *clearing) due(ctx context.Context) ([]v1alpha1.Host, error) {
	list, err := c.hosts.List(ctx, metav1.ListOptions{LabelSelector: c.selector})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the Hosts: %w", err)
	}
	return slices.DeleteFunc(list.Items, func(h v1alpha1.Host) bool {
		return slices.Contains(c.except, h.Name) || c.agreed != nil && !c.agreed[h.UID]
	}), nil
}

// run deletes what is to go and waits for its end. What goes wrong on the way is tried
// again until ctx ends: a hook has no second try.
func (c *clearing) run(ctx context.Context) error {
	said := map[string]string{}
	for {
		left, err := c.look(ctx, said)
		if err == nil && len(left) == 0 {
			fmt.Fprintln(c.out, "No Hosts are left to delete.")
			return nil
		}
		if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
			return err
		}
		if err != nil && ctx.Err() == nil && said[""] != err.Error() {
			said[""] = err.Error()
			fmt.Fprintf(c.out, "It is tried again: %v\n", err)
		}
		select {
		case <-time.After(c.pause):
			continue
		case <-ctx.Done():
		}
		if err != nil && len(left) == 0 {
			return fmt.Errorf("the Hosts could not be removed in time: %w", err)
		}
		var faults []error
		for _, h := range left {
			faults = append(faults, fmt.Errorf("the Host %s is not gone: %s", h, said[h]))
		}
		return errors.Join(append(faults, errors.New("the removal continues as long as Bowline runs; --detach lets go of machines as they are"))...)
	}
}

// look does for each Host what is due, says what is new of it, and returns the names of
// those that are still there.
func (c *clearing) look(ctx context.Context, said map[string]string) ([]string, error) {
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
		if now := removalOf(h); now != said[h.Name] {
			said[h.Name] = now
			fmt.Fprintf(c.out, "%s: %s\n", h.Name, pod.Printable(now))
		}
	}
	return left, errors.Join(faults...)
}

func (c *clearing) end(ctx context.Context, h *v1alpha1.Host) error {
	if c.detach && h.Spec.DeletionPolicy != v1alpha1.DeletionDetach {
		body, err := json.Marshal(map[string]any{"spec": map[string]any{"deletionPolicy": v1alpha1.DeletionDetach}})
		if err != nil {
			return err
		}
		if err := c.hosts.Patch(ctx, h.Name, body); err != nil {
			return unlessGone(err)
		}
	}
	if h.DeletionTimestamp != nil {
		return nil
	}
	return unlessGone(c.hosts.Delete(ctx, h.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(h.UID))}))
}

func unlessGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// removalOf is how far a Host's end is. A word of before it says nothing of it.
func removalOf(h *v1alpha1.Host) string {
	ready := meta.FindStatusCondition(h.Status.Conditions, v1alpha1.ConditionReady)
	if h.DeletionTimestamp == nil || ready == nil || ready.Status == metav1.ConditionTrue ||
		!slices.Contains([]string{hosts.ReasonDraining, hosts.ReasonReleasing, hosts.ReasonDetaching, hosts.ReasonBlocked}, ready.Reason) {
		return "it is being deleted; Bowline has not said yet how far that is"
	}
	return ready.Reason + ": " + ready.Message
}

// dropLeases deletes what replicas that have ended could not: the chart's rights go with
// the chart.
func dropLeases(ctx context.Context, leases coordinationv1client.LeaseInterface, out io.Writer) error {
	list, err := leases.List(ctx, metav1.ListOptions{LabelSelector: replica.KindLabel})
	if err != nil {
		return fmt.Errorf("list the Leases: %w", err)
	}
	var faults []error
	for i := range list.Items {
		name := list.Items[i].Name
		if err := unlessGone(leases.Delete(ctx, name, metav1.DeleteOptions{})); err != nil {
			faults = append(faults, fmt.Errorf("delete the Lease %s: %w", name, err))
			continue
		}
		fmt.Fprintf(out, "The Lease %s is deleted.\n", name)
	}
	return errors.Join(faults...)
}
