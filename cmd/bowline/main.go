// Command bowline runs hosts with a container runtime as nodes of a Kubernetes cluster.
//
// Each subcommand has a file that reads as a recipe: parse, validate, call, print.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/fleet"
	"github.com/bowline-k8s/bowline/mountns"
	"github.com/bowline-k8s/bowline/nodelogs"
	"github.com/bowline-k8s/bowline/version"
)

func main() {
	mountns.AfterExec()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal kills the process
	as := calledAs(os.Args[0])
	root := rootCommand(as)
	err := root.ExecuteContext(ctx)
	if status := report(os.Stderr, as, wantsJSON(root, os.Args[1:]), err); status != 0 {
		os.Exit(status)
	}
}

// rootCommand returns the whole command tree, named as the user called it.
func rootCommand(as string) *cobra.Command {
	root := &cobra.Command{
		Use:   "bowline",
		Short: "Run hosts with a CRI runtime as Kubernetes nodes",
		Long: `Bowline runs hosts with a CRI runtime as nodes of a Kubernetes cluster, without a
kubelet. It reaches the runtime of a host through its socket, or over SSH.

Exit status: 0 on success, 1 on failure. "host check", "host prepare" and "host release"
fail, with nothing on standard error, when the report on standard output says why.`,
		Example: `  bowline run --config bowline.yaml     run the configured nodes
  bowline why pod web-0 -n shop         show why a pod runs, or does not
  bowline host add box-1 --ssh root@…   add a remote machine to a cluster in which Bowline runs
  bowline top                           hosts and their pods, live
  bowline configure --ssh root@…        write the configuration of a remote machine
  bowline host check ssh://root@…       check whether a machine can be a node
  bowline host prepare ssh://root@…     fix what can be fixed safely
  bowline host release ssh://root@…     remove everything of Bowline's from a host
  bowline lab up                        a whole cluster on this machine, to try it on`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version.Version,
	}
	root.Flags().Bool("version", false, "print the version") // without a shorthand: -v is the verbosity
	// The newest lines about each host are kept for its node.
	logs := nodelogs.NewOwn(os.Stderr, os.Getpid())
	log := logFlags(root, logs)
	root.AddCommand(runCommand(logs, log), configureCommand(), whyCommand(), topCommand(), hostCommand(), joinCommand(), labCommand(findLab), versionCommand())
	root.SetHelpCommand(helpCommand())
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd("completion") // before usable walks the tree
	usable(root)
	name(root, as)
	return root
}

// logging is how the process logs: what its flags say, and to where.
type logging struct {
	*logsapi.LoggingConfiguration
	out io.Writer
}

// apply takes effect once, before anything is logged. The configuration file counts where no flag is given.
func (l *logging) apply(c *cobra.Command, file *config.Logging) error {
	file.Into(l.LoggingConfiguration, c.Flags().Changed)
	streams := &logsapi.LoggingOptions{ErrorStream: l.out, InfoStream: l.out}
	if err := logsapi.ValidateAndApplyWithOptions(l.LoggingConfiguration, streams, nil); err != nil {
		return wrongUsage(c, "settings of the log: %v", err)
	}
	fleet.LogLibraries(klog.Background())
	return nil
}

// logFlags adds the log flags of a Kubernetes component, and has every command apply them. Those that
// only tune its output streams are hidden. The log goes to out.
func logFlags(root *cobra.Command, out io.Writer) *logging {
	l := &logging{logsapi.NewLoggingConfiguration(), out}
	flags := root.PersistentFlags()
	logsapi.AddFlags(l.LoggingConfiguration, flags)
	flags.VisitAll(func(f *pflag.Flag) { f.Hidden = strings.HasPrefix(f.Name, "log-") })
	flags.Lookup("v").Usage = "the verbosity of the log on standard error: 2 shows what happens to each pod, 4 each login, 5 each call to a host"
	flags.Lookup("logging-format").Usage = "the format of the log: text or json"
	flags.Lookup("vmodule").Usage = "the verbosity by source file, PATTERN=N,... (text format only)"
	root.PersistentPreRunE = func(c *cobra.Command, _ []string) error { return l.apply(c, nil) }
	return l
}
