package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/enroll"
)

func hostListCommand() *cobra.Command {
	var way access
	var output string
	c := &cobra.Command{
		Use:   "list",
		Short: "List the Host objects of a cluster with their status",
		Args:  arguments(),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := checkOutput(c, output, "wide"); err != nil {
				return err
			}
			objects, _, err := way.clients()
			if err != nil {
				return err
			}
			list, err := objects.List(c.Context(), metav1.ListOptions{})
			if err != nil {
				return enroll.HostsError(err)
			}
			if output == "json" {
				return writeJSON(c.OutOrStdout(), list)
			}
			_, err = fmt.Fprint(c.OutOrStdout(), enroll.HostTable(list, time.Now(), output == "wide"))
			return err
		},
	}
	way.register(c)
	outputFlag(c, &output, "wide")
	return c
}

func hostRemoveCommand() *cobra.Command {
	var way access
	var r enroll.Removal
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "remove NAME",
		Short: "Take a machine out of the cluster: delete its Host object",
		Long: `Delete a Host, and the Secret and the rights that "host add" made for it, and tell what
the end waits for. The node is drained and the machine emptied, or, with --detach (or where
the Host says so), its pods run on there, and the node goes.

The removal goes on by itself when nobody waits for it; run the command again to watch.`,
		Example: `  bowline host remove box-1
  bowline host remove box-1 --detach`,
		Args:              arguments("NAME"),
		ValidArgsFunction: completeHosts(&way),
		RunE: func(c *cobra.Command, args []string) error {
			r.Name = args[0]
			e, err := way.enroller(c, true)
			if err != nil {
				return err
			}
			ctx, cancel := c.Context(), context.CancelFunc(func() {})
			if timeout > 0 {
				ctx, cancel = context.WithTimeout(ctx, timeout)
			}
			defer cancel()
			return e.Remove(ctx, r)
		},
	}
	way.register(c)
	namespaceFlag(c, &r.Namespace)
	c.Flags().BoolVar(&r.Detach, "detach", false, "let its pods run on, on the machine, and do not reach for that")
	c.Flags().BoolVar(&r.Wait, "wait", true, "wait until the Host has gone")
	c.Flags().DurationVar(&timeout, "timeout", 10*time.Minute, "how long to wait; 0: without end")
	return c
}
