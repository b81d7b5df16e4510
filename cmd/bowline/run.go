package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/faultinject"
	"github.com/bowline-k8s/bowline/fleet"
	"github.com/bowline-k8s/bowline/nodelogs"
	"github.com/bowline-k8s/bowline/pool"
	"github.com/bowline-k8s/bowline/procmem"
)

// runCommand returns the command run. logs has the log lines of the process.
func runCommand(logs *nodelogs.Own) *cobra.Command {
	var file, healthAddress string
	var profiling bool
	c := &cobra.Command{
		Use:   "run",
		Short: "Run the configured hosts as nodes",
		Long: `Run the configured hosts as nodes of their cluster, until a signal stops the command.

When Bowline stops or crashes, all containers keep running, and the next run adopts
them. With hostObjects.replicas, another replica does (docs/hosts.md).

Bowline watches the file: within seconds it starts to manage the hosts that were added,
applies what changed, and stops managing those that were removed, whose containers keep
running. Other hosts are not affected. If the file is invalid or missing, Bowline logs
an error and keeps the previous configuration. SIGHUP makes it read the file at once.

With hostObjects, the cluster's Host objects are hosts as well: you add and remove them
with kubectl (docs/hosts.md), and the command does not end when there are none.

If a host cannot be managed (its runtime or API server does not answer, its credential
is not accepted, or something else manages it), Bowline logs one sentence. While it
manages other hosts, it retries after 5 seconds, with a back-off of up to a minute. If
no host is left, the command ends with status 1, and systemd restarts it
("Restart=always"). Once a host is managed, Bowline waits for a runtime or an API server
that does not answer. It also waits for the API server at the start if the host has been
this node before, and runs its static pods meanwhile.`,
		Example: `  bowline run --config /etc/bowline/config.yaml`,
		Args:    arguments(),
		RunE: func(c *cobra.Command, _ []string) error {
			ctx := c.Context()
			// First of all: an unhandled SIGHUP would kill the process.
			reload := make(chan os.Signal, 1)
			signal.Notify(reload, syscall.SIGHUP)
			defer signal.Stop(reload)
			hook, err := faultinject.Hook()
			if err != nil {
				return err
			}
			// cfg is the configuration at startup; not everything in it is applied again later.
			var cfg *config.BowlineConfiguration
			all, known := &fleet.Sources{}, fleet.NewDrivers()
			known.Flags, known.Logs = map[string]string{}, logs
			c.Flags().VisitAll(func(f *pflag.Flag) { known.Flags[f.Name] = f.Value.String() })
			configuration, err := fleet.OpenConfig(file, func(c *config.BowlineConfiguration) {
				if cfg == nil {
					cfg = c
				} else if !equality.Semantic.DeepEqual(cfg.HostObjects, c.HostObjects) {
					klog.FromContext(ctx).Error(nil, "Ignored a change of hostObjects; restart bowline to apply it", "file", file)
				}
				all.FromFile(fleet.ByName(c))
			})
			if err != nil {
				return err
			}
			hosts := pool.New(func(ctx context.Context, h *config.Host) error {
				return known.Manage(ctx, h, hook)
			}, pool.Options{EndWhenAllFail: cfg.HostObjects == nil, Hostile: fleet.IsHostile}) // Host objects may be created at any time
			fleet.ObserveHosts(hosts, known)
			all.Begin(hosts.Set)
			ready := func() error { return nil } // the file has been read
			sources := []func(context.Context) error{
				func(ctx context.Context) error { configuration.Watch(ctx, reload); return nil },
				func(ctx context.Context) error { known.Follow(ctx, hosts); return nil },
			}
			left := make(chan struct{})
			if cfg.HostObjects != nil {
				objects, err := fleet.OpenHostObjects(cfg.HostObjects, all, known, hosts)
				if err != nil {
					return err
				}
				sources, left, ready = append(sources, objects.Run), objects.Left, objects.Ready
			} else {
				close(left)
			}
			if healthAddress != "" {
				health, err := fleet.ListenHealth(healthAddress, ready, func(ctx context.Context) error { return fleet.Alive(ctx, hosts, known) })
				if err != nil {
					return err
				}
				health.Profiling = profiling
				sources = append(sources, health.Run)
			}
			procmem.Shrink()
			return fleet.Run(ctx, hosts, left, sources...)
		},
	}
	c.Flags().StringVar(&file, "config", "/etc/bowline/config.yaml", "the BowlineConfiguration")
	c.Flags().StringVar(&healthAddress, "health-address", "", "serve /livez, /readyz and /metrics over HTTP on this address, such as 0.0.0.0:8080")
	c.Flags().BoolVar(&profiling, "profiling", false, "serve /debug/pprof/ and /debug/flags/v on the health address as well, unauthenticated")
	return c
}
