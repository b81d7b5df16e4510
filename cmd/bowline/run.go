package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"sync"

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
adopts them.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := config.Load(file)
			if err != nil {
				return err
			}
			return runNodes(c.Context(), cfg)
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

// runNodes drives every host until ctx ends, or the first one cannot go on.
func runNodes(ctx context.Context, cfg *config.BowlineConfiguration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	hook, err := faultHook()
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	errs := make([]error, len(cfg.Hosts))
	for i := range cfg.Hosts {
		all.Go(func() {
			defer cancel()
			h := &cfg.Hosts[i]
			logger := klog.FromContext(ctx).WithValues("host", h.Name)
			if err := runNode(klog.NewContext(ctx, logger), h, hook); err != nil {
				errs[i] = fmt.Errorf("host %s: %w", h.Name, err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
