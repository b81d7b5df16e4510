// Command bowline-lab runs a whole Kubernetes cluster on this machine as ordinary processes, to try
// out Bowline and to test it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/bowline-k8s/bowline/lab"
	"github.com/bowline-k8s/bowline/lab/layout"
	"github.com/bowline-k8s/bowline/lab/node"
)

// Lock the first goroutine to the first thread, because the commands that execute another program
// must do it from there: if another thread calls execve, the process looks dead to others for a
// moment.
func init() { runtime.LockOSThread() }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command().ExecuteContext(ctx)
	stop()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		os.Exit(exit.ExitCode())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bowline-lab:", err)
		os.Exit(1)
	}
}

// options are the flags that every command has.
type options struct {
	dir   string
	index int
	cache string
}

func command() *cobra.Command {
	var o options
	root := &cobra.Command{
		Use:   "bowline-lab",
		Short: "A whole Kubernetes cluster on this machine, with hosts that share nothing but the kernel",
		Long: `A whole Kubernetes cluster on this machine as ordinary processes: etcd, the API server,
controller manager, scheduler and a registry, and lab hosts, each a set of namespaces with
a containerd, a kube-proxy and an sshd of its own. The hosts are not nodes yet: that is
what Bowline, or "bowline-lab kubelet HOST", makes of them.`,
		SilenceUsage:     true,
		SilenceErrors:    true,
		TraverseChildren: true,
	}
	flags := root.PersistentFlags()
	flags.StringVar(&o.dir, "dir", fromEnv("BOWLINE_LAB_DIR", "/var/lib/bowline-lab"), "the lab's directory ($BOWLINE_LAB_DIR)")
	flags.StringVar(&o.cache, "cache", fromEnv("BOWLINE_CACHE", defaultCache()), "where hack/build-lab.sh puts what it builds ($BOWLINE_CACHE)")
	root.AddCommand(
		upCommand(&o), downCommand(&o), statusCommand(&o),
		kubectlCommand(&o), kubeconfigCommand(&o), loadImageCommand(&o),
		execCommand(&o), kubeletCommand(&o), startCommand(&o), stopCommand(&o), resetCommand(&o), logsCommand(&o),
		enterCommand(), hostCommand(), registryCommand(), superviseCommand(), runcCommand(),
	)
	return root
}

func fromEnv(key, otherwise string) string {
	if v := os.Getenv(key); v != "" {
		return v
	}
	return otherwise
}

// defaultCache is machine-wide for root, so that root's shells and services agree on it.
func defaultCache() string {
	if os.Geteuid() == 0 {
		return "/var/cache/bowline"
	}
	if dir, err := os.UserCacheDir(); err == nil {
		return filepath.Join(dir, "bowline")
	}
	return "/var/cache/bowline"
}

// run is what a command does with the lab's configuration.
func (o *options) run(do func(*cobra.Command, []string, lab.Config) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := o.config()
		if err != nil {
			return err
		}
		return do(cmd, args, c)
	}
}

// config makes the paths absolute, because the daemons run in /.
func (o *options) config() (lab.Config, error) {
	self, err := os.Executable()
	if err != nil {
		return lab.Config{}, err
	}
	dir, err := filepath.Abs(o.dir)
	if err != nil {
		return lab.Config{}, err
	}
	cache, err := filepath.Abs(o.cache)
	if err != nil {
		return lab.Config{}, err
	}
	if strings.ContainsAny(dir+cache, " \t\n\"") {
		return lab.Config{}, fmt.Errorf("the lab's paths may not hold spaces or quotes: %q, %q", dir, cache)
	}
	return lab.Config{Dir: dir, Index: o.index, Out: os.Stderr,
		Tools: node.Tools{Self: self, Bin: filepath.Join(cache, "bin")}}, nil
}

func upCommand(o *options) *cobra.Command {
	var hosts int
	var bare, audit bool
	var first, runtime string
	c := &cobra.Command{
		Use:   "up",
		Short: "Start the lab, or what of it does not run",
		Args:  cobra.NoArgs,
		RunE: o.run(func(cmd *cobra.Command, _ []string, c lab.Config) error {
			c.Hosts, c.Bare, c.Audit = hosts, bare, audit
			var err error
			if runtime != "" {
				if c.Tools.Runtime, err = layout.ParseRuntime(runtime); err != nil {
					return err
				}
			}
			if first != "" {
				if c.Tools.First, err = filepath.Abs(first); err != nil {
					return err
				}
			}
			return lab.Up(cmd.Context(), c)
		}),
	}
	c.Flags().IntVar(&hosts, "hosts", 0, "how many hosts (default: as many as there are, or 1)")
	c.Flags().BoolVar(&bare, "bare", false, "hosts with an sshd and no runtime or kube-proxy (of a new lab)")
	c.Flags().BoolVar(&audit, "audit", false, "have the API server log what nodes and service accounts ask for (of a new lab)")
	c.Flags().StringVar(&first, "programs", "", "a directory of programs that containerd finds before the machine's, such as another runc (of a new lab)")
	c.Flags().StringVar(&runtime, "runtime", "", "what serves the CRI on the hosts: containerd, or crio, which hack/build-crio.sh builds (of a new lab; default: containerd)")
	c.Flags().IntVar(&o.index, "index", -1, fmt.Sprintf("0 to %d, picks addresses and names so that labs do not collide (default: the lowest that is free)", layout.MaxIndex))
	return c
}

func downCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Remove the lab and everything it made",
		Args:  cobra.NoArgs,
		RunE: o.run(func(cmd *cobra.Command, _ []string, c lab.Config) error {
			return lab.Down(cmd.Context(), c)
		}),
	}
}

func statusCommand(o *options) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "status",
		Short: "Show what runs, and where everything is",
		Args:  cobra.NoArgs,
		RunE: o.run(func(cmd *cobra.Command, _ []string, c lab.Config) error {
			s, err := lab.GetStatus(cmd.Context(), c)
			if err != nil {
				return err
			}
			switch output {
			case "json":
				return s.WriteJSON(os.Stdout)
			case "text":
				return s.WriteText(os.Stdout)
			}
			return fmt.Errorf("no output format %q: it is text or json", output)
		}),
	}
	c.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return c
}

func kubectlCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:                "kubectl ...",
		Short:              "Run kubectl as the cluster's admin",
		DisableFlagParsing: true,
		RunE: o.run(func(_ *cobra.Command, args []string, c lab.Config) error {
			l, _, err := lab.Find(c.Dir)
			if err != nil {
				return err
			}
			argv, env := lab.Kubectl(c.Tools, l, args)
			return syscall.Exec(argv[0], argv, append(os.Environ(), env...))
		}),
	}
}

func kubeconfigCommand(o *options) *cobra.Command {
	var path bool
	c := &cobra.Command{
		Use:   "kubeconfig [USER]",
		Short: "Print a kubeconfig: of the admin, or of a host's node",
		Args:  cobra.MaximumNArgs(1),
		RunE: o.run(func(cmd *cobra.Command, args []string, c lab.Config) error {
			l, _, err := lab.Find(c.Dir)
			if err != nil {
				return err
			}
			file := l.Kubeconfig(append(args, "admin")[0])
			if path {
				fmt.Println(file)
				return nil
			}
			data, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			_, err = os.Stdout.Write(data)
			return err
		}),
	}
	c.Flags().BoolVar(&path, "path", false, "print where it is instead")
	return c
}
