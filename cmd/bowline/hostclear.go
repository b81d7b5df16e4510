package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/bowline-k8s/bowline/hosts/clearing"
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
			all.Out = c.OutOrStdout()
			if !yes {
				if err := all.Confirm(ctx, newPerson(c.InOrStdin(), all.Out, false).agrees); err != nil {
					return err
				}
			}
			if err := all.Run(ctx); err != nil || leases == "" {
				return err
			}
			return clearing.DropLeases(ctx, client.CoordinationV1().Leases(leases), c.OutOrStdout())
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
