package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/pool"
)

func runCommand() *cobra.Command {
	var file, healthAddress string
	c := &cobra.Command{
		Use:   "run",
		Short: "Drive the configured hosts as nodes of their cluster, until told to stop",
		Long: `Drive the configured hosts as nodes of their cluster, until told to stop.

Stopping, by a signal or a crash, leaves every container running; the next run
adopts them. With hostObjects.replicas, the other replicas do (docs/hosts.md).

The file is watched: hosts that are new in it, changed or gone are driven, driven
anew or left alone within seconds, and the others never notice. A file that is
wrong, or away, is told in the log and changes nothing. SIGHUP has it read at once.
The containers of a host that is gone from the file run on, as after a stop.

With hostObjects in it, the cluster's Host objects are hosts as well: they come and
go by kubectl (docs/hosts.md), and the command does not end when none is left.

A host that cannot be driven (its runtime or its API server does not answer, its
credential is not accepted, it is somebody else's) is told in one sentence. With
other hosts driven it is tried again, after 5 seconds and then ever later up to
each minute; when no host is left the command ends with status 1, and whoever
started it starts it again ("Restart=always" in a systemd unit). Once a host is
driven, a runtime or an API server that is away is waited for; the API server also
at the start, where the machine has been this node before: its static pods are
driven meanwhile.`,
		Example: `  bowline run --config /etc/bowline/config.yaml`,
		Args:    arguments(),
		RunE: func(c *cobra.Command, _ []string) error {
			ctx := c.Context()
			// Before anything else: untaken, the signal would end the process.
			reload := make(chan os.Signal, 1)
			signal.Notify(reload, syscall.SIGHUP)
			defer signal.Stop(reload)
			hook, err := faultHook()
			if err != nil {
				return err
			}
			// The configuration as it was at the start has what is not applied later.
			var cfg *config.BowlineConfiguration
			all, known := &joined{}, &drivers{byName: map[string]*driver{}}
			configuration, err := openConfig(file, func(c *config.BowlineConfiguration) {
				if cfg == nil {
					cfg = c
				} else if !equality.Semantic.DeepEqual(cfg.HostObjects, c.HostObjects) {
					klog.FromContext(ctx).Info("hostObjects has changed: it takes effect when bowline is started again", "file", file)
				}
				all.fromFile(byName(c))
			})
			if err != nil {
				return err
			}
			hosts := pool.New(func(ctx context.Context, h *config.Host) error {
				return known.drive(ctx, h, hook)
			}, pool.Options{EndWhenAllFail: cfg.HostObjects == nil, Hostile: isHostile}) // objects may come at any time
			all.begin(hosts.Set)
			ready := func() error { return nil } // the file has been read
			sources := []func(context.Context) error{func(ctx context.Context) error { configuration.watch(ctx, reload); return nil }}
			left := make(chan struct{})
			if cfg.HostObjects != nil {
				objects, err := openHostObjects(cfg.HostObjects, all, known, hosts)
				if err != nil {
					return err
				}
				sources, left, ready = append(sources, objects.run), objects.left, objects.ready
			} else {
				close(left)
			}
			if healthAddress != "" {
				health, err := listenHealth(healthAddress, ready)
				if err != nil {
					return err
				}
				sources = append(sources, health.run)
			}
			saveMemory()
			return runHosts(ctx, hosts, left, sources...)
		},
	}
	c.Flags().StringVar(&file, "config", "/etc/bowline/config.yaml", "the BowlineConfiguration")
	c.Flags().StringVar(&healthAddress, "health-address", "", "where /livez, /readyz and /metrics of the process are answered over HTTP, such as 0.0.0.0:8080; nowhere by default")
	return c
}

// runHosts drives the pool beside what says which hosts there are to be, until ctx
// ends, no host is left, or one of them cannot go on. The drivers end when left is
// closed: a replica's hosts are given away before.
func runHosts(ctx context.Context, hosts *pool.Pool, left <-chan struct{}, sources ...func(context.Context) error) error {
	driving, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	ctx, cancel := context.WithCancel(ctx)
	faults := make([]error, len(sources))
	var beside sync.WaitGroup
	for i, source := range sources {
		beside.Go(func() {
			if faults[i] = source(ctx); faults[i] != nil {
				cancel()
			}
		})
	}
	beside.Go(func() {
		<-ctx.Done()
		<-left
		end()
	})
	err := hosts.Run(driving)
	cancel()
	beside.Wait()
	if fault := errors.Join(faults...); fault != nil {
		return fault // for which the drivers were ended
	}
	return err
}
