package main

import (
	"context"
	"flag"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/pool"
)

func runCommand() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "run",
		Short: "Drive the configured hosts as nodes of their cluster, until told to stop",
		Long: `Drive the configured hosts as nodes of their cluster, until told to stop.

Stopping, by a signal or a crash, leaves every container running; the next run
adopts them.

The file is watched: hosts that are new in it, changed or gone are driven, driven
anew or left alone within seconds, and the others never notice. A file that is
wrong, or away, is told in the log and changes nothing. SIGHUP has it read at once.
The containers of a host that is gone from the file run on, as after a stop.

A host that cannot be driven (its runtime or its API server does not answer, its
credential is not accepted, it is somebody else's) is told in one sentence. With
other hosts driven it is tried again, after 5 seconds and then ever later up to
each minute; when no host is left the command ends with status 1, and whoever
started it starts it again ("Restart=always" in a systemd unit). Once a host is
driven, a runtime or an API server that is away is waited for.`,
		Example: `  bowline run --config /etc/bowline/config.yaml`,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			// Before anything else: untaken, the signal would end the process.
			reload := make(chan os.Signal, 1)
			signal.Notify(reload, syscall.SIGHUP)
			defer signal.Stop(reload)
			hook, err := faultHook()
			if err != nil {
				return err
			}
			hosts := pool.New(func(ctx context.Context, h *config.Host) error {
				return runNode(ctx, h, hook)
			}, pool.Options{EndWhenAllFail: true})
			configuration, err := openConfig(file, func(c *config.BowlineConfiguration) { hosts.Set(byName(c)) })
			if err != nil {
				return err
			}
			saveMemory()
			return runHosts(c.Context(), hosts, func(ctx context.Context) { configuration.watch(ctx, reload) })
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

// runHosts drives the pool beside what says which hosts there are to be, until ctx
// ends or no host is left.
func runHosts(ctx context.Context, hosts *pool.Pool, source func(context.Context)) error {
	ctx, cancel := context.WithCancel(ctx)
	var beside sync.WaitGroup
	defer beside.Wait()
	defer cancel()
	beside.Go(func() { source(ctx) })
	return hosts.Run(ctx)
}
