package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/bowline-k8s/bowline/hosts/clearing"
	"github.com/bowline-k8s/bowline/pod"
)

func hostClearCommand() *cobra.Command {
	var way access
	var leases string
	var yes bool
	var timeout time.Duration
	all := clearing.Clearing{Pause: time.Second}
	c := &cobra.Command{
		Use:   "clear",
		Short: "Delete all Host objects of the cluster, and wait until their nodes are gone",
		Long: `Delete the cluster's Host objects and wait until none of their nodes is left: each
node is drained, or detached if its deletionPolicy or --detach says so. The chart's
hooks run this command before an uninstall, upgrade or rollback. Bowline must still
run, as it does the work.

The command lists the Hosts and asks before it deletes them; --yes skips the question.
Without a terminal and without --yes nothing is deleted.

If the command is interrupted, the removal continues; run it again to watch.`,
		Example: `  bowline host clear
  bowline host clear --detach                    the pods keep running on the hosts
  bowline host clear -l rack=r1 --except box-1`,
		Args: arguments(),
		RunE: func(c *cobra.Command, _ []string) error {
			objects, client, err := way.clients()
			if err != nil {
				return err
			}
			all.Hosts = objects
			ctx, cancel := context.WithTimeout(c.Context(), timeout)
			defer cancel()
			out := c.OutOrStdout()
			all.Report = func(change clearing.Change) { fmt.Fprintln(out, clearText(change)) }
			if !yes {
				if err := all.Confirm(ctx, newPerson(c.InOrStdin(), out, false).deletes); err != nil {
					return err
				}
			}
			if err := all.Run(ctx); err != nil {
				return err
			}
			fmt.Fprintln(out, "No Hosts are left to delete.")
			if leases == "" {
				return nil
			}
			dropped, err := clearing.DropLeases(ctx, client.CoordinationV1().Leases(leases))
			for _, name := range dropped {
				fmt.Fprintf(out, "Deleted the Lease %s.\n", name)
			}
			return err
		},
	}
	way.register(c)
	f := c.Flags()
	f.StringVarP(&all.Selector, "selector", "l", "", "only Hosts with these labels")
	f.StringArrayVar(&all.Except, "except", nil, "the name of a Host that stays; may be repeated")
	f.BoolVar(&all.Detach, "detach", false, "leave their pods running on the hosts, whatever their deletionPolicy is")
	f.BoolVarP(&yes, "yes", "y", false, "delete them without asking")
	f.StringVar(&leases, "leases", "", "then delete the replicas' Leases in this namespace, where Bowline must not run any more")
	f.DurationVar(&timeout, "timeout", 10*time.Minute, "how long to wait")
	return c
}

// clearText is a change of a Host's removal as a line.
func clearText(c clearing.Change) string {
	if c.Err != nil {
		return fmt.Sprintf("Will retry: %v", c.Err)
	}
	return c.Host + ": " + pod.Printable(c.Now)
}

// deletes lists the Hosts that will be deleted, and asks whether to delete them.
func (p *person) deletes(ctx context.Context, all []clearing.Due) error {
	fmt.Fprintln(p.out, "These Hosts will be deleted:")
	for _, h := range all {
		fmt.Fprintf(p.out, "  %s (%s): %s\n", h.Name, h.Policy, pod.Printable(h.Endpoint))
	}
	return p.agrees(ctx, "Delete them?", "nothing was deleted; answer y at a terminal, or set --yes")
}
