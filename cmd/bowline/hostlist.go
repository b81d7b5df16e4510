package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/hostadmin"
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
				return hostadmin.HostsError(err)
			}
			if output == "json" {
				return writeJSON(c.OutOrStdout(), list)
			}
			_, err = fmt.Fprint(c.OutOrStdout(), hostadmin.HostTable(list, time.Now(), output == "wide"))
			return err
		},
	}
	way.register(c)
	outputFlag(c, &output, "wide")
	return c
}

func hostRemoveCommand() *cobra.Command {
	var way access
	var r hostadmin.Removal
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "remove NAME",
		Short: "Remove a host from the cluster: delete its Host object",
		Long: `Delete a Host, and the Secret and the RBAC objects that "host add" created for it, and
show the progress. Bowline drains the node and removes its pods from the host. With
--detach, or if the Host's deletionPolicy says so, the pods keep running on the host and
only the node is deleted.

If the command is interrupted, the removal continues; run it again to watch.`,
		Example: `  bowline host remove box-1
  bowline host remove box-1 --detach`,
		Args:              arguments("NAME"),
		ValidArgsFunction: completeHosts(&way),
		RunE: func(c *cobra.Command, args []string) error {
			r.Name = args[0]
			e, err := way.hostEditor(c, true)
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
	c.Flags().BoolVar(&r.Detach, "detach", false, "leave its pods running on the host, and do not connect to the host")
	c.Flags().BoolVar(&r.Wait, "wait", true, "wait until the Host has gone")
	c.Flags().DurationVar(&timeout, "timeout", 10*time.Minute, "how long to wait; 0 means without a limit")
	return c
}
