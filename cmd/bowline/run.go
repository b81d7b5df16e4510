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
	"github.com/bowline-k8s/bowline/tracing"
	"github.com/bowline-k8s/bowline/version"
)

// runOptions are the flags of the command run.
type runOptions struct {
	file, healthAddress string
	profiling           bool
}

// runCommand returns the command run. logs has the log lines of the process.
func runCommand(logs *nodelogs.Own, log *logging) *cobra.Command {
	var o runOptions
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
		// The file has settings of the log, so manageHosts applies them.
		PersistentPreRunE: func(*cobra.Command, []string) error { return nil },
		RunE:              func(c *cobra.Command, _ []string) error { return manageHosts(c, &o, logs, log) },
	}
	c.Flags().StringVar(&o.file, "config", "/etc/bowline/config.yaml", "the BowlineConfiguration")
	c.Flags().StringVar(&o.healthAddress, "health-address", "", "serve /livez, /readyz and /metrics over HTTP on this address, such as 0.0.0.0:8080")
	c.Flags().BoolVar(&o.profiling, "profiling", false, "serve /debug/pprof/ and /debug/flags/v on the health address as well, unauthenticated")
	return c
}

// manageHosts manages the configured hosts until the command's context ends.
func manageHosts(c *cobra.Command, o *runOptions, logs *nodelogs.Own, log *logging) error {
	ctx := c.Context()
	// First of all: an unhandled SIGHUP would kill the process.
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, syscall.SIGHUP)
	defer signal.Stop(reload)
	hook, err := faultinject.Hook()
	if err != nil {
		return err
	}
	all, known := &fleet.Sources{}, fleet.NewDrivers()
	cfg, configuration, err := openConfig(ctx, o.file, all)
	if err != nil {
		return err
	}
	if err := log.apply(c, cfg.Logging); err != nil {
		return err
	}
	traces, err := tracing.New(klog.FromContext(ctx), cfg.Tracing, version.Version)
	if err != nil {
		return err
	}
	defer traces.Close()
	known.Flags, known.Logs, known.Logging = map[string]string{}, logs, log.LoggingConfiguration
	known.Tracer, known.Tracing = traces.Tracer(), cfg.Tracing
	c.Flags().VisitAll(func(f *pflag.Flag) { known.Flags[f.Name] = f.Value.String() })
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
	if o.healthAddress != "" {
		health, err := fleet.ListenHealth(o.healthAddress, ready, func(ctx context.Context) error { return fleet.Alive(ctx, hosts, known) })
		if err != nil {
			return err
		}
		health.Profiling = o.profiling
		sources = append(sources, health.Run)
	}
	procmem.Shrink(o.profiling)
	return fleet.Run(ctx, hosts, left, append(sources, procmem.Run)...)
}

// openConfig reads the configuration file. cfg is the configuration at startup: not everything in it is
// applied again later.
func openConfig(ctx context.Context, file string, all *fleet.Sources) (cfg *config.BowlineConfiguration, opened *fleet.ConfigFile, err error) {
	opened, err = fleet.OpenConfig(file, func(c *config.BowlineConfiguration) {
		if cfg == nil {
			cfg = c
		} else {
			warnOfRestart(klog.FromContext(ctx), file, cfg, c)
		}
		all.FromFile(fleet.ByName(c))
	})
	return cfg, opened, err
}

// warnOfRestart logs which changes of the file need a restart of the process.
func warnOfRestart(log klog.Logger, file string, cfg, changed *config.BowlineConfiguration) {
	for field, same := range map[string]bool{
		"hostObjects": equality.Semantic.DeepEqual(cfg.HostObjects, changed.HostObjects),
		"logging":     equality.Semantic.DeepEqual(cfg.Logging, changed.Logging),
		"tracing":     equality.Semantic.DeepEqual(cfg.Tracing, changed.Tracing),
	} {
		if !same {
			log.Error(nil, "Ignored a change of a field; restart bowline to apply it", "field", field, "file", file)
		}
	}
}
