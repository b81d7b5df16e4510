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
	if status := explain(os.Stderr, as, rootCommand(as).ExecuteContext(ctx)); status != 0 {
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
	logFlags(root, logs)
	root.AddCommand(runCommand(logs), configureCommand(), whyCommand(), topCommand(), hostCommand(), joinCommand(), labCommand(findLab), versionCommand())
	root.SetHelpCommand(helpCommand())
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd("completion") // before usable walks the tree
	usable(root)
	name(root, as)
	return root
}

// logFlags adds the log flags of a Kubernetes component. Those that only tune its output streams are
// hidden. The log goes to out.
func logFlags(root *cobra.Command, out io.Writer) {
	logging := logsapi.NewLoggingConfiguration()
	flags := root.PersistentFlags()
	logsapi.AddFlags(logging, flags)
	flags.VisitAll(func(f *pflag.Flag) { f.Hidden = strings.HasPrefix(f.Name, "log-") })
	flags.Lookup("v").Usage = "the verbosity of the log on standard error: 4 shows each login, 5 each call to a host"
	flags.Lookup("logging-format").Usage = "the format of the log: text or json"
	flags.Lookup("vmodule").Usage = "the verbosity by source file, PATTERN=N,... (text format only)"
	root.PersistentPreRunE = func(c *cobra.Command, _ []string) error {
		streams := &logsapi.LoggingOptions{ErrorStream: out, InfoStream: out}
		if err := logsapi.ValidateAndApplyWithOptions(logging, streams, nil); err != nil {
			return wrongUsage(c, "log flags: %v", err)
		}
		return nil
	}
}
