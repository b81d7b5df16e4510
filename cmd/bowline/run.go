package main

import (
	"context"
	"flag"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/config"
)

func runCommand() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "run",
		Short: "Drive the configured hosts as nodes of their cluster, until told to stop",
		Long: `Drive the configured hosts as nodes of their cluster, until told to stop.

Stopping, by a signal or a crash, leaves every container running; the next run
adopts them.

A host that cannot be driven (its runtime or its API server does not answer, its
credential is not accepted, it is somebody else's) is told in one sentence. With
other hosts driven it is tried again, after 5 seconds and then ever later up to
each minute; when no host is left the command ends with status 1, and whoever
started it starts it again ("Restart=always" in a systemd unit). Once a host is
driven, a runtime or an API server that is away is waited for.`,
		Example: `  bowline run --config /etc/bowline/config.yaml`,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := config.Load(file)
			if err != nil {
				return err
			}
			hook, err := faultHook()
			if err != nil {
				return err
			}
			saveMemory()
			return driveAll(c.Context(), cfg.Hosts, func(ctx context.Context, h *config.Host) error {
				return runNode(ctx, h, hook)
			})
		},
	}
	c.Flags().StringVar(&file, "config", "/etc/bowline/config.yaml", "the BowlineConfiguration")
	verbosity := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(verbosity)
	if v := verbosity.Lookup("v"); v != nil {
		c.Flags().AddGoFlag(v)
	}
	return c
}
