package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/bowline-k8s/bowline/hostadmin"
)

func topCommand() *cobra.Command {
	var way access
	var once bool
	var interval time.Duration
	c := &cobra.Command{
		Use:   "top",
		Short: "Hosts and their pods, live: links, round trips, restarts",
		Long: `Show the hosts of a cluster and their pods, from Host objects and from the
configuration files of all Bowlines. On a terminal the table refreshes until you
interrupt it.`,
		Args: arguments(),
		RunE: func(c *cobra.Command, _ []string) error {
			if interval < time.Second {
				return fmt.Errorf("--interval %s: at least 1s", interval)
			}
			objects, client, err := way.clients()
			if err != nil {
				return err
			}
			look := func(ctx context.Context) (string, error) {
				v, err := hostadmin.Look(ctx, objects, client)
				if err != nil {
					return "", err
				}
				return v.Text(time.Now()), nil
			}
			out := c.OutOrStdout()
			if once || !isTerminal(out) {
				text, err := look(c.Context())
				if err == nil {
					_, err = io.WriteString(out, text)
				}
				return err
			}
			return hostadmin.Live(c.Context(), out, interval, func() (int, int) { return windowOf(out) }, look)
		},
	}
	way.register(c)
	c.Flags().BoolVar(&once, "once", false, "print the table once (default if the output is not a terminal)")
	c.Flags().DurationVar(&interval, "interval", 2*time.Second, "the refresh interval")
	return c
}
